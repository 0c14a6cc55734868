/* Opens urxe0 by several copies of libibverbs in one process, and sends messages between every two of them.
 *
 *     libibverbs_copies together|later LIBIBVERBS...
 *
 * `together` loads all copies before it uses any; `later` loads each after the one before has opened its device.
 */
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COPIES = 4, SIZE = 10000, PATIENCE_MS = 20000 };

struct copy {
    const char *path;
    struct ibv_device **(*get_device_list)(int *);
    const char *(*get_device_name)(struct ibv_device *);
    struct ibv_context *(*open_device)(struct ibv_device *);
    int (*close_device)(struct ibv_context *);
    int (*query_gid)(struct ibv_context *, uint8_t, int, union ibv_gid *);
    struct ibv_pd *(*alloc_pd)(struct ibv_context *);
    int (*dealloc_pd)(struct ibv_pd *);
    struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
    int (*dereg_mr)(struct ibv_mr *);
    struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *);
    int (*destroy_comp_channel)(struct ibv_comp_channel *);
    struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
    int (*destroy_cq)(struct ibv_cq *);
    int (*get_cq_event)(struct ibv_comp_channel *, struct ibv_cq **, void **);
    void (*ack_cq_events)(struct ibv_cq *, unsigned int);
    int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
    int (*destroy_qp)(struct ibv_qp *);
    struct ibv_qp_ex *(*qp_to_qp_ex)(struct ibv_qp *);
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    union ibv_gid gid;
    char memory[2][SIZE];
};

struct end {
    struct copy *copy;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
};

static const char *doing = "start";

static void check(int holds, const char *what, const struct copy *copy)
{
    if (!holds) {
        fprintf(stderr, "%s: %s: %s (errno %d)\n", copy->path, doing, what, errno);
        exit(1);
    }
}

static void load(struct copy *copy)
{
    void *handle = dlopen(copy->path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define FIND(member, name) check((*(void **)&copy->member = dlsym(handle, name)) != NULL, name, copy)
    FIND(get_device_list, "ibv_get_device_list");
    FIND(get_device_name, "ibv_get_device_name");
    FIND(open_device, "ibv_open_device");
    FIND(close_device, "ibv_close_device");
    FIND(query_gid, "ibv_query_gid");
    FIND(alloc_pd, "ibv_alloc_pd");
    FIND(dealloc_pd, "ibv_dealloc_pd");
    FIND(reg_mr_iova2, "ibv_reg_mr_iova2");
    FIND(dereg_mr, "ibv_dereg_mr");
    FIND(create_comp_channel, "ibv_create_comp_channel");
    FIND(destroy_comp_channel, "ibv_destroy_comp_channel");
    FIND(create_cq, "ibv_create_cq");
    FIND(destroy_cq, "ibv_destroy_cq");
    FIND(get_cq_event, "ibv_get_cq_event");
    FIND(ack_cq_events, "ibv_ack_cq_events");
    FIND(modify_qp, "ibv_modify_qp");
    FIND(destroy_qp, "ibv_destroy_qp");
    FIND(qp_to_qp_ex, "ibv_qp_to_qp_ex");
}

static void open_urxe0(struct copy *copy)
{
    doing = "open";
    int count = 0;
    struct ibv_device **list = copy->get_device_list(&count);
    for (int i = 0; i < count; i++)
        if (!strcmp(copy->get_device_name(list[i]), "urxe0"))
            copy->context = copy->open_device(list[i]);
    check(copy->context != NULL, "no urxe0", copy);
    check(copy->query_gid(copy->context, 1, 1, &copy->gid) == 0, "query_gid", copy);
    check((copy->pd = copy->alloc_pd(copy->context)) != NULL, "alloc_pd", copy);
    copy->mr = copy->reg_mr_iova2(copy->pd, copy->memory, sizeof copy->memory, (uintptr_t)copy->memory,
                                  IBV_ACCESS_LOCAL_WRITE);
    check(copy->mr != NULL, "reg_mr", copy);
}

static struct end make_end(struct copy *copy)
{
    struct end end = { .copy = copy };
    check((end.channel = copy->create_comp_channel(copy->context)) != NULL, "create_comp_channel", copy);
    check((end.cq = copy->create_cq(copy->context, 16, NULL, end.channel, 0)) != NULL, "create_cq", copy);
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = end.cq,
        .recv_cq = end.cq,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = copy->pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND,
    };
    struct verbs_context *verbs = verbs_get_ctx_op(copy->context, create_qp_ex);
    check(verbs != NULL, "no create_qp_ex", copy);
    check((end.qp = verbs->create_qp_ex(copy->context, &attr)) != NULL, "create_qp_ex", copy);
    check(copy->qp_to_qp_ex(end.qp) != NULL, "qp_to_qp_ex", copy);
    return end;
}

