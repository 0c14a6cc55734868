/* The calls of VPP's rdma driver (`mode ibv`) in its order, on lo, with as many receive queues as the argument says: one
 * queue pair sends, work queues receive by two RSS queue pairs and four rules. Prints "ok". */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                         \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);    \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

enum { SLOT = 256, DEPTH = 1024, MOST = 8, FLOWS = 32, ROUNDS = 16, PARTS = 5 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t *memory;

/* A random address that is not the interface's. */
static const uint8_t mac[6] = {2, 0xfe, 1, 2, 3, 4};

struct rule {
    struct ibv_flow_attr attr;
    struct ibv_flow_spec_eth eth;
};

static struct ibv_flow *flow(struct ibv_qp *qp, const uint8_t *value, const uint8_t *mask, uint16_t kind, uint32_t flags)
{
    /* `size` stays 0. */
    struct rule rule = {.attr = {.type = IBV_FLOW_ATTR_NORMAL, .num_of_specs = 1, .port = 1, .flags = flags}};
    rule.eth.type = IBV_FLOW_SPEC_ETH;
    rule.eth.size = sizeof rule.eth;
    memcpy(rule.eth.val.dst_mac, value, 6);
    memcpy(rule.eth.mask.dst_mac, mask, 6);
    rule.eth.val.ether_type = htons(kind);
    rule.eth.mask.ether_type = kind ? 0xffff : 0;
    struct ibv_flow *made = ibv_create_flow(qp, &rule.attr);
    CHECK(made);
    return made;
}

static void move(struct ibv_qp *qp, enum ibv_qp_state state, int more)
{
    struct ibv_qp_attr attr = {.qp_state = state, .port_num = 1};
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | more) == 0);
}

/* A packet of TCP over IPv4 or IPv6, of a flow that its source port names; the payload says which of the flow it is. */
static uint32_t packet(uint8_t *at, int is_v6, uint16_t number, uint16_t turn)
{
    uint8_t *start = at;
    memcpy(at, mac, 6);
    memset(at + 6, 2, 6);
    at += 12;
    if (is_v6) {
        static const uint8_t header[10] = {0x86, 0xdd, 0x60, 0, 0, 0, 0, 22, 6, 64};
        memcpy(at, header, sizeof header);
        memset(at + 10, 0x20, 32);
        at += 42;
    } else {
        static const uint8_t header[22] = {8, 0, 0x45, 0, 0, 42, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2};
        memcpy(at, header, sizeof header);
        at += sizeof header;
    }
    memset(at, 0, 22);
    at[0] = (uint8_t)(number >> 8);
    at[1] = (uint8_t)number;
    at[12] = 0x50;
    at[20] = (uint8_t)(turn >> 8);
    at[21] = (uint8_t)turn;
    return (uint32_t)(at + 22 - start);
}

struct queue {
    struct ibv_cq *cq;
    struct ibv_wq *wq;
    uint8_t *memory;
    unsigned head, turn[2][FLOWS];
};

/* Receives carry no wr_id, and have several parts: completions are taken by order. */
static void post(struct queue *queue, unsigned slot)
{
    struct ibv_sge parts[PARTS];
    for (int i = 0; i < PARTS; i++)
        parts[i] = (struct ibv_sge){(uintptr_t)(queue->memory + slot % DEPTH * SLOT) + (unsigned)i * 50, 50, mr->lkey};
    struct ibv_recv_wr *bad, wr = {.sg_list = parts, .num_sge = PARTS};
    CHECK(ibv_post_wq_recv(queue->wq, &wr, &bad) == 0);
}

/* Sends frames that are at the start of the memory, a slot each, and waits until they have left. */
static void send_slots(struct ibv_qp *tx, struct ibv_cq *cq, const uint32_t *lengths, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct ibv_sge part = {(uintptr_t)(memory + i * SLOT), lengths[i], mr->lkey};
        struct ibv_send_wr *bad, wr = {.sg_list = &part, .num_sge = 1, .opcode = IBV_WR_SEND};
        wr.send_flags = i + 1 == count ? IBV_SEND_SIGNALED : 0;
        CHECK(ibv_post_send(tx, &wr, &bad) == 0);
    }
    struct ibv_wc wc;
    while (ibv_poll_cq(cq, 1, &wc) == 0)
        ;
    CHECK(wc.status == IBV_WC_SUCCESS);
}

