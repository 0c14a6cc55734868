/* Segmentation, VLAN tags taken out, tags and counters of flow rules. Prints "ok". */
#include "raw_ethernet.h"

enum { TAG = 0x1234567, MSS = 1448, PAYLOAD = 5000, TCP_HEADER = 14 + 20 + 32 };

static struct ibv_cq_ex *extended(void)
{
    struct ibv_cq_init_attr_ex init = {
        .cqe = 64,
        .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_QP_NUM |
                    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    };
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &init);
    CHECK(cq);
    return cq;
}

/* Waits for a completion, which the caller reads between this and ibv_end_poll(3). */
static void start(struct ibv_cq_ex *cq)
{
    struct ibv_poll_cq_attr attr = {0};
    int result;
    while ((result = ibv_start_poll(cq, &attr)) == ENOENT)
        ;
    CHECK(result == 0 && cq->status == IBV_WC_SUCCESS);
}

/* Adds a specification to the first one. */
static void add(struct rule *rule, const void *spec, size_t length)
{
    memcpy((uint8_t *)&rule->eth + sizeof rule->eth, spec, length);
    rule->attr.num_of_specs = 2;
}

static uint32_t tagged_frame(int tpid, int tci)
{
    frame(here, 64);
    memmove(memory + 16, memory + 12, 52);
    memory[12] = (uint8_t)(tpid >> 8);
    memory[13] = (uint8_t)tpid;
    memory[14] = (uint8_t)(tci >> 8);
    memory[15] = (uint8_t)tci;
    return 68;
}

