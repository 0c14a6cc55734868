/*
 * What NVSHMEM's transport for InfiniBand without GPU-initiated communication (ibrc) calls, in its order, without NVSHMEM or a GPU.
 *
 *     ibrc_peer PE GID_INDEX ADDRESS PORT COUNT QUEUE_PAIRS
 *
 * PE 0 listens at PORT for PE 1 by TCP, which stands for the bootstrap: both exchange handles and are at barriers. COUNT rounds are
 * compared; with 0 PE 0 puts and gets without end. libibverbs is taken by dlopen and dlsym. Each device has a completion queue as
 * large as it may be, an SRQ for active messages, queue pairs without receives of their own, and one that is connected with
 * itself, whose READs order what peers have written (ibrc's "CST"). Atomic operations are messages that the target carries out
 * and answers by an inline WRITE with immediate, and those of the device.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FAIL(...) (printf(__VA_ARGS__), printf("\n"), fflush(stdout), exit(3))
#define CHECK(x) do { if (!(x)) FAIL("line %d: %s: %m", __LINE__, #x); } while (0)

enum { SRQ_DEPTH = 1024, QP_DEPTH = 1024, INLINE = 128, READS = 4, HEAP = 8 << 20, PARTS = 64, MOST = 8 };
/* In the heap: data, what is got back, a signal, a word for the device's atomic operations, one for messages, an answer. */
enum { GOT = HEAP / 2, WORDS = HEAP - 4096, SIGNAL = WORDS, COUNTER = WORDS + 8, BY_MESSAGE = WORDS + 16, ANSWER = WORDS + 24 };
/* wr_id of an answer, which nobody waits for. */
enum { ANSWERING = 1 };

#define FUNCTIONS(F) F(get_device_list) F(free_device_list) F(open_device) F(close_device) F(get_device_name) F(query_device) \
    F(alloc_pd) F(dealloc_pd) F(reg_mr) F(dereg_mr) F(create_cq) F(destroy_cq) F(create_srq) F(destroy_srq) F(create_qp) F(destroy_qp) \
    F(modify_qp) F(query_gid)
#define POINTER(name) typeof(ibv_##name) *name;
static struct { FUNCTIONS(POINTER) int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *); } verbs;

/* An atomic operation by a message. */
struct message { uint64_t add, answer_at; uint32_t answer_key, queue_pair; };
struct buffer { struct message message; };
struct handle { uint32_t qpn[MOST]; union ibv_gid gid; uint64_t heap; uint32_t rkey; };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_srq *srq;
static struct ibv_qp *qps[MOST], *cst;
static struct ibv_port_attr port;
static union ibv_gid gid;
static struct ibv_mr *heap_mr, *pool_mr, *dummy_mr;
static struct buffer pool[SRQ_DEPTH];
static uint64_t dummy;
static char *heap;
static struct handle mine, peer;
static int gid_index, count, tcp, answers;

static void load(void)
{
    void *library = dlopen("libibverbs.so.1", RTLD_LAZY);
    CHECK(library);
#define LOAD(name) CHECK(verbs.name = (typeof(verbs.name))dlsym(library, "ibv_" #name));
    FUNCTIONS(LOAD)
    LOAD(query_port)
}

static void exchange(const void *out, void *in, size_t length)
{
    CHECK(send(tcp, out, length, MSG_NOSIGNAL) == (ssize_t)length);
    CHECK(recv(tcp, in, length, MSG_WAITALL) == (ssize_t)length);
}

static void barrier(void)
{
    char word = 'b', other;
    exchange(&word, &other, 1);
}

static void meet(int pe, const char *address, int number)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(number) };
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, address, &at.sin_addr);
    if (pe) {
        tcp = listener;
        while (connect(tcp, (struct sockaddr *)&at, sizeof at))
            usleep(20000);
        return;
    }
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    CHECK(!bind(listener, (struct sockaddr *)&at, sizeof at) && !listen(listener, 1));
    CHECK((tcp = accept(listener, NULL, NULL)) >= 0);
}