/* Takes what has come to the queues. */
static void take(struct queue *queues, unsigned count, void (*each)(const uint8_t *frame, unsigned queue))
{
    for (unsigned i = 0; i < count; i++) {
        struct ibv_wc wc[256];
        int found = ibv_poll_cq(queues[i].cq, 256, wc);
        CHECK(found >= 0);
        for (int n = 0; n < found; n++) {
            CHECK(wc[n].status == IBV_WC_SUCCESS);
            each(queues[i].memory + queues[i].head % DEPTH * SLOT, i);
            post(&queues[i], queues[i].head++);
        }
    }
}

static unsigned copies[2], others;

static void count_copies(const uint8_t *frame, unsigned queue)
{
    (void)queue;
    if (frame[0] & 1)
        copies[frame[12] == 0x86]++;
    else
        others++;
}

/* Two of the rules match a frame of IPv6 to a group, and one of them takes it. */
static void multicast(struct ibv_qp *tx, struct ibv_cq *cq, struct queue *queues, unsigned count)
{
    static const uint8_t groups[2][6] = {{1, 0, 0x5e, 1, 2, 3}, {0x33, 0x33, 0, 0, 0, 1}};
    uint32_t lengths[4];
    for (int i = 0; i < 4; i++)
        lengths[i] = packet(memory + i * SLOT, i % 2, 0, ROUNDS);
    for (int i = 0; i < 2; i++)
        memcpy(memory + i * SLOT, groups[i], 6);
    send_slots(tx, cq, lengths, 4);
    /* When those behind them have come, all copies have: each queue is asked once more. */
    for (int is_last = 0; !is_last;) {
        is_last = others == 2;
        take(queues, count, count_copies);
    }
    CHECK(copies[0] == 1 && copies[1] == 1);
}

/* Vectors of Microsoft's "Verifying the RSS Hash Calculation" over TCP and IPv4: source, destination, ports, and hash. */
static const struct { uint8_t addresses[8]; uint16_t from, to; uint32_t hash; } vectors[5] = {
    {{66, 9, 149, 187, 161, 142, 100, 80}, 2794, 1766, 0x51ccc178},
    {{199, 92, 111, 2, 65, 69, 140, 83}, 14230, 4739, 0xc626b0ea},
    {{24, 19, 198, 95, 12, 22, 207, 184}, 12898, 38024, 0x5c2b394a},
    {{38, 27, 205, 30, 209, 142, 163, 6}, 48228, 2217, 0xafc7327f},
    {{153, 39, 163, 191, 202, 188, 127, 2}, 44251, 1303, 0x10e828a2},
};
static unsigned checked;

static void check_vector(const uint8_t *frame, unsigned queue)
{
    for (unsigned i = 0; i < 5; i++)
        if (memcmp(frame + 26, vectors[i].addresses, 8) == 0) {
            CHECK(queue == vectors[i].hash % 4);
            checked++;
        }
}

/* A table of four queues, and packets whose hash is known. */
static void known_hashes(struct ibv_qp *tx, struct ibv_cq *cq, struct queue *queues)
{
    static uint8_t key[40] = {
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
        0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    };
    static const uint8_t all[6] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    struct ibv_wq *table[4] = {queues[0].wq, queues[1].wq, queues[2].wq, queues[3].wq};
    struct ibv_rwq_ind_table_init_attr ind = {.log_ind_tbl_size = 2, .ind_tbl = table};
    struct ibv_rwq_ind_table *rwq = ibv_create_rwq_ind_table(context, &ind);
    CHECK(rwq);
    struct ibv_qp_init_attr_ex ex = {
        .qp_type = IBV_QPT_RAW_PACKET,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
        .pd = pd,
        .rwq_ind_tbl = rwq,
        .rx_hash_conf = {.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ, .rx_hash_key_len = sizeof key, .rx_hash_key = key},
    };
    ex.rx_hash_conf.rx_hash_fields_mask =
        IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP;
    struct ibv_qp *rx = ibv_create_qp_ex(context, &ex);
    CHECK(rx);
    struct ibv_flow *made = flow(rx, mac, all, 0, 0);
    uint32_t lengths[5];
    for (unsigned i = 0; i < 5; i++) {
        uint8_t *at = memory + i * SLOT;
        lengths[i] = packet(at, 0, vectors[i].from, 0);
        memcpy(at + 26, vectors[i].addresses, 8);
        at[36] = (uint8_t)(vectors[i].to >> 8);
        at[37] = (uint8_t)vectors[i].to;
    }
    send_slots(tx, cq, lengths, 5);
    while (checked < 5)
        take(queues, 4, check_vector);
    CHECK(ibv_destroy_flow(made) == 0 && ibv_destroy_qp(rx) == 0 && ibv_destroy_rwq_ind_table(rwq) == 0);
}

