/* A rule that leads datagrams to a UD queue pair. "receive copied|taken" prints "ready A B", the numbers of two queue pairs, the second of
 * which has a rule to all RoCE packets; "send A B" sends numbered datagrams to both. With "taken", the first gets none. Both print "ok". */
#include "raw_ethernet.h"

enum { KEY = 0x1234, WRONG_KEY = 0x4321, ROCE_PORT = 4791, GRH = 40, LENGTH = 8, TURNS = 5 };
/* Datagrams by number: those to the first, those that are nobody's, those to the second, and the last to each. */
enum { TO_FIRST, WRONG = TO_FIRST + TURNS, TO_SECOND, LAST_TO_FIRST = TO_SECOND + TURNS, LAST_TO_SECOND, NUMBERS };

static struct ibv_qp *datagrams(struct ibv_cq *cq)
{
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = {16, 32, 1, 1, 0}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = KEY};
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    attr.qp_state = IBV_QPS_RTR;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
    attr.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
    return qp;
}

static void receive(int is_taken)
{
    struct end ends[2];
    unsigned seen[2][NUMBERS] = {{0}};
    for (int at = 0; at < 2; at++) {
        CHECK((ends[at].recv_cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
        ends[at].qp = datagrams(ends[at].recv_cq);
        for (uint64_t i = 0; i < 32; i++)
            post_recv(&ends[at], i, SLOT * (32 * (uint64_t)at + i), SLOT);
    }
    struct ibv_counters_init_attr init = {0};
    struct ibv_counters *counters = ibv_create_counters(context, &init);
    struct ibv_counter_attach_attr packets = {.counter_desc = IBV_COUNTER_PACKETS};
    CHECK(counters && ibv_attach_counters_point_flow(counters, &packets, NULL) == 0);
    struct rule rule = rule_to(NULL);
    struct ibv_flow_spec_tcp_udp udp = {.type = IBV_FLOW_SPEC_UDP, .size = sizeof udp};
    udp.val.dst_port = htons(ROCE_PORT);
    udp.mask.dst_port = 0xffff;
    struct ibv_flow_spec_counter_action count = {
        .type = IBV_FLOW_SPEC_ACTION_COUNT, .size = sizeof count, .counters = counters,
    };
    struct ibv_flow_spec_action_tag tag = {.type = IBV_FLOW_SPEC_ACTION_TAG, .size = sizeof tag, .tag_id = 5};
    uint8_t *more = (uint8_t *)&rule.eth + sizeof rule.eth;
    memcpy(more, &udp, sizeof udp);
    memcpy(more + sizeof udp, &tag, sizeof tag);
    rule.attr.num_of_specs = 3;
    CHECK(refusal(&ends[1], &rule) == EOPNOTSUPP);
    memcpy(more + sizeof udp, &count, sizeof count);
    struct ibv_flow *made = flow(&ends[1], &rule);
    CHECK(ibv_destroy_qp(ends[1].qp) == EBUSY);
    printf("ready %u %u\n", ends[0].qp->qp_num, ends[1].qp->qp_num);
    fflush(stdout);
    /* Those to the second come by its number, the others by the rule: each way in its order. */
    while (!seen[1][LAST_TO_FIRST] || !seen[1][LAST_TO_SECOND] || !(is_taken || seen[0][LAST_TO_FIRST]))
        for (unsigned at = 0; at < 2; at++) {
            struct ibv_wc wc;
            int found = ibv_poll_cq(ends[at].recv_cq, 1, &wc);
            CHECK(found >= 0);
            if (found == 0)
                continue;
            CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == GRH + LENGTH && wc.wc_flags & IBV_WC_GRH);
            CHECK(wc.qp_num == ends[at].qp->qp_num);
            unsigned number = memory[SLOT * (32 * at + wc.wr_id) + GRH];
            CHECK(number < NUMBERS);
            seen[at][number]++;
        }
    for (unsigned number = 0; number < NUMBERS; number++) {
        int is_to_first = number < WRONG || number == LAST_TO_FIRST;
        CHECK(seen[0][number] == (is_to_first && !is_taken));
        CHECK(seen[1][number] == (number != WRONG));
    }
    /* The frame of the last may not have been looked at yet. */
    uint64_t counted;
    CHECK(ibv_read_counters(counters, &counted, 1, 0) == 0 && counted >= NUMBERS - 1);
    CHECK(ibv_destroy_flow(made) == 0 && ibv_destroy_counters(counters) == 0);
    for (int at = 0; at < 2; at++)
        CHECK(ibv_destroy_qp(ends[at].qp) == 0 && ibv_destroy_cq(ends[at].recv_cq) == 0);
}

/* Index of the GID of 10.77.0.2. */
static uint8_t own_gid(void)
{
    static const uint8_t own[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 2};
    union ibv_gid gid;
    for (uint8_t at = 0; ibv_query_gid(context, 1, at, &gid) == 0; at++)
        if (memcmp(gid.raw, own, 16) == 0)
            return at;
    CHECK(!"a GID of 10.77.0.2");
    return 0;
}

static void send_all(uint32_t first, uint32_t second)
{
    struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    CHECK(cq);
    struct ibv_qp *qp = datagrams(cq);
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1};
    attr.grh.dgid = (union ibv_gid){.raw = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1}};
    attr.grh.sgid_index = own_gid();
    attr.grh.hop_limit = 64;
    struct ibv_ah *ah = ibv_create_ah(pd, &attr);
    CHECK(ah);
    for (unsigned number = 0; number < NUMBERS; number++) {
        memory[0] = (uint8_t)number;
        struct ibv_sge list = part(0, LENGTH);
        struct ibv_send_wr *bad, wr = {.sg_list = &list, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = number <= WRONG || number == LAST_TO_FIRST ? first : second;
        wr.wr.ud.remote_qkey = number == WRONG ? WRONG_KEY : KEY;
        CHECK(ibv_post_send(qp, &wr, &bad) == 0 && next(cq).status == IBV_WC_SUCCESS);
    }
    CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 3);
    open_device();
    if (strcmp(argv[1], "send") == 0) {
        CHECK(argc == 4);
        send_all((uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[3]));
    } else {
        receive(strcmp(argv[2], "taken") == 0);
    }
    close_device();
    puts("ok");
    return 0;
}