static struct ibv_qp *endpoint(void)
{
    struct ibv_qp_init_attr init = { .send_cq = send_cq, .recv_cq = recv_cq, .srq = srq, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = QP_DEPTH, .max_recv_wr = 0, .max_send_sge = 1, .max_recv_sge = 0, .max_inline_data = INLINE } };
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE
        | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC };
    struct ibv_qp *qp = verbs.create_qp(pd, &init);
    CHECK(qp);
    CHECK(!verbs.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    return qp;
}

static void connect_endpoint(struct ibv_qp *qp, uint32_t qpn, union ibv_gid dgid)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = port.active_mtu, .dest_qp_num = qpn, .max_dest_rd_atomic = READS,
        .min_rnr_timer = 12, .ah_attr = { .is_global = 1, .port_num = 1,
        .grh = { .dgid = dgid, .sgid_index = gid_index, .hop_limit = 255 } } };
    CHECK(!verbs.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
        | IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_DEST_RD_ATOMIC));
    /* ibrc waits with 20; a test shall not take a minute. */
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 16, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = READS };
    CHECK(!verbs.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY
        | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void refill(struct buffer *buffer)
{
    struct ibv_sge sge = { (uintptr_t)buffer, sizeof *buffer, pool_mr->lkey };
    struct ibv_recv_wr wr = { .wr_id = (uintptr_t)buffer, .sg_list = &sge, .num_sge = 1 }, *bad;
    CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
}

static void open_all(int queue_pairs)
{
    struct ibv_device_attr device;
    int found;
    struct ibv_device **list = verbs.get_device_list(&found);
    CHECK(list && found > 0);
    printf("device %s\n", verbs.get_device_name(list[0]));
    CHECK(context = verbs.open_device(list[0]));
    CHECK(!verbs.query_device(context, &device) && !verbs.query_port(context, 1, &port));
    CHECK(port.state == IBV_PORT_ACTIVE && port.lid == 0);
    CHECK(!verbs.query_gid(context, 1, gid_index, &gid));
    CHECK(pd = verbs.alloc_pd(context));
    verbs.free_device_list(list);
    struct ibv_srq_init_attr init = { .attr = { .max_wr = SRQ_DEPTH, .max_sge = 1 } };
    CHECK(send_cq = verbs.create_cq(context, device.max_cqe, NULL, NULL, 0));
    CHECK(srq = verbs.create_srq(pd, &init));
    CHECK(recv_cq = verbs.create_cq(context, SRQ_DEPTH, NULL, NULL, 0));
    for (int i = 0; i < queue_pairs; i++)
        mine.qpn[i] = (qps[i] = endpoint())->qp_num;
    int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    CHECK(!posix_memalign((void **)&heap, 4096, HEAP));
    memset(heap, 0, HEAP);
    CHECK(heap_mr = verbs.reg_mr(pd, heap, HEAP, all | IBV_ACCESS_RELAXED_ORDERING));
    CHECK(dummy_mr = verbs.reg_mr(pd, &dummy, sizeof dummy, all));
    mine.gid = gid, mine.heap = (uintptr_t)heap, mine.rkey = heap_mr->rkey;
    exchange(&mine, &peer, sizeof mine);
    for (int i = 0; i < queue_pairs; i++)
        connect_endpoint(qps[i], peer.qpn[i], peer.gid);
    CHECK(pool_mr = verbs.reg_mr(pd, pool, sizeof pool, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
    for (int i = 0; i < SRQ_DEPTH; i++)
        refill(&pool[i]);
    cst = endpoint();
    connect_endpoint(cst, cst->qp_num, gid);
    barrier();
}

static void post(struct ibv_qp *qp, struct ibv_send_wr wr, void *at, uint32_t length, uint32_t lkey)
{
    struct ibv_sge sge = { (uintptr_t)at, length, lkey };
    struct ibv_send_wr *bad;
    wr.sg_list = &sge, wr.num_sge = 1, wr.send_flags |= IBV_SEND_SIGNALED;
    CHECK(!ibv_post_send(qp, &wr, &bad));
}

static void failed(const struct ibv_wc *wc)
{
    if (wc->status)
        FAIL("failed: status %d %s", wc->status, "of a completion");
}

/* ibrc's progress: messages are carried out and answered. Returns how many requests were acknowledged. */
static int progress(void)
{
    struct ibv_wc wcs[8];
    int done = 0, found = ibv_poll_cq(send_cq, 8, wcs);
    for (int i = 0; i < found; i++) {
        failed(&wcs[i]);
        done += wcs[i].wr_id != ANSWERING;
    }
    int came = ibv_poll_cq(recv_cq, 8, wcs);
    for (int i = 0; i < came; i++) {
        struct buffer *buffer = (struct buffer *)(uintptr_t)wcs[i].wr_id;
        failed(&wcs[i]);
        if (wcs[i].wc_flags & IBV_WC_WITH_IMM) {
            answers++;
        } else {
            uint64_t *word = (uint64_t *)(heap + BY_MESSAGE), old = *word;
            struct message message = buffer->message;
            CHECK(wcs[i].byte_len == sizeof message);
            *word = old + message.add;
            struct ibv_send_wr answer = { .wr_id = ANSWERING, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = IBV_SEND_INLINE, .imm_data = htonl(1),
                .wr.rdma = { message.answer_at, message.answer_key } };
            post(qps[message.queue_pair], answer, &old, sizeof old, 0);
        }
        refill(buffer);
    }
    return done;
}

/* ibrc's quiet. */
static void quiet(int outstanding)
{
    while (outstanding > 0)
        outstanding -= progress();
}

static struct ibv_send_wr one_sided(enum ibv_wr_opcode opcode, uint64_t offset)
{
    return (struct ibv_send_wr){ .opcode = opcode, .wr.rdma = { peer.heap + offset, peer.rkey } };
}

static void fill(char *at, size_t length, uint64_t seed)
{
    for (size_t i = 0; i < length; i += 8) {
        uint64_t value = seed = seed * 6364136223846793005 + 1442695040888963407;
        memcpy(at + i, &value, 8);
    }
}

/* A put in parts over all queue pairs, a signal behind it, and a get of what was put. */
static void put_and_get(int round, int queue_pairs, int signalled)
{
    /* What is got back ends before the words. */
    size_t part = GOT / PARTS;
    fill(heap, GOT, round);
    for (int i = 0; i < PARTS; i++)
        post(qps[i % queue_pairs], one_sided(IBV_WR_RDMA_WRITE, i * part), heap + i * part, part, heap_mr->lkey);
    quiet(PARTS);
    if (signalled) {
        uint64_t signal = round + 1;
        struct ibv_send_wr wr = one_sided(IBV_WR_RDMA_WRITE, SIGNAL);
        wr.send_flags = IBV_SEND_INLINE;
        post(qps[0], wr, &signal, sizeof signal, 0);
        quiet(1);
    }
    for (int i = 0; i < PARTS; i++)
        post(qps[i % queue_pairs], one_sided(IBV_WR_RDMA_READ, i * part), heap + GOT + i * part,
             part - (i == PARTS - 1) * 4096, heap_mr->lkey);
    quiet(PARTS);
    if (memcmp(heap, heap + GOT, GOT - 4096))
        FAIL("what was got differs in round %d", round);
}

static void atomics(int round, int queue_pairs)
{
    uint64_t old, *answer = (uint64_t *)(heap + ANSWER);
    struct ibv_send_wr wr = { .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .wr.atomic = { peer.heap + COUNTER, 5, 0, peer.rkey } };
    post(qps[0], wr, &dummy, sizeof dummy, dummy_mr->lkey);
    quiet(1);
    if (dummy != (uint64_t)round * 6)
        FAIL("FETCH_AND_ADD gave %lu in round %d", (unsigned long)dummy, round);
    wr = (struct ibv_send_wr){ .opcode = IBV_WR_ATOMIC_CMP_AND_SWP,
        .wr.atomic = { peer.heap + COUNTER, (uint64_t)round * 6 + 5, (uint64_t)round * 6 + 6, peer.rkey } };
    post(qps[0], wr, &dummy, sizeof dummy, dummy_mr->lkey);
    quiet(1);
    if (dummy != (uint64_t)round * 6 + 5)
        FAIL("CMP_AND_SWP gave %lu in round %d", (unsigned long)dummy, round);
    for (int i = 0; i < queue_pairs; i++) {
        struct message message = { 3, (uintptr_t)answer, heap_mr->rkey, i };
        struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE };
        answers = 0;
        post(qps[i], send, &message, sizeof message, 0);
        for (int acked = 0; !acked || !answers;)
            acked += progress();
        old = *(volatile uint64_t *)answer;
        if (old != ((uint64_t)round * queue_pairs + i) * 3)
            FAIL("the answer is %lu in round %d", (unsigned long)old, round);
    }
}

/* What the peer has written is seen behind a READ of our own. */
static void consistent(int round)
{
    volatile uint64_t *signal = (uint64_t *)(heap + SIGNAL);
    static char wanted[GOT];
    while (*signal != (uint64_t)round + 1)
        progress();
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_READ, .wr.rdma = { (uintptr_t)heap, heap_mr->rkey } };
    post(cst, wr, &dummy, sizeof dummy, dummy_mr->lkey);
    quiet(1);
    fill(wanted, GOT, round);
    if (memcmp(wanted, heap, GOT))
        FAIL("what was put differs in round %d", round);
}

/* Until the peer is at the barrier too, its messages are carried out. */
static void barrier_with_progress(void)
{
    char word = 'b', other;
    CHECK(send(tcp, &word, 1, MSG_NOSIGNAL) == 1);
    while (recv(tcp, &other, 1, MSG_DONTWAIT) != 1)
        progress();
}

static void close_all(int queue_pairs)
{
    for (int i = 0; i < queue_pairs; i++)
        CHECK(!verbs.destroy_qp(qps[i]));
    CHECK(!verbs.destroy_qp(cst) && !verbs.dereg_mr(dummy_mr) && !verbs.dereg_mr(heap_mr) && !verbs.dereg_mr(pool_mr));
    CHECK(!verbs.destroy_cq(send_cq) && !verbs.destroy_cq(recv_cq) && !verbs.destroy_srq(srq));
    CHECK(!verbs.dealloc_pd(pd) && !verbs.close_device(context));
}

int main(int words, char **word)
{
    CHECK(words == 7);
    setvbuf(stdout, NULL, _IOLBF, 0);
    int pe = atoi(word[1]), queue_pairs = atoi(word[6]);
    gid_index = atoi(word[2]), count = atoi(word[5]);
    CHECK(queue_pairs > 0 && queue_pairs <= MOST);
    load();
    meet(pe, word[3], atoi(word[4]));
    open_all(queue_pairs);
    /* A signal cannot be waited for while the other end changes data: they take turns. */
    for (int round = 0; !count || round < count; round++) {
        if (!count && pe)
            for (;;)
                progress();
        if (pe == 0 || count) {
            if (pe == 1)
                consistent(round), barrier_with_progress();
            put_and_get(round, queue_pairs, count != 0);
            if (count)
                atomics(round, queue_pairs);
            if (pe == 0 && count)
                barrier_with_progress(), consistent(round);
        }
        if (count)
            barrier_with_progress();
        printf("done %d\n", round + 1);
    }
    barrier();
    close_all(queue_pairs);
    printf("compared %d\n", count);
}
