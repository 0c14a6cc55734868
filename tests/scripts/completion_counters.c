/* Counts the operations of two queue pairs of urxe0 by the completion counters of rdma-core 65, without looking at a
 * completion queue. Prints "counted".
 *
 * The header may be of an older release, so what is new is declared here.
 */
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SENDS = 3, WRITES = 2, SIZE = 4000, PATIENCE_MS = 20000 };

enum {
    OP_SEND = 1 << 0,
    OP_RECV = 1 << 1,
    OP_RDMA_READ = 1 << 2,
    OP_REMOTE_RDMA_READ = 1 << 3,
    OP_RDMA_WRITE = 1 << 4,
    OP_REMOTE_RDMA_WRITE = 1 << 5,
};
enum { TYPE_WRS, TYPE_BYTES };

struct counter {
    struct ibv_context *context;
    uint32_t handle;
};

struct counter_attr {
    uint32_t comp_mask;
    unsigned int type;
    uint32_t flags;
};

struct attach_attr {
    uint32_t comp_mask;
    uint32_t op_mask;
};

struct counter_caps {
    uint64_t max_value;
    uint32_t max_counters;
    uint32_t supported_qp_attach_ops;
};

static int (*query_caps)(struct ibv_context *, struct counter_caps *, size_t);
static struct counter *(*create)(struct ibv_context *, struct counter_attr *);
static int (*destroy)(struct counter *);
static int (*set)(struct counter *, uint64_t);
static int (*set_err)(struct counter *, uint64_t);
static int (*inc)(struct counter *, uint64_t);
static int (*inc_err)(struct counter *, uint64_t);
static int (*read_value)(struct counter *, uint64_t *);
static int (*read_err)(struct counter *, uint64_t *);
static int (*attach)(struct ibv_qp *, struct counter *, struct attach_attr *);

static char memory[2][SIZE];

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
            exit(1); \
        } \
    } while (0)

static void find_functions(void)
{
#define FIND(function, name) CHECK((*(void **)&function = dlsym(RTLD_DEFAULT, name)) != NULL)
    FIND(query_caps, "_ibv_query_comp_cntr_caps");
    FIND(create, "ibv_create_comp_cntr");
    FIND(destroy, "ibv_destroy_comp_cntr");
    FIND(set, "ibv_set_comp_cntr");
    FIND(set_err, "ibv_set_err_comp_cntr");
    FIND(inc, "ibv_inc_comp_cntr");
    FIND(inc_err, "ibv_inc_err_comp_cntr");
    FIND(read_value, "ibv_read_comp_cntr");
    FIND(read_err, "ibv_read_err_comp_cntr");
    FIND(attach, "ibv_qp_attach_comp_cntr");
}

static struct ibv_context *open_urxe0(void)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    struct ibv_context *context = NULL;
    for (int i = 0; i < count && !context; i++)
        if (!strcmp(ibv_get_device_name(list[i]), "urxe0"))
            context = ibv_open_device(list[i]);
    CHECK(context != NULL);
    ibv_free_device_list(list);
    return context;
}

static struct counter *make_counter(struct ibv_context *context)
{
    struct counter *counter = create(context, &(struct counter_attr){ .type = TYPE_WRS });
    CHECK(counter != NULL);
    CHECK(counter->context == context);
    return counter;
}

static uint64_t value_of(struct counter *counter)
{
    uint64_t value;
    CHECK(read_value(counter, &value) == 0);
    return value;
}

static uint64_t errors_of(struct counter *counter)
{
    uint64_t value;
    CHECK(read_err(counter, &value) == 0);
    return value;
}

static void wait_until(uint64_t (*read_one)(struct counter *), struct counter *counter, uint64_t wanted)
{
    uint64_t value = 0;
    for (int ms = 0; ms < PATIENCE_MS && (value = read_one(counter)) != wanted; ms++)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    if (value != wanted) {
        fprintf(stderr, "%llu instead of %llu\n", (unsigned long long)value, (unsigned long long)wanted);
        exit(1);
    }
}

static void refuses_what_it_does_not_have(struct ibv_context *context)
{
    struct counter_caps caps = { 0 };
    CHECK(query_caps(context, &caps, sizeof caps) == 0);
    CHECK(caps.max_value == UINT64_MAX && caps.max_counters > 0);
    CHECK(caps.supported_qp_attach_ops == (OP_SEND | OP_RECV | OP_RDMA_READ | OP_RDMA_WRITE | OP_REMOTE_RDMA_WRITE));
    CHECK(query_caps(context, &caps, sizeof caps - 1) == EINVAL);
    CHECK(create(context, &(struct counter_attr){ .type = TYPE_BYTES }) == NULL && errno == EOPNOTSUPP);
    CHECK(create(context, &(struct counter_attr){ .type = 7 }) == NULL && errno == EINVAL);
    CHECK(create(context, &(struct counter_attr){ .flags = 1 }) == NULL && errno == EOPNOTSUPP);
    CHECK(create(context, &(struct counter_attr){ .comp_mask = 1 }) == NULL && errno == EOPNOTSUPP);
}

static void sets_and_increments(struct ibv_context *context)
{
    struct counter *counter = make_counter(context);
    CHECK(value_of(counter) == 0 && errors_of(counter) == 0);
    CHECK(set(counter, 40) == 0 && inc(counter, 2) == 0 && value_of(counter) == 42 && errors_of(counter) == 0);
    CHECK(set_err(counter, 6) == 0 && inc_err(counter, 1) == 0 && errors_of(counter) == 7 && value_of(counter) == 42);
    CHECK(set(counter, UINT64_MAX) == 0 && inc(counter, 1) == 0 && value_of(counter) == 0);
    CHECK(destroy(counter) == 0);
}

