// Joins a multicast group by subnet administration through libibumad, attaches a UD queue pair to it, and receives or sends a message:
//
//     sa_multicast recv MGID         makes the group; prints "joined MLID Q_KEY", then the message
//     sa_multicast send MGID TEXT    joins once somebody else has; prints the same
//
// Waits until the subnet manager has the LID in the variable SM_LID, if there is one.
#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/umad.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SA = 3, SA_VERSION = 2, SET = 2, DELETE = 0x15, MEMBER = 0x38 };
enum { LENGTH = 256, DATA = 56, GSI_KEY = 0x80010000, Q_KEY = 0x1234 };
// Components: MGID, PortGID and JoinState; Q_Key, TClass, P_Key, SL and FlowLabel of a group that is made.
enum { JOIN = 0x10003, CREATE = 0x130c7 };

static union ibv_gid mgid, own;
static int sm_lid, umad_port, agent;
static void *umad;
static uint8_t *mad;

// Asks for a membership, or ends it; the status of the answer, -1 without one.
static int ask(int method, uint64_t mask) {
    memset(umad, 0, umad_size() + LENGTH);
    mad[0] = 1, mad[1] = SA, mad[2] = SA_VERSION, mad[3] = method;
    mad[15] = 1, mad[17] = MEMBER;
    uint64_t components = htobe64(mask);
    memcpy(mad + 48, &components, 8);
    memcpy(mad + DATA, &mgid, 16);
    memcpy(mad + DATA + 16, &own, 16);
    uint32_t key = htobe32(Q_KEY);
    if (mask == CREATE) memcpy(mad + DATA + 32, &key, 4), mad[DATA + 40] = mad[DATA + 41] = 0xff;
    mad[DATA + 48] = 1;
    umad_set_addr(umad, sm_lid, 1, 0, GSI_KEY);
    umad_set_pkey(umad, 0);
    int length = LENGTH;
    if (umad_send(umad_port, agent, umad, LENGTH, 2000, 5) < 0) return -1;
    if (umad_recv(umad_port, umad, &length, -1) < 0 || umad_status(umad)) return -1;
    return mad[4] << 8 | mad[5];
}

static int fail(const char *what) {
    return perror(what), 1;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    int sends = argc == 4 && !strcmp(argv[1], "send");
    if (argc < 3 || inet_pton(AF_INET6, argv[2], &mgid) != 1) return puts("sa_multicast recv|send MGID [TEXT]"), 1;
    umad_port_t about;
    if (umad_init() < 0 || umad_get_port(NULL, 0, &about) < 0) return fail("port");
    umad_port = umad_open_port(about.ca_name, about.portnum);
    agent = umad_register(umad_port, SA, SA_VERSION, 0, NULL);
    if (umad_port < 0 || agent < 0) return fail("agent");
    umad = umad_alloc(1, umad_size() + LENGTH);
    mad = umad_get_mad(umad);

    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
    if (!context || ibv_query_gid(context, 1, 0, &own)) return fail("device");
    struct ibv_port_attr port;
    const char *wanted = getenv("SM_LID");
    do {
        if (ibv_query_port(context, 1, &port)) return fail("port");
    } while (wanted && port.sm_lid != atoi(wanted) && !usleep(10000));
    sm_lid = port.sm_lid;
    int status;
    // Whoever sends waits until it has heard of the group.
    while ((status = ask(SET, sends ? JOIN : CREATE)) == 0x600 && sends) usleep(50000);
    if (status) return printf("status %#x\n", status), 1;
    uint16_t mlid;
    uint32_t q_key;
    memcpy(&mlid, mad + DATA + 36, 2), memcpy(&q_key, mad + DATA + 32, 4);
    mlid = be16toh(mlid), q_key = be32toh(q_key);

    static char room[40 + 256];
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, room, sizeof room, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = {4, 4, 1, 1, 0}, .sq_sig_all = 1};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    if (!qp || !mr) return fail("queue pair");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = q_key};
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)) return fail("INIT");
    attr.qp_state = IBV_QPS_RTR;
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE)) return fail("RTR");
    attr.qp_state = IBV_QPS_RTS;
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN)) return fail("RTS");
    struct ibv_sge sge = {.addr = (uintptr_t)room, .length = sizeof room, .lkey = mr->lkey};
    if (sends) {
        struct ibv_ah_attr to = {
            .dlid = mlid, .is_global = 1, .port_num = 1, .grh = {.dgid = mgid, .sgid_index = 0, .hop_limit = 1}};
        sge.length = sprintf(room, "%.200s", argv[3]);
        struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
        wr.wr.ud.ah = ibv_create_ah(pd, &to);
        wr.wr.ud.remote_qpn = 0xffffff, wr.wr.ud.remote_qkey = q_key;
        if (!wr.wr.ud.ah || ibv_post_send(qp, &wr, &bad)) return fail("post");
    } else {
        struct ibv_recv_wr *bad, wr = {.sg_list = &sge, .num_sge = 1};
        if (ibv_post_recv(qp, &wr, &bad) || ibv_attach_mcast(qp, &mgid, mlid)) return fail("attach");
    }
    printf("joined %#x %#x\n", mlid, q_key);
    struct ibv_wc wc;
    int polled;
    while ((polled = ibv_poll_cq(cq, 1, &wc)) == 0) usleep(1000);
    if (polled < 0 || wc.status) return printf("completion: %s\n", ibv_wc_status_str(wc.status)), 1;
    if (!sends) printf("message %.*s\n", (int)wc.byte_len - 40, room + 40);
    if (!sends && ibv_detach_mcast(qp, &mgid, mlid)) return fail("detach");
    if ((status = ask(DELETE, JOIN))) return printf("leaving: status %#x\n", status), 1;
    return 0;
}
