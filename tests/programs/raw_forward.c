/* A bridge of two interfaces, and what is on its both sides. "forward QUEUES URXE" receives by so many queues on each interface, and
 * sends by the other, until SIGTERM; when nothing comes it prints how many frames it has forwarded and lost. "send COUNT WINDOW URXE"
 * sends so many frames, at most WINDOW of which are not acknowledged (0: no limit), and prints how many have left; "receive COUNT
 * WINDOW" takes so many, which must be all of them, and acknowledges them. */
#include "raw_ethernet.h"

#include <signal.h>

enum { QUEUES = 8, DEPTH = 512, FLOWS = 64, LENGTH = 200, PORT_AT = 34, NUMBER_AT = 42, SIDES = 2 };

/* Addresses that are not the interfaces'. A frame to the bridge's goes on to the host at its other side. */
static const uint8_t bridge[SIDES][6] = {{2, 1, 0, 0, 0, 1}, {2, 1, 0, 0, 0, 2}};
static const uint8_t hosts[SIDES][6] = {{2, 2, 0, 0, 0, 1}, {2, 2, 0, 0, 0, 2}};

static uint32_t number(const uint8_t *at, int bytes)
{
    uint32_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
}

static void put(uint8_t *at, int bytes, uint32_t value)
{
    for (int i = bytes; i-- > 0; value >>= 8)
        at[i] = (uint8_t)value;
}

/* A packet of UDP: of a flow that its source port names, with a number. */
static void packet(uint8_t *at, const uint8_t *to, uint32_t flow, uint32_t count)
{
    static const uint8_t headers[] = {8, 0, 0x45, 0, 0, LENGTH - 14, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2};
    memset(at, 0, LENGTH);
    memcpy(at, to, 6);
    memcpy(at + 6, there, 6);
    memcpy(at + 12, headers, sizeof headers);
    put(at + PORT_AT, 2, 1000 + flow);
    put(at + PORT_AT + 2, 2, 9);
    put(at + PORT_AT + 4, 2, LENGTH - PORT_AT);
    put(at + NUMBER_AT, 4, count);
}

/* An interface of the bridge. */
struct side {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_cq *tx_cq, *cqs[QUEUES];
    struct ibv_qp *tx, *rx;
    struct ibv_wq *wqs[QUEUES];
    struct ibv_rwq_ind_table *table;
    struct ibv_flow *rule;
    int owner[FLOWS];
};

static struct side sides[SIDES];
static unsigned queues;
static uint8_t *slots;
static volatile sig_atomic_t is_over;

static void end_it(int number)
{
    (void)number;
    is_over = 1;
}

/* A number of a slot: of which side and queue its receive is. */
static uint8_t *slot(uint64_t id)
{
    return slots + id * SLOT;
}

static void post(uint64_t id)
{
    struct side *side = &sides[id / DEPTH / QUEUES];
    struct ibv_sge list = {(uintptr_t)slot(id), SLOT, side->mr->lkey};
    struct ibv_recv_wr *bad, wr = {.wr_id = id, .sg_list = &list, .num_sge = 1};
    CHECK(ibv_post_wq_recv(side->wqs[id / DEPTH % QUEUES], &wr, &bad) == 0);
}