static void to_init(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
    };
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
}

static void connect_to(struct ibv_qp *qp, const struct ibv_qp *peer)
{
    union ibv_gid gid;
    CHECK(ibv_query_gid(qp->context, 1, 1, &gid) == 0);
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 1 } },
    };
    CHECK(ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
    };
    CHECK(ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* Not signaled: the counter alone tells. */
static void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, const struct ibv_mr *mr, uint32_t rkey)
{
    struct ibv_sge sge = { (uintptr_t)memory[0], SIZE, mr->lkey };
    struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;
    wr.wr.rdma.remote_addr = (uintptr_t)memory[1];
    wr.wr.rdma.rkey = rkey;
    CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void post_recv(struct ibv_qp *qp, const struct ibv_mr *mr)
{
    struct ibv_sge sge = { (uintptr_t)memory[1], SIZE, mr->lkey };
    struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
    CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void counts_operations(struct ibv_context *context)
{
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 32, NULL, NULL, 0);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, access);
    CHECK(pd && cq && mr);
    struct ibv_qp *qps[2];
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_init_attr attr = {
            .send_cq = cq,
            .recv_cq = cq,
            .cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
            .qp_type = IBV_QPT_RC,
        };
        CHECK((qps[i] = ibv_create_qp(pd, &attr)) != NULL);
    }
    struct counter *sent = make_counter(context), *read = make_counter(context), *received = make_counter(context);
    CHECK(attach(qps[0], sent, &(struct attach_attr){ .op_mask = OP_REMOTE_RDMA_READ }) == EOPNOTSUPP);
    CHECK(attach(qps[0], sent, &(struct attach_attr){ .op_mask = 1 << 6 }) == EOPNOTSUPP);
    CHECK(attach(qps[0], sent, &(struct attach_attr){ .comp_mask = 1, .op_mask = OP_SEND }) == EOPNOTSUPP);
    CHECK(attach(qps[0], sent, &(struct attach_attr){ .op_mask = 0 }) == EINVAL);
    CHECK(attach(qps[0], sent, &(struct attach_attr){ .op_mask = OP_SEND | OP_RDMA_WRITE }) == 0);
    CHECK(attach(qps[0], read, &(struct attach_attr){ .op_mask = OP_RDMA_WRITE | OP_RDMA_READ }) == EBUSY);
    to_init(qps[0]);
    to_init(qps[1]);
    CHECK(attach(qps[0], read, &(struct attach_attr){ .op_mask = OP_RDMA_READ }) == 0);
    CHECK(attach(qps[1], received, &(struct attach_attr){ .op_mask = OP_RECV | OP_REMOTE_RDMA_WRITE }) == 0);
    for (int i = 0; i < SENDS; i++)
        post_recv(qps[1], mr);
    connect_to(qps[0], qps[1]);
    connect_to(qps[1], qps[0]);
    CHECK(attach(qps[1], sent, &(struct attach_attr){ .op_mask = OP_SEND }) == EINVAL);

    memset(memory[0], 1, SIZE);
    for (int i = 0; i < SENDS; i++)
        post(qps[0], IBV_WR_SEND, mr, 0);
    wait_until(value_of, received, SENDS);
    CHECK(!memcmp(memory[0], memory[1], SIZE));
    memset(memory[0], 2, SIZE);
    for (int i = 0; i < WRITES; i++)
        post(qps[0], IBV_WR_RDMA_WRITE, mr, mr->rkey);
    wait_until(value_of, received, SENDS + WRITES);
    CHECK(!memcmp(memory[0], memory[1], SIZE));
    wait_until(value_of, sent, SENDS + WRITES);
    memset(memory[1], 3, SIZE);
    post(qps[0], IBV_WR_RDMA_READ, mr, mr->rkey);
    wait_until(value_of, read, 1);
    CHECK(!memcmp(memory[0], memory[1], SIZE));
    CHECK(errors_of(sent) == 0 && errors_of(read) == 0 && errors_of(received) == 0);

    /* A WRITE to nobody's memory is one error at either end, and what stands behind it another. */
    post(qps[0], IBV_WR_RDMA_WRITE, mr, mr->rkey ^ 0xff);
    wait_until(errors_of, sent, 1);
    wait_until(errors_of, received, 1);
    post(qps[0], IBV_WR_RDMA_READ, mr, mr->rkey);
    wait_until(errors_of, read, 1);
    CHECK(value_of(sent) == SENDS + WRITES && value_of(received) == SENDS + WRITES && value_of(read) == 1);

    CHECK(destroy(sent) == EBUSY && destroy(received) == EBUSY);
    CHECK(ibv_destroy_qp(qps[0]) == 0);
    CHECK(destroy(sent) == 0 && destroy(read) == 0 && destroy(received) == EBUSY);
    CHECK(ibv_destroy_qp(qps[1]) == 0);
    CHECK(destroy(received) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
}

int main(void)
{
    find_functions();
    struct ibv_context *context = open_urxe0();
    refuses_what_it_does_not_have(context);
    sets_and_increments(context);
    counts_operations(context);
    CHECK(ibv_close_device(context) == 0);
    puts("counted");
    return 0;
}