int main(int argc, char **argv)
{
    unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) : 1, size = 1, log = 0;
    CHECK(count >= 1 && count <= MOST);
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0] && (context = ibv_open_device(list[0])));
    struct ibv_device_attr_ex device;
    CHECK(ibv_query_device_ex(context, NULL, &device) == 0);
    CHECK(device.rss_caps.supported_qpts & 1 << IBV_QPT_RAW_PACKET && device.max_wq_type_rq >= MOST);
    CHECK(device.rss_caps.max_rwq_indirection_table_size >= MOST && (device.rss_caps.rx_hash_fields_mask & 0x3f) == 0x3f);
    size_t bytes = (size_t)SLOT * DEPTH * (MOST + 1);
    CHECK((pd = ibv_alloc_pd(context)) && (memory = calloc(1, bytes)));
    CHECK((mr = ibv_reg_mr(pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE)));

    struct ibv_cq *tx_cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = tx_cq, .recv_cq = tx_cq, .qp_type = IBV_QPT_RAW_PACKET};
    init.cap.max_send_wr = DEPTH;
    init.cap.max_send_sge = 1;
    struct ibv_qp *tx = ibv_create_qp(pd, &init);
    CHECK(tx_cq && tx);
    move(tx, IBV_QPS_INIT, IBV_QP_PORT);
    move(tx, IBV_QPS_RTR, 0);
    move(tx, IBV_QPS_RTS, 0);

    static struct queue queues[MOST];
    for (unsigned i = 0; i < count; i++) {
        struct queue *queue = &queues[i];
        struct ibv_cq_init_attr_ex attr = {.cqe = DEPTH};
        CHECK((queue->cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &attr))));
        struct ibv_wq_init_attr wq = {.wq_type = IBV_WQT_RQ, .max_wr = DEPTH, .max_sge = 8, .pd = pd, .cq = queue->cq};
        CHECK((queue->wq = ibv_create_wq(context, &wq)));
        struct ibv_wq_attr ready = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY};
        CHECK(ibv_modify_wq(queue->wq, &ready) == 0);
        queue->memory = memory + (size_t)SLOT * DEPTH * (i + 1);
    }
    /* A number of queues that is no power of two fills a larger table. */
    while (size < count)
        size *= 2, log++;
    size *= 4, log += 2;
    struct ibv_wq *table[MOST * 4];
    for (unsigned i = 0; i < size; i++)
        table[i] = queues[i % count].wq;
    struct ibv_rwq_ind_table_init_attr ind = {.log_ind_tbl_size = log, .ind_tbl = table};
    struct ibv_rwq_ind_table *rwq = ibv_create_rwq_ind_table(context, &ind);
    CHECK(rwq);
    uint8_t key[40];
    for (unsigned i = 0; i < sizeof key; i++)
        key[i] = (uint8_t)(0x2c + 37 * i);
    struct ibv_qp_init_attr_ex ex = {
        .qp_type = IBV_QPT_RAW_PACKET,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
        .pd = pd,
        .rwq_ind_tbl = rwq,
        .rx_hash_conf = {.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ, .rx_hash_key_len = 39, .rx_hash_key = key},
    };
    CHECK(!ibv_create_qp_ex(context, &ex) && errno == EINVAL);
    ex.rx_hash_conf.rx_hash_key_len = sizeof key;
    ex.rx_hash_conf.rx_hash_fields_mask = 1u << 31;
    CHECK(!ibv_create_qp_ex(context, &ex) && errno == EOPNOTSUPP);
    struct ibv_qp *rx[2];
    for (int i = 0; i < 2; i++) {
        ex.rx_hash_conf.rx_hash_fields_mask = i ? 0x3c : 0x33;
        CHECK((rx[i] = ibv_create_qp_ex(context, &ex)));
    }
    /* It has no queues of its own. */
    struct ibv_sge sge = {(uintptr_t)memory, 60, mr->lkey};
    struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
    CHECK(ibv_post_send(rx[0], &wr, &bad) != 0 && bad == &wr);
    static const uint8_t all[6] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, group[6] = {1, 0, 0, 0, 0, 0};
    struct ibv_flow *flows[4] = {
        flow(rx[1], mac, all, 0x86dd, 0),
        flow(rx[1], group, group, 0x86dd, IBV_FLOW_ATTR_FLAGS_DONT_TRAP),
        flow(rx[0], mac, all, 0, 0),
        flow(rx[0], group, group, 0, IBV_FLOW_ATTR_FLAGS_DONT_TRAP),
    };
    for (unsigned i = 0; i < count; i++)
        for (unsigned slot = 0; slot < DEPTH; slot++)
            post(&queues[i], slot);

    static int owner[2][FLOWS];
    memset(owner, -1, sizeof owner);
    unsigned received = 0, used = 0;
    for (uint16_t turn = 0; turn < ROUNDS; turn++) {
        struct ibv_sge parts[2 * FLOWS];
        struct ibv_send_wr wrs[2 * FLOWS];
        for (unsigned i = 0; i < 2 * FLOWS; i++) {
            uint8_t *at = memory + i * SLOT;
            uint32_t length = packet(at, i % 2, (uint16_t)(i / 2), turn);
            parts[i] = (struct ibv_sge){(uintptr_t)at, length, mr->lkey};
            wrs[i] = (struct ibv_send_wr){.sg_list = &parts[i], .num_sge = 1, .opcode = IBV_WR_SEND, .next = &wrs[i + 1]};
        }
        wrs[2 * FLOWS - 1].next = NULL;
        wrs[2 * FLOWS - 1].send_flags = IBV_SEND_SIGNALED;
        CHECK(ibv_post_send(tx, wrs, &bad) == 0);
        struct ibv_wc wc[256];
        while (ibv_poll_cq(tx_cq, 256, wc) == 0)
            ;
        CHECK(wc[0].status == IBV_WC_SUCCESS);
        while (received < (turn + 1u) * 2 * FLOWS)
            for (unsigned i = 0; i < count; i++) {
                struct queue *queue = &queues[i];
                int found = ibv_poll_cq(queue->cq, 256, wc);
                CHECK(found >= 0);
                for (int n = 0; n < found; n++, received++) {
                    uint8_t *at = queue->memory + queue->head % DEPTH * SLOT;
                    int is_v6 = at[12] == 0x86;
                    uint8_t *tcp = at + (is_v6 ? 54 : 34);
                    CHECK(wc[n].status == IBV_WC_SUCCESS && wc[n].byte_len == (is_v6 ? 76u : 56u));
                    CHECK(wc[n].qp_num == queue->wq->wq_num && tcp[1] < FLOWS);
                    /* Every flow stays on its queue, in order. */
                    int *own = &owner[is_v6][tcp[1]];
                    CHECK(*own < 0 || *own == (int)i);
                    *own = (int)i;
                    CHECK(queue->turn[is_v6][tcp[1]]++ == (unsigned)(tcp[20] << 8 | tcp[21]));
                    post(queue, queue->head++);
                }
            }
    }
    for (unsigned i = 0; i < count; i++)
        used += queues[i].head > 0;
    CHECK(used == count);
    multicast(tx, tx_cq, queues, count);

    /* Rules are made anew when the interface is registered. */
    CHECK(ibv_destroy_flow(flows[2]) == 0);
    flows[2] = flow(rx[0], mac, all, 0, 0);
    for (int i = 0; i < 4; i++)
        CHECK(ibv_destroy_flow(flows[i]) == 0);
    if (count == 4)
        known_hashes(tx, tx_cq, queues);
    /* In the wrong order first. */
    CHECK(ibv_destroy_wq(queues[0].wq) == EBUSY && ibv_destroy_rwq_ind_table(rwq) == EBUSY);
    struct ibv_wq_attr failed = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_ERR};
    CHECK(ibv_modify_wq(queues[0].wq, &failed) == 0);
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(queues[0].cq, 1, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
    failed.wq_state = IBV_WQS_RDY;
    CHECK(ibv_modify_wq(queues[0].wq, &failed) == EINVAL);
    if (argc > 2) {
        /* As VPP does: everything is left to the device. */
        CHECK(ibv_close_device(context) == 0);
        puts("ok");
        return 0;
    }
    CHECK(ibv_destroy_qp(rx[0]) == 0 && ibv_destroy_qp(rx[1]) == 0 && ibv_destroy_rwq_ind_table(rwq) == 0);
    for (unsigned i = 0; i < count; i++)
        CHECK(ibv_destroy_wq(queues[i].wq) == 0 && ibv_destroy_cq(queues[i].cq) == 0);
    CHECK(ibv_destroy_qp(tx) == 0 && ibv_destroy_cq(tx_cq) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    ibv_free_device_list(list);
    puts("ok");
    return 0;
}