static void open_side(int which, struct ibv_device *device)
{
    struct side *side = &sides[which];
    size_t bytes = (size_t)SIDES * QUEUES * DEPTH * SLOT;
    CHECK((side->context = ibv_open_device(device)) && (side->pd = ibv_alloc_pd(side->context)));
    CHECK((side->mr = ibv_reg_mr(side->pd, slots, bytes, IBV_ACCESS_LOCAL_WRITE)));
    CHECK((side->tx_cq = ibv_create_cq(side->context, QUEUES * DEPTH, NULL, NULL, 0)));
    struct ibv_qp_init_attr init = {.send_cq = side->tx_cq, .recv_cq = side->tx_cq, .qp_type = IBV_QPT_RAW_PACKET};
    init.cap.max_send_wr = QUEUES * DEPTH;
    init.cap.max_send_sge = 1;
    CHECK((side->tx = ibv_create_qp(side->pd, &init)) && move(side->tx, IBV_QPS_INIT, IBV_QP_PORT) == 0);
    CHECK(move(side->tx, IBV_QPS_RTR, 0) == 0 && move(side->tx, IBV_QPS_RTS, 0) == 0);
    for (unsigned i = 0; i < queues; i++) {
        CHECK((side->cqs[i] = ibv_create_cq(side->context, DEPTH, NULL, NULL, 0)));
        struct ibv_wq_init_attr wq = {
            .wq_type = IBV_WQT_RQ, .max_wr = DEPTH, .max_sge = 1, .pd = side->pd, .cq = side->cqs[i],
        };
        struct ibv_wq_attr ready = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY};
        CHECK((side->wqs[i] = ibv_create_wq(side->context, &wq)) && ibv_modify_wq(side->wqs[i], &ready) == 0);
        for (uint64_t at = 0; at < DEPTH; at++)
            post(((uint64_t)which * QUEUES + i) * DEPTH + at);
    }
    struct ibv_rwq_ind_table_init_attr ind = {.ind_tbl = side->wqs};
    while (1u << ind.log_ind_tbl_size < queues)
        ind.log_ind_tbl_size++;
    CHECK((side->table = ibv_create_rwq_ind_table(side->context, &ind)));
    uint8_t key[40];
    for (unsigned i = 0; i < sizeof key; i++)
        key[i] = (uint8_t)(0x2c + 37 * i);
    struct ibv_qp_init_attr_ex ex = {
        .qp_type = IBV_QPT_RAW_PACKET,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
        .pd = side->pd,
        .rwq_ind_tbl = side->table,
        .rx_hash_conf = {.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ, .rx_hash_key_len = sizeof key, .rx_hash_key = key},
    };
    ex.rx_hash_conf.rx_hash_fields_mask =
        IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP;
    CHECK((side->rx = ibv_create_qp_ex(side->context, &ex)));
    struct rule rule = rule_to(bridge[which]);
    CHECK((side->rule = ibv_create_flow(side->rx, &rule.attr)));
    memset(side->owner, -1, sizeof side->owner);
}

static void close_side(struct side *side)
{
    CHECK(ibv_destroy_flow(side->rule) == 0 && ibv_destroy_qp(side->rx) == 0 && ibv_destroy_rwq_ind_table(side->table) == 0);
    for (unsigned i = 0; i < queues; i++)
        CHECK(ibv_destroy_wq(side->wqs[i]) == 0 && ibv_destroy_cq(side->cqs[i]) == 0);
    CHECK(ibv_destroy_qp(side->tx) == 0 && ibv_destroy_cq(side->tx_cq) == 0 && ibv_dereg_mr(side->mr) == 0);
    CHECK(ibv_dealloc_pd(side->pd) == 0 && ibv_close_device(side->context) == 0);
}

/* Sends what a queue has received by the other interface, from where it is. Returns how much there was. */
static int pass(int from, unsigned queue)
{
    struct side *side = &sides[from], *other = &sides[!from];
    struct ibv_wc wc[64];
    int found = ibv_poll_cq(side->cqs[queue], 64, wc);
    CHECK(found >= 0);
    for (int i = 0; i < found; i++) {
        uint8_t *at = slot(wc[i].wr_id);
        uint32_t flow = number(at + PORT_AT, 2) - 1000;
        CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].byte_len == LENGTH && flow < FLOWS);
        /* Every flow stays on its queue. */
        CHECK(side->owner[flow] < 0 || side->owner[flow] == (int)queue);
        side->owner[flow] = (int)queue;
        memcpy(at, hosts[!from], 6);
        memcpy(at + 6, bridge[!from], 6);
        struct ibv_sge list = {(uintptr_t)at, LENGTH, other->mr->lkey};
        struct ibv_send_wr *bad, wr = {.wr_id = wc[i].wr_id, .sg_list = &list, .num_sge = 1, .opcode = IBV_WR_SEND};
        wr.send_flags = IBV_SEND_SIGNALED;
        CHECK(ibv_post_send(other->tx, &wr, &bad) == 0);
    }
    return found;
}

/* Takes back the slots of frames that have left. */
static unsigned reuse(struct side *side)
{
    struct ibv_wc wc[64];
    int found = ibv_poll_cq(side->tx_cq, 64, wc);
    CHECK(found >= 0);
    for (int i = 0; i < found; i++) {
        CHECK(wc[i].status == IBV_WC_SUCCESS);
        post(wc[i].wr_id);
    }
    return (unsigned)found;
}

static unsigned long both(const char *name)
{
    return counter("urxe0", name) + counter("urxe1", name);
}