static struct end extended_end(uint32_t mask, uint32_t flags, uint16_t max_tso_header)
{
    struct end end;
    CHECK((end.send_cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
    end.recv_cq = ibv_cq_ex_to_cq(extended());
    struct ibv_qp_init_attr_ex init = {
        .send_cq = end.send_cq,
        .recv_cq = end.recv_cq,
        .qp_type = IBV_QPT_RAW_PACKET,
        .cap = {16, 16, 3, 2, 128},
        .comp_mask = IBV_QP_INIT_ATTR_PD | mask,
        .pd = pd,
        .create_flags = flags,
        .max_tso_header = max_tso_header,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO,
    };
    CHECK((end.qp = ibv_create_qp_ex(context, &init)));
    CHECK(!move(end.qp, IBV_QPS_INIT, IBV_QP_PORT) && !move(end.qp, IBV_QPS_RTR, 0) && !move(end.qp, IBV_QPS_RTS, 0));
    return end;
}

static void send_and_expect(struct end *from, struct ibv_cq *to, uint32_t length, uint32_t received, int cvlan)
{
    struct ibv_sge list = part(0, length);
    CHECK(post_list(from, &list, 1, 0) == 0 && next(from->send_cq).status == IBV_WC_SUCCESS);
    struct ibv_cq_ex *cq = (struct ibv_cq_ex *)to;
    start(cq);
    CHECK(ibv_wc_read_byte_len(cq) == received && ibv_wc_read_cvlan(cq) == cvlan);
    CHECK(ibv_wc_read_flow_tag(cq) == TAG && ibv_wc_read_completion_ts(cq) != 0);
    ibv_end_poll(cq);
}

static struct rule tagging_rule(void)
{
    struct rule rule = rule_to(here);
    struct ibv_flow_spec_action_tag tag = {.type = IBV_FLOW_SPEC_ACTION_TAG, .size = sizeof tag, .tag_id = TAG};
    add(&rule, &tag, sizeof tag);
    return rule;
}

/* The tag of 802.1Q goes to the completion; others stay where they are. */
static void stripping(void)
{
    struct end end = extended_end(IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_CREATE_CVLAN_STRIPPING, 0);
    struct rule rule = tagging_rule();
    struct ibv_flow *made = flow(&end, &rule);
    for (uint64_t i = 0; i < 3; i++)
        post_recv(&end, i, SLOT * (1 + i), SLOT);
    send_and_expect(&end, end.recv_cq, tagged_frame(0x8100, 0x6005), 64, 0x6005);
    CHECK(memcmp(memory + SLOT, memory, 12) == 0 && memcmp(memory + SLOT + 12, memory + 16, 52) == 0);
    send_and_expect(&end, end.recv_cq, tagged_frame(0x88a8, 0x6005), 68, 0);
    CHECK(memcmp(memory + 2 * SLOT, memory, 68) == 0);
    frame(here, 64);
    send_and_expect(&end, end.recv_cq, 64, 64, 0);
    CHECK(ibv_destroy_flow(made) == 0);
    finish(&end);
}

/* Work queues change their mind. */
static void stripping_queues(void)
{
    struct end sender = end_in(IBV_QPS_RTS, NULL);
    struct ibv_cq_ex *cq = extended();
    struct ibv_wq_init_attr init = {
        .wq_type = IBV_WQT_RQ, .max_wr = 16, .max_sge = 1, .pd = pd, .cq = ibv_cq_ex_to_cq(cq),
        .comp_mask = IBV_WQ_INIT_ATTR_FLAGS, .create_flags = IBV_WQ_FLAGS_DELAY_DROP,
    };
    CHECK(!ibv_create_wq(context, &init) && errno == EOPNOTSUPP);
    init.create_flags = IBV_WQ_FLAGS_SCATTER_FCS;
    CHECK(!ibv_create_wq(context, &init) && errno == EOPNOTSUPP);
    init.create_flags = IBV_WQ_FLAGS_CVLAN_STRIPPING;
    struct ibv_wq *wq = ibv_create_wq(context, &init);
    CHECK(wq);
    struct ibv_wq_attr ready = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY};
    CHECK(ibv_modify_wq(wq, &ready) == 0);
    struct ibv_rwq_ind_table_init_attr table_init = {.ind_tbl = &wq};
    struct ibv_rwq_ind_table *table = ibv_create_rwq_ind_table(context, &table_init);
    CHECK(table);
    static uint8_t key[40] = {1};
    struct ibv_qp_init_attr_ex qp_init = {
        .qp_type = IBV_QPT_RAW_PACKET,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
        .pd = pd,
        .rwq_ind_tbl = table,
        .rx_hash_conf = {.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ, .rx_hash_key_len = 40, .rx_hash_key = key},
    };
    struct end end = {.qp = ibv_create_qp_ex(context, &qp_init)};
    CHECK(end.qp);
    struct rule rule = tagging_rule();
    struct ibv_flow *made = flow(&end, &rule);
    struct ibv_sge list = part(SLOT, SLOT);
    for (int strips = 1; strips >= 0; strips--) {
        struct ibv_recv_wr *bad, wr = {.sg_list = &list, .num_sge = 1};
        CHECK(ibv_post_wq_recv(wq, &wr, &bad) == 0);
        struct ibv_wq_attr attr = {
            .attr_mask = IBV_WQ_ATTR_FLAGS, .flags_mask = IBV_WQ_FLAGS_CVLAN_STRIPPING,
            .flags = strips ? IBV_WQ_FLAGS_CVLAN_STRIPPING : 0,
        };
        CHECK(ibv_modify_wq(wq, &attr) == 0);
        attr.flags_mask = IBV_WQ_FLAGS_SCATTER_FCS;
        CHECK(ibv_modify_wq(wq, &attr) == EOPNOTSUPP);
        send_and_expect(&sender, ibv_cq_ex_to_cq(cq), tagged_frame(0x8100, 7), strips ? 64 : 68, strips ? 7 : 0);
    }
    CHECK(ibv_destroy_flow(made) == 0 && ibv_destroy_qp(end.qp) == 0 && ibv_destroy_rwq_ind_table(table) == 0);
    CHECK(ibv_destroy_wq(wq) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
    finish(&sender);
}

/* As many indirection tables as the device says, and no more. */
static void tables(void)
{
    struct ibv_device_attr_ex attr;
    CHECK(ibv_query_device_ex(context, NULL, &attr) == 0);
    uint32_t most = attr.rss_caps.max_rwq_indirection_tables;
    struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
    struct ibv_wq_init_attr init = {.wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = pd, .cq = cq};
    struct ibv_wq *wq = cq ? ibv_create_wq(context, &init) : NULL;
    struct ibv_rwq_ind_table_init_attr one = {.ind_tbl = &wq};
    struct ibv_rwq_ind_table **made = calloc(most, sizeof *made);
    CHECK(wq && made && most > 0);
    for (uint32_t i = 0; i < most; i++)
        CHECK((made[i] = ibv_create_rwq_ind_table(context, &one)));
    errno = 0;
    CHECK(!ibv_create_rwq_ind_table(context, &one) && errno == ENOMEM);
    CHECK(ibv_destroy_rwq_ind_table(made[0]) == 0 && (made[0] = ibv_create_rwq_ind_table(context, &one)));
    for (uint32_t i = 0; i < most; i++)
        CHECK(ibv_destroy_rwq_ind_table(made[i]) == 0);
    free(made);
    CHECK(ibv_destroy_wq(wq) == 0 && ibv_destroy_cq(cq) == 0);
}

/* A header of Ethernet, IPv4 and TCP with options; FIN, PSH, CWR and ACK. */
static void tcp_header(uint8_t *to)
{
    static const uint8_t headers[TCP_HEADER - 12] = {
        8, 0, 0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        0x10, 0, 0x20, 0, 0xff, 0xff, 0xff, 0x00, 0, 0, 0, 1, 0x80, 0x99, 0xff, 0xff,
    };
    memcpy(to, here, 6);
    memcpy(to + 6, there, 6);
    memcpy(to + 12, headers, sizeof headers);
}

/* Reads four segments, and compares them with what was sent. */
static void expect_segments(struct end *end)
{
    struct ibv_cq_ex *cq = (struct ibv_cq_ex *)end->recv_cq;
    uint32_t offset = 0;
    for (size_t number = 0; number < 4; number++) {
        start(cq);
        const uint8_t *segment = memory + SLOT * (8 + number);
        uint32_t length = offset + MSS < PAYLOAD ? MSS : PAYLOAD - offset, sequence;
        CHECK(ibv_wc_read_byte_len(cq) == TCP_HEADER + length && ibv_wc_read_wc_flags(cq) & IBV_WC_IP_CSUM_OK);
        memcpy(&sequence, segment + 34 + 4, 4);
        CHECK(ntohl(sequence) == 0xffffff00 + offset && segment[19] == 0x34 + number);
        CHECK(segment[34 + 13] == (number == 0 ? 0x90 : number == 3 ? 0x19 : 0x10));
        CHECK(memcmp(segment + TCP_HEADER, memory + offset, length) == 0);
        offset += length;
        ibv_end_poll(cq);
    }
}

static void segmentation(void)
{
    struct ibv_device_attr_ex attr;
    CHECK(ibv_query_device_ex(context, NULL, &attr) == 0);
    CHECK(attr.tso_caps.max_tso >= PAYLOAD && attr.tso_caps.supported_qpts == 1 << IBV_QPT_RAW_PACKET);
    struct end end = extended_end(IBV_QP_INIT_ATTR_MAX_TSO_HEADER | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, 0, TCP_HEADER);
    struct rule rule = tagging_rule();
    struct ibv_flow *made = flow(&end, &rule);
    for (uint32_t at = 0; at < PAYLOAD; at++)
        memory[at] = (uint8_t)(at * 7);
    uint8_t header[TCP_HEADER + 4];
    tcp_header(header);
    struct ibv_sge two[2] = {part(0, 1000), part(1000, PAYLOAD - 1000)};
    struct ibv_send_wr *bad, wr = {.wr_id = 9, .sg_list = two, .num_sge = 2, .opcode = IBV_WR_TSO};
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM;
    wr.tso.hdr = header;
    wr.tso.hdr_sz = TCP_HEADER;
    wr.tso.mss = 0;
    CHECK(ibv_post_send(end.qp, &wr, &bad) == EINVAL);
    wr.tso.mss = MSS;
    wr.tso.hdr_sz = TCP_HEADER - 4;
    CHECK(ibv_post_send(end.qp, &wr, &bad) == EINVAL);
    wr.tso.hdr_sz = TCP_HEADER + 4;
    CHECK(ibv_post_send(end.qp, &wr, &bad) == EINVAL);
    wr.tso.hdr_sz = TCP_HEADER;
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(end.qp);
    for (int by_builder = 0; by_builder <= 1; by_builder++) {
        for (uint64_t i = 0; i < 4; i++)
            post_recv(&end, i, SLOT * (8 + i), SLOT);
        if (by_builder) {
            ibv_wr_start(ex);
            ex->wr_id = 9;
            ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM;
            ibv_wr_send_tso(ex, header, TCP_HEADER, MSS);
            ibv_wr_set_sge_list(ex, 2, two);
            CHECK(ibv_wr_complete(ex) == 0);
        } else {
            CHECK(ibv_post_send(end.qp, &wr, &bad) == 0);
        }
        /* One completion for all of them. */
        struct ibv_wc wc = next(end.send_cq);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 9 && wc.opcode == IBV_WC_TSO);
        expect_segments(&end);
        CHECK(count(end.send_cq) == 0);
    }
    CHECK(ibv_destroy_flow(made) == 0);
    /* As many segments as there can be. */
    struct ibv_sge most = part(0, 1 << 16);
    wr.sg_list = &most;
    wr.num_sge = wr.tso.mss = 1;
    CHECK(attr.tso_caps.max_tso == 1 << 16 && ibv_post_send(end.qp, &wr, &bad) == 0);
    CHECK(next(end.send_cq).status == IBV_WC_SUCCESS);
    finish(&end);
    /* A queue pair that has not asked for it. */
    end = end_in(IBV_QPS_RTS, NULL);
    CHECK(ibv_post_send(end.qp, &wr, &bad) == EINVAL && bad == &wr);
    finish(&end);
}

static void counters(void)
{
    struct end end = end_in(IBV_QPS_RTS, NULL);
    struct ibv_counters_init_attr init = {0};
    struct ibv_counters *counters = ibv_create_counters(context, &init);
    CHECK(counters);
    struct ibv_counter_attach_attr packets = {.counter_desc = IBV_COUNTER_PACKETS, .index = 2};
    struct ibv_counter_attach_attr bytes = {.counter_desc = IBV_COUNTER_BYTES, .index = 0};
    CHECK(ibv_attach_counters_point_flow(counters, &packets, NULL) == 0);
    CHECK(ibv_attach_counters_point_flow(counters, &bytes, NULL) == 0);
    bytes.counter_desc = 7;
    CHECK(ibv_attach_counters_point_flow(counters, &bytes, NULL) == EINVAL);
    struct rule rule = rule_to(here);
    struct ibv_flow_spec_counter_action action = {
        .type = IBV_FLOW_SPEC_ACTION_COUNT, .size = sizeof action, .counters = counters,
    };
    add(&rule, &action, sizeof action);
    struct ibv_flow *made = flow(&end, &rule);
    CHECK(ibv_attach_counters_point_flow(counters, &packets, made) == EOPNOTSUPP);
    CHECK(ibv_attach_counters_point_flow(counters, &packets, NULL) == EBUSY);
    CHECK(ibv_destroy_counters(counters) == EBUSY);
    send_frame(&end, here, 60);
    send_frame(&end, there, 61);
    send_frame(&end, here, 100);
    settle(&end);
    uint64_t values[3] = {9, 9, 9};
    CHECK(ibv_read_counters(counters, values, 2, 0) == EINVAL);
    CHECK(ibv_read_counters(counters, values, 3, IBV_READ_COUNTERS_ATTR_PREFER_CACHED) == 0);
    CHECK(values[0] == 160 && values[1] == 0 && values[2] == 2);
    CHECK(ibv_destroy_flow(made) == 0);
    send_frame(&end, here, 60);
    settle(&end);
    CHECK(ibv_read_counters(counters, values, 3, 0) == 0 && values[2] == 2);
    CHECK(ibv_destroy_counters(counters) == 0);
    finish(&end);
}

int main(void)
{
    open_device();
    stripping();
    stripping_queues();
    tables();
    segmentation();
    counters();
    close_device();
    puts("ok");
    return 0;
}
