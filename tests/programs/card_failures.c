/* Has two connected queue pairs of one device fail in the ways that a card's vendor_err tells apart, and prints status and vendor_err of
   each, and whether a silent peer was waited for as long as asked. Usage: card_failures GID_INDEX LEAST_MS */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(x) do { if (!(x)) { printf("line %d: %s\n", __LINE__, #x); exit(1); } } while (0)
#define LEN 4096

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr, *closed;
static union ibv_gid gid;
static int gid_index;
static char buffer[LEN], other[LEN];
static struct ibv_qp *a, *b;

static struct ibv_qp *make(void)
{
    struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    CHECK(qp);
    return qp;
}

static void join(struct ibv_qp *qp, uint32_t dest, int access, int timeout, int retries)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = dest, .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1, .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } } };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTS, .timeout = timeout, .retry_cnt = retries, .rnr_retry = 0, .max_rd_atomic = 1 };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
        | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void to_error(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1e3 + at.tv_nsec / 1e6;
}

/* Posts one request on a fresh pair and prints how it completes. Returns the time that it took, in milliseconds. */
static double fails(const char *name, int access, struct ibv_send_wr wr, struct ibv_sge sge, int broken)
{
    struct ibv_send_wr *bad;
    struct ibv_wc wc;
    a = make(), b = make();
    /* Only a silent peer is to be given up. */
    int timeout = broken == 1 ? 1 : 18, retries = broken == 1 ? 1 : 7;
    join(a, b->qp_num, IBV_ACCESS_LOCAL_WRITE, timeout, retries);
    join(b, a->qp_num, access, timeout, retries);
    if (broken)
        to_error(broken == 1 ? b : a);
    wr.sg_list = &sge;
    wr.num_sge = 1;
    double start = now();
    CHECK(!ibv_post_send(a, &wr, &bad));
    int count;
    while (!(count = ibv_poll_cq(cq, 1, &wc)))
        ;
    CHECK(count == 1);
    double took = now() - start;
    printf("%s %d 0x%x\n", name, wc.status, wc.vendor_err);
    CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
    return took;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    gid_index = atoi(argv[1]);
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0] && (context = ibv_open_device(list[0])));
    CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
    CHECK(!ibv_query_gid(context, 1, gid_index, &gid));
    int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    CHECK((mr = ibv_reg_mr(pd, buffer, LEN, all)) && (closed = ibv_reg_mr(pd, other, LEN, 0)));
    struct ibv_sge sge = { (uintptr_t) buffer, 64, mr->lkey }, longer = sge, unknown = sge;
    longer.length = LEN + 1;
    unknown.lkey ^= 0x5a5a00;
    struct ibv_sge constant = { (uintptr_t) other, 64, closed->lkey };
    struct ibv_send_wr write = { .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { (uintptr_t) buffer + 1024, mr->rkey } };
    struct ibv_send_wr read = write, wrong = write, beyond = write, send = { .opcode = IBV_WR_SEND };
    read.opcode = IBV_WR_RDMA_READ;
    wrong.wr.rdma.rkey ^= 0x5a5a00;
    beyond.wr.rdma.remote_addr += LEN;

    fails("sge-length", all, write, longer, 0);
    fails("lkey", all, write, unknown, 0);
    fails("no-local-write", all, read, constant, 0);
    fails("flushed", all, write, sge, 2);
    fails("no-remote-write", IBV_ACCESS_REMOTE_READ, write, sge, 0);
    fails("rkey", all, wrong, sge, 0);
    fails("address", all, beyond, sge, 0);
    fails("no-receive", all, send, sge, 0);
    double took = fails("silent", all, write, sge, 1);
    printf("%s\n", took >= atof(argv[2]) ? "waited" : "too early");
    return 0;
}