static void forward(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0] && list[1] && (slots = calloc((size_t)SIDES * QUEUES * DEPTH, SLOT)));
    /* Devices come in any order. */
    int is_swapped = strcmp(ibv_get_device_name(list[0]), "urxe0") != 0;
    for (int i = 0; i < SIDES; i++)
        open_side(i, list[is_swapped ? !i : i]);
    ibv_free_device_list(list);
    puts("ready");
    fflush(stdout);
    unsigned long forwarded = 0, told[3] = {0};
    for (double idle = now(); !is_over;) {
        unsigned some = 0;
        for (int i = 0; i < SIDES; i++) {
            for (unsigned queue = 0; queue < queues; queue++)
                some += (unsigned)pass(i, queue);
            unsigned left = reuse(&sides[i]);
            some += left;
            forwarded += left;
        }
        if (some)
            idle = now();
        if (now() - idle > 0.05) {
            unsigned long seen[3] = {forwarded, both("raw_rx_lost") + both("raw_rx_no_receive"), both("raw_tx_lost")};
            if (memcmp(seen, told, sizeof seen) != 0)
                printf("%lu %lu %lu\n", seen[0], seen[1], seen[2]);
            fflush(stdout);
            memcpy(told, seen, sizeof seen);
            idle = now();
        }
    }
    for (int i = 0; i < SIDES; i++) {
        unsigned used = 0;
        for (unsigned queue = 0; queue < queues; queue++) {
            int flow = 0;
            while (flow < FLOWS && sides[i].owner[flow] != (int)queue)
                flow++;
            used += flow < FLOWS;
        }
        /* Acknowledgments are one flow. */
        CHECK(i == 1 || used == queues);
        close_side(&sides[i]);
    }
    free(slots);
}

/* Waits for as many acknowledgments. */
static void take_acks(struct end *end, unsigned *taken, unsigned wanted)
{
    while (*taken < wanted) {
        struct ibv_wc wc = next(end->recv_cq);
        CHECK(wc.status == IBV_WC_SUCCESS && number(memory + SLOT * (1 + wc.wr_id) + NUMBER_AT, 4) == *taken);
        post_recv(end, wc.wr_id, SLOT * (1 + wc.wr_id), SLOT);
        ++*taken;
    }
}

static void send_all(unsigned long most, unsigned window)
{
    struct end end = end_in(IBV_QPS_RTS, NULL);
    struct rule rule = rule_to(hosts[0]);
    struct ibv_flow *made = flow(&end, &rule);
    for (uint64_t i = 0; i < 16; i++)
        post_recv(&end, i, SLOT * (1 + i), SLOT);
    unsigned acks = 0;
    for (unsigned long i = 0; i < most; i++) {
        if (window && i >= window)
            take_acks(&end, &acks, (unsigned)(i / window));
        packet(memory, bridge[0], i % FLOWS, (uint32_t)(i / FLOWS));
        struct ibv_sge list = part(0, LENGTH);
        CHECK(post_list(&end, &list, 1, 0) == 0 && next(end.send_cq).status == IBV_WC_SUCCESS);
    }
    if (window)
        take_acks(&end, &acks, (unsigned)(most / window));
    printf("%lu\n", most - counter("urxe0", "raw_tx_lost"));
    CHECK(ibv_destroy_flow(made) == 0);
    finish(&end);
}

static void receive_all(unsigned long most, unsigned window)
{
    struct end end = end_in(IBV_QPS_RTS, NULL);
    struct rule rule = rule_to(hosts[1]);
    for (uint64_t i = 0; i < 16; i++)
        post_recv(&end, i, SLOT * (1 + i), SLOT);
    struct ibv_flow *made = flow(&end, &rule);
    puts("ready");
    fflush(stdout);
    static uint32_t turn[FLOWS];
    for (unsigned long i = 1; i <= most; i++) {
        struct ibv_wc wc = next(end.recv_cq);
        const uint8_t *at = memory + SLOT * (1 + wc.wr_id);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == LENGTH);
        uint32_t flow = number(at + PORT_AT, 2) - 1000;
        /* Each, and in order. */
        CHECK(flow < FLOWS && number(at + NUMBER_AT, 4) == turn[flow]++);
        post_recv(&end, wc.wr_id, SLOT * (1 + wc.wr_id), SLOT);
        if (i % window == 0) {
            packet(memory, bridge[1], 0, (uint32_t)(i / window - 1));
            struct ibv_sge list = part(0, LENGTH);
            CHECK(post_list(&end, &list, 1, 0) == 0 && next(end.send_cq).status == IBV_WC_SUCCESS);
        }
    }
    CHECK(ibv_destroy_flow(made) == 0);
    finish(&end);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 4);
    if (strcmp(argv[1], "forward") == 0) {
        CHECK((queues = (unsigned)atoi(argv[2])) >= 1 && queues <= QUEUES && signal(SIGTERM, end_it) != SIG_ERR);
        urxe = argv[3];
        forward();
    } else {
        open_device();
        urxe = argv[argc - 1];
        if (strcmp(argv[1], "send") == 0)
            send_all(strtoul(argv[2], NULL, 10), (unsigned)atoi(argv[3]));
        else
            receive_all(strtoul(argv[2], NULL, 10), (unsigned)atoi(argv[3]));
        close_device();
    }
    puts("ok");
    return 0;
}
