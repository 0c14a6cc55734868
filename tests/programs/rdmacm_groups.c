// Joins a group by rdma_cm, and tells each event, for as long as it runs; when the membership has ended, it joins again.
//
//     rdmacm_groups ADDRESS GROUP [udp|ipoib] [full|sendonly]
//
// GROUP is an IPv4 group, or an MGID for an address of AF_IB. Prints "qkey KEY" of a queue pair, "joined MGID KEY", "ended STATUS".
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <infiniband/ib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;

static int fail(const char *what) {
    return perror(what), 1;
}

static void put_gid(const char *what, const union ibv_gid *gid, uint32_t key) {
    char text[INET6_ADDRSTRLEN];
    printf("%s %s %#x\n", what, inet_ntop(AF_INET6, gid, text, sizeof text), key);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 3) return puts("rdmacm_groups ADDRESS GROUP [udp|ipoib] [full|sendonly]"), 1;
    int is_ipoib = argc > 3 && !strcmp(argv[3], "ipoib"), sends = argc > 4 && !strcmp(argv[4], "sendonly");
    struct sockaddr_in own = {.sin_family = AF_INET};
    struct sockaddr_storage group = {0};
    struct sockaddr_in *ip = (void *)&group;
    struct sockaddr_ib *ib = (void *)&group;
    inet_pton(AF_INET, argv[1], &own.sin_addr);
    if (inet_pton(AF_INET, argv[2], &ip->sin_addr) == 1)
        ip->sin_family = AF_INET;
    else if (inet_pton(AF_INET6, argv[2], &ib->sib_addr) == 1)
        ib->sib_family = AF_IB;
    if (!(channel = rdma_create_event_channel())) return fail("channel");
    if (rdma_create_id(channel, &id, NULL, is_ipoib ? RDMA_PS_IPOIB : RDMA_PS_UDP)) return fail("id");
    struct rdma_cm_event *event;
    if (group.ss_family == AF_INET) {
        if (rdma_resolve_addr(id, (void *)&own, (void *)&group, 2000)) return fail("resolve");
        if (rdma_get_cm_event(channel, &event) || event->event != RDMA_CM_EVENT_ADDR_RESOLVED) return fail("resolved");
        rdma_ack_cm_event(event);
        struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_UD, .cap = {1, 1, 1, 1, 0}};
        struct ibv_qp_attr attr;
        if (rdma_create_qp(id, NULL, &init) || ibv_query_qp(id->qp, &attr, IBV_QP_QKEY, &init)) return fail("queue pair");
        printf("qkey %#x\n", attr.qkey);
    } else if (rdma_bind_addr(id, (void *)&own)) {
        return fail("bind");
    }
    for (;;) {
        struct rdma_cm_join_mc_attr_ex join = {
            .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
            .join_flags = sends ? RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER : RDMA_MC_JOIN_FLAG_FULLMEMBER,
            .addr = (void *)&group,
        };
        if (rdma_join_multicast_ex(id, &join, NULL)) return fail("join");
        for (int status = 0; !status;) {
            if (rdma_get_cm_event(channel, &event)) return fail("event");
            status = event->status;
            if (event->event == RDMA_CM_EVENT_MULTICAST_JOIN)
                put_gid("joined", &event->param.ud.ah_attr.grh.dgid, event->param.ud.qkey);
            else
                printf("%s %d\n", event->event == RDMA_CM_EVENT_MULTICAST_ERROR ? "ended" : rdma_event_str(event->event), status);
            rdma_ack_cm_event(event);
        }
        rdma_leave_multicast(id, (void *)&group);
    }
}