static void connect_to(struct end *end, const struct end *peer)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    check(end->copy->modify_qp(end->qp, &attr, mask) == 0, "INIT", end->copy);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qp->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer->copy->gid, .sgid_index = 1, .hop_limit = 1 } },
    };
    mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
           IBV_QP_MIN_RNR_TIMER;
    check(end->copy->modify_qp(end->qp, &attr, mask) == 0, "RTR", end->copy);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
    };
    mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    check(end->copy->modify_qp(end->qp, &attr, mask) == 0, "RTS", end->copy);
}

/* Sleeps for a completion event, as a program does that must not spin. */
static void wait_for(struct end *end, enum ibv_wc_opcode opcode)
{
    struct ibv_wc wc;
    int count;
    while ((count = ibv_poll_cq(end->cq, 1, &wc)) == 0) {
        check(ibv_req_notify_cq(end->cq, 0) == 0, "req_notify_cq", end->copy);
        if ((count = ibv_poll_cq(end->cq, 1, &wc)) != 0)
            break;
        struct pollfd readable = { .fd = end->channel->fd, .events = POLLIN };
        check(poll(&readable, 1, PATIENCE_MS) == 1, "no event", end->copy);
        struct ibv_cq *cq;
        void *argument;
        check(end->copy->get_cq_event(end->channel, &cq, &argument) == 0 && cq == end->cq, "get_cq_event", end->copy);
        end->copy->ack_cq_events(cq, 1);
    }
    check(count == 1, "poll_cq", end->copy);
    check(wc.status == IBV_WC_SUCCESS, "not a success", end->copy);
    check(wc.opcode == opcode, "another opcode", end->copy);
}

/* Half of it by ibv_post_send, half by ibv_wr_send: the two have layouts of their own. */
static void transfer(struct end *from, struct end *to, int by_wr, int seed)
{
    for (int i = 0; i < SIZE; i++)
        from->copy->memory[0][i] = (char)(i * 7 + seed);
    memset(to->copy->memory[1], 0, SIZE);
    struct ibv_sge into = { (uintptr_t)to->copy->memory[1], SIZE, to->copy->mr->lkey };
    struct ibv_recv_wr recv = { .sg_list = &into, .num_sge = 1 }, *bad_recv;
    check(ibv_post_recv(to->qp, &recv, &bad_recv) == 0, "post_recv", to->copy);
    struct ibv_sge out = { (uintptr_t)from->copy->memory[0], SIZE, from->copy->mr->lkey };
    if (by_wr) {
        struct ibv_qp_ex *qp = from->copy->qp_to_qp_ex(from->qp);
        ibv_wr_start(qp);
        qp->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_send(qp);
        ibv_wr_set_sge(qp, out.lkey, out.addr, out.length);
        check(ibv_wr_complete(qp) == 0, "wr_complete", from->copy);
    } else {
        struct ibv_send_wr send = { .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
        struct ibv_send_wr *bad_send;
        check(ibv_post_send(from->qp, &send, &bad_send) == 0, "post_send", from->copy);
    }
    wait_for(to, IBV_WC_RECV);
    wait_for(from, IBV_WC_SEND);
    check(!memcmp(from->copy->memory[0], to->copy->memory[1], SIZE), "other bytes", to->copy);
}

static void destroy(struct end *end)
{
    check(end->copy->destroy_qp(end->qp) == 0, "destroy_qp", end->copy);
    check(end->copy->destroy_cq(end->cq) == 0, "destroy_cq", end->copy);
    check(end->copy->destroy_comp_channel(end->channel) == 0, "destroy_comp_channel", end->copy);
}

int main(int argc, char **argv)
{
    static struct copy copies[COPIES];
    int count = argc - 2;
    if (count < 2 || count > COPIES) {
        fprintf(stderr, "usage: %s together|later LIBIBVERBS...\n", argv[0]);
        return 2;
    }
    int later = !strcmp(argv[1], "later");
    for (int i = 0; i < count; i++) {
        copies[i].path = argv[i + 2];
        load(&copies[i]);
        for (int j = 0; j < i; j++)
            check(copies[j].open_device != copies[i].open_device, "no copy of its own", &copies[i]);
        if (later)
            open_urxe0(&copies[i]);
    }
    for (int i = 0; i < count && !later; i++)
        open_urxe0(&copies[i]);
    doing = "exchange";
    for (int i = 0; i < count; i++) {
        for (int j = 0; j <= i; j++) {
            struct end a = make_end(&copies[i]), b = make_end(&copies[j]);
            connect_to(&a, &b);
            connect_to(&b, &a);
            for (int by_wr = 0; by_wr < 2; by_wr++) {
                transfer(&a, &b, by_wr, 16 * i + j);
                transfer(&b, &a, by_wr, 16 * j + i + 1);
            }
            destroy(&a);
            destroy(&b);
            printf("exchanged %d %d\n", i, j);
        }
    }
    doing = "close";
    for (int i = 0; i < count; i++) {
        check(copies[i].dereg_mr(copies[i].mr) == 0, "dereg_mr", &copies[i]);
        check(copies[i].dealloc_pd(copies[i].pd) == 0, "dealloc_pd", &copies[i]);
        check(copies[i].close_device(copies[i].context) == 0, "close_device", &copies[i]);
    }
    return 0;
}
