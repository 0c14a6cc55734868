/* Two threads of a process, a queue pair each, that play ping-pong by every operation. Compiled with each sanitizer, and run
 * under each debugger: without an argument the program is correct.
 *
 *   send-freed    sends from a buffer that is registered and freed
 *   write-freed   the peer's buffer is registered and freed when an RDMA WRITE comes
 *   leak          forgets an allocation
 *   overflow      counts beyond INT_MAX
 *   crash         writes to address 8
 *   race          counts in both threads without a lock
 *   unset         looks at memory that nobody has written
 */
#include <infiniband/verbs.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 20, SIZE = 6000, GID_INDEX = 1 };
#define CHECK(what) do { \
    if (!(what)) { fprintf(stderr, "%d: %s\n", __LINE__, #what); exit(2); } \
} while (0)

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr, *counter_mr;
    char *buffer;
    uint64_t *counter;
    struct end *peer;
    int waits_for_events, first;
};

static const char *mistake = "";
static long shared;
static pthread_barrier_t start;

static int makes(const char *name) { return strcmp(mistake, name) == 0; }

static void open_end(struct end *end, struct ibv_context *context, int waits_for_events) {
    end->context = context;
    end->waits_for_events = waits_for_events;
    end->first = !waits_for_events;
    CHECK(end->pd = ibv_alloc_pd(context));
    CHECK(end->channel = ibv_create_comp_channel(context));
    CHECK(end->cq = ibv_create_cq(context, 16, end, end->channel, 0));
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    CHECK(end->buffer = malloc(SIZE));
    CHECK(end->mr = ibv_reg_mr(end->pd, end->buffer, SIZE, access));
    CHECK(end->counter = calloc(1, sizeof *end->counter));
    CHECK(end->counter_mr = ibv_reg_mr(end->pd, end->counter, sizeof *end->counter, access));
    struct ibv_qp_init_attr init = {
        .send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
    };
    CHECK(end->qp = ibv_create_qp(end->pd, &init));
    CHECK(init.cap.max_send_wr >= 4);
}

static void connect_end(struct end *end) {
    struct ibv_port_attr port;
    union ibv_gid gid;
    CHECK(!ibv_query_port(end->context, 1, &port) && port.state == IBV_PORT_ACTIVE);
    CHECK(!ibv_query_gid(end->context, 1, GID_INDEX, &gid));
    int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access};
    CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = end->peer->qp->qp_num,
        .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = GID_INDEX, .hop_limit = 1}},
    };
    CHECK(!ibv_modify_qp(end->qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
                                            | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    CHECK(!ibv_modify_qp(end->qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
                                            | IBV_QP_MAX_QP_RD_ATOMIC));
    struct ibv_qp_attr now;
    struct ibv_qp_init_attr made;
    CHECK(!ibv_query_qp(end->qp, &now, IBV_QP_STATE, &made) && now.qp_state == IBV_QPS_RTS && made.recv_cq == end->cq);
}

static struct ibv_sge of_buffer(struct end *end) {
    return (struct ibv_sge){.addr = (uintptr_t)end->buffer, .length = SIZE, .lkey = end->mr->lkey};
}

static void post_receive(struct end *end) {
    struct ibv_sge sge = of_buffer(end);
    struct ibv_recv_wr wr = {.wr_id = IBV_WC_RECV, .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(!ibv_post_recv(end->qp, &wr, &bad));
}

static void post(struct end *end, enum ibv_wr_opcode opcode) {
    struct ibv_sge sge = of_buffer(end);
    struct ibv_send_wr wr = {.wr_id = IBV_WC_SEND, .sg_list = &sge, .num_sge = 1, .opcode = opcode}, *bad;
    wr.wr.rdma.remote_addr = (uintptr_t)end->peer->buffer;
    wr.wr.rdma.rkey = end->peer->mr->rkey;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        sge.length = sizeof *end->counter;
        wr.wr.atomic.remote_addr = (uintptr_t)end->peer->counter;
        wr.wr.atomic.rkey = end->peer->counter_mr->rkey;
        wr.wr.atomic.compare_add = 1;
    }
    CHECK(!ibv_post_send(end->qp, &wr, &bad));
}

/* Takes completions until `left` have come. */
static void complete(struct end *end, int left) {
    while (left > 0) {
        struct ibv_wc wc[4];
        int count = ibv_poll_cq(end->cq, 4, wc);
        CHECK(count >= 0);
        for (int i = 0; i < count; i++) {
            if (wc[i].status != IBV_WC_SUCCESS) {
                fprintf(stderr, "%d: %s\n", __LINE__, ibv_wc_status_str(wc[i].status));
                exit(2);
            }
            if (wc[i].wr_id == IBV_WC_RECV) CHECK(wc[i].byte_len == SIZE && wc[i].qp_num == end->qp->qp_num);
        }
        left -= count;
        if (count || !end->waits_for_events) continue;
        CHECK(!ibv_req_notify_cq(end->cq, 0));
        count = ibv_poll_cq(end->cq, 4, wc);
        left -= count;
        if (count) continue;
        /* Set by libibverbs, which MemorySanitizer does not see. */
        struct ibv_cq *cq = NULL;
        void *context = NULL;
        CHECK(!ibv_get_cq_event(end->channel, &cq, &context) && cq == end->cq && context == end);
        ibv_ack_cq_events(cq, 1);
    }
}

static void check_buffer(struct end *end, char wanted) {
    for (int i = 0; i < SIZE; i++) CHECK(end->buffer[i] == wanted);
}

static void *play(void *of) {
    struct end *end = of;
    pthread_barrier_wait(&start);
    if (makes("race")) shared++;
    for (int round = 0; round < ROUNDS; round++) {
        char ping = 'a' + round % 26;
        if (end->first) {
            memset(end->buffer, ping, SIZE);
            post(end, IBV_WR_SEND);
            complete(end, 1);
            memset(end->buffer, 0, SIZE);
            post_receive(end);
            complete(end, 1);
            check_buffer(end, ping + 1);
        } else {
            complete(end, 1);
            check_buffer(end, ping);
            memset(end->buffer, ping + 1, SIZE);
            post(end, IBV_WR_SEND);
            complete(end, 1);
            if (round + 1 < ROUNDS) post_receive(end);
        }
    }
    return NULL;
}

/* One-sided operations, by one thread. */
static void reach_over(struct end *end) {
    memset(end->buffer, 'W', SIZE);
    post(end, IBV_WR_RDMA_WRITE);
    complete(end, 1);
    check_buffer(end->peer, 'W');
    memset(end->peer->buffer, 'R', SIZE);
    post(end, IBV_WR_RDMA_READ);
    complete(end, 1);
    check_buffer(end, 'R');
    post(end, IBV_WR_ATOMIC_FETCH_AND_ADD);
    complete(end, 1);
    CHECK(*end->peer->counter == 1 && end->buffer[0] == 0 && end->buffer[8] == 'R');
}

static void close_end(struct end *end) {
    CHECK(!ibv_destroy_qp(end->qp));
    CHECK(!ibv_dereg_mr(end->mr) && !ibv_dereg_mr(end->counter_mr));
    CHECK(!ibv_destroy_cq(end->cq) && !ibv_destroy_comp_channel(end->channel));
    CHECK(!ibv_dealloc_pd(end->pd));
    if (!makes(end->first ? "send-freed" : "write-freed")) free(end->buffer);
    free(end->counter);
}

int main(int count, char **arguments) {
    if (count > 1) mistake = arguments[1];
    struct ibv_device **devices = ibv_get_device_list(NULL);
    CHECK(devices && devices[0]);
    struct ibv_context *context = ibv_open_device(devices[0]);
    CHECK(context);
    ibv_free_device_list(devices);
    struct ibv_device_attr device;
    CHECK(!ibv_query_device(context, &device) && device.max_qp > 0);
    struct end ends[2] = {{.peer = &ends[1]}, {.peer = &ends[0]}};
    for (int i = 0; i < 2; i++) open_end(&ends[i], context, i);
    for (int i = 0; i < 2; i++) connect_end(&ends[i]);
    post_receive(&ends[1]);
    pthread_t threads[2];
    CHECK(!pthread_barrier_init(&start, NULL, 2));
    for (int i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], NULL, play, &ends[i]));
    for (int i = 0; i < 2; i++) CHECK(!pthread_join(threads[i], NULL));
    reach_over(&ends[0]);
    if (makes("send-freed")) {
        free(ends[0].buffer);
        post(&ends[0], IBV_WR_RDMA_WRITE);
        complete(&ends[0], 1);
    }
    if (makes("write-freed")) {
        free(ends[1].buffer);
        post(&ends[0], IBV_WR_RDMA_WRITE);
        complete(&ends[0], 1);
    }
    if (makes("leak")) {
        char *volatile forgotten = malloc(123);
        forgotten = NULL;
        (void)forgotten;
    }
    if (makes("unset")) {
        char *volatile fresh = malloc(SIZE);
        CHECK(fresh);
        if (fresh[SIZE / 2] == 'W') puts("written");
        free(fresh);
    }
    if (makes("overflow")) printf("%d\n", INT_MAX + count);
    if (makes("crash")) *(volatile int *)8 = 1;
    for (int i = 0; i < 2; i++) close_end(&ends[i]);
    CHECK(!ibv_close_device(context));
    puts("played");
    return 0;
}
