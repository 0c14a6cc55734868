/* Raw packet queue pairs and flow steering on lo. Prints "ok". */
#include "raw_ethernet.h"

static void states(void)
{
    struct end end = end_in(IBV_QPS_RESET, NULL);
    struct ibv_sge list = part(0, 60);
    struct ibv_recv_wr *bad, recv = {.sg_list = &list, .num_sge = 1};
    frame(here, 60);
    CHECK(ibv_post_recv(end.qp, &recv, &bad) == EINVAL && bad == &recv);
    CHECK(post_list(&end, &list, 1, 0) == EINVAL);
    CHECK(move(end.qp, IBV_QPS_INIT, 0) == EINVAL);
    CHECK(move(end.qp, IBV_QPS_INIT, IBV_QP_PORT | IBV_QP_PKEY_INDEX) == EINVAL);
    CHECK(move(end.qp, IBV_QPS_RTR, 0) == EINVAL);
    CHECK(move(end.qp, IBV_QPS_INIT, IBV_QP_PORT) == 0);
    CHECK(ibv_post_recv(end.qp, &recv, &bad) == 0);
    CHECK(post_list(&end, &list, 1, 0) == EINVAL);
    CHECK(move(end.qp, IBV_QPS_RTR, 0) == 0);
    CHECK(post_list(&end, &list, 1, 0) == EINVAL);
    CHECK(move(end.qp, IBV_QPS_RTS, 0) == 0);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(end.qp, &attr, IBV_QP_STATE, &init) == 0);
    CHECK(attr.qp_state == IBV_QPS_RTS && init.qp_type == IBV_QPT_RAW_PACKET && init.cap.max_send_wr == 16);
    CHECK(move(end.qp, IBV_QPS_ERR, 0) == 0);
    CHECK(next(end.recv_cq).status == IBV_WC_WR_FLUSH_ERR);
    CHECK(post_list(&end, &list, 1, 0) == 0 && next(end.send_cq).status == IBV_WC_WR_FLUSH_ERR);
    CHECK(move(end.qp, IBV_QPS_RESET, 0) == 0);
    union ibv_gid gid = {.raw = {0xff, 2}};
    CHECK(ibv_attach_mcast(end.qp, &gid, 0) == EINVAL && ibv_detach_mcast(end.qp, &gid, 0) == EINVAL);
    struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
    CHECK(window);
    struct ibv_mw_bind bind = {.bind_info = {.mr = mr, .addr = (uintptr_t)memory, .length = 64}};
    uint32_t key = window->rkey;
    CHECK(ibv_bind_mw(end.qp, window, &bind) == EOPNOTSUPP && window->rkey == key);
    CHECK(ibv_dealloc_mw(window) == 0);
    finish(&end);
}

static void frames(void)
{
    struct end end = end_in(IBV_QPS_RTS, NULL);
    struct rule rule = rule_to(here);
    struct ibv_flow *made = flow(&end, &rule);
    CHECK(ibv_destroy_qp(end.qp) == EBUSY && ibv_destroy_cq(end.recv_cq) == EBUSY);
    /* Into two parts. */
    struct ibv_sge two[2] = {part(SLOT, 20), part(2 * SLOT, SLOT)};
    struct ibv_recv_wr *bad_recv, recv = {.wr_id = 3, .sg_list = two, .num_sge = 2};
    CHECK(ibv_post_recv(end.qp, &recv, &bad_recv) == 0);
    send_frame(&end, here, 100);
    struct ibv_wc wc = next(end.recv_cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 3 && wc.opcode == IBV_WC_RECV && wc.byte_len == 100);
    CHECK(wc.qp_num == end.qp->qp_num);
    CHECK(memcmp(memory, memory + SLOT, 20) == 0 && memcmp(memory + 20, memory + 2 * SLOT, 80) == 0);
    /* Out of three, and inline. */
    for (int inline_flag = 0; inline_flag <= 1; inline_flag++) {
        memset(memory + SLOT, 0, SLOT);
        post_recv(&end, 4, SLOT, SLOT);
        frame(here, 100);
        struct ibv_sge three[3] = {part(0, 14), part(14, 6), part(20, 80)};
        CHECK(post_list(&end, three, 3, inline_flag ? IBV_SEND_INLINE : 0) == 0);
        CHECK(next(end.send_cq).status == IBV_WC_SUCCESS && next(end.recv_cq).byte_len == 100);
        CHECK(memcmp(memory, memory + SLOT, 100) == 0);
    }
    struct ibv_sge too_much = part(0, 129), four[4] = {part(0, 14), part(14, 6), part(20, 40), part(60, 40)};
    CHECK(post_list(&end, &too_much, 1, IBV_SEND_INLINE) == EINVAL);
    CHECK(post_list(&end, four, 4, 0) == EINVAL);
    struct ibv_sge too_short = part(0, 13);
    CHECK(post_list(&end, &too_short, 1, 0) == EINVAL);
    struct ibv_send_wr *bad, write = {.sg_list = &too_much, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
    CHECK(ibv_post_send(end.qp, &write, &bad) == EINVAL && bad == &write);
    /* Of a list, what comes before the wrong one leaves. */
    frame(here, 100);
    struct ibv_sge good = part(0, 100);
    struct ibv_send_wr list[3] = {
        {.wr_id = 1, .sg_list = &good, .num_sge = 1, .opcode = IBV_WR_SEND, .next = &list[1]},
        {.wr_id = 2, .sg_list = &good, .num_sge = 1, .opcode = IBV_WR_SEND, .next = &list[2]},
        {.wr_id = 3, .sg_list = &too_short, .num_sge = 1, .opcode = IBV_WR_SEND},
    };
    list[1].send_flags = IBV_SEND_SIGNALED;
    post_recv(&end, 5, SLOT, SLOT);
    post_recv(&end, 6, 2 * SLOT, SLOT);
    CHECK(ibv_post_send(end.qp, list, &bad) == EINVAL && bad == &list[2]);
    CHECK(next(end.send_cq).wr_id == 2 && next(end.recv_cq).wr_id == 5 && next(end.recv_cq).wr_id == 6);
    /* Nobody has asked for these; then somebody has, and posted nothing. */
    send_frame(&end, there, 60);
    send_frame(&end, here, 60);
    settle(&end);
    post_recv(&end, 8, SLOT, SLOT);
    CHECK(count(end.recv_cq) == 0);
    send_frame(&end, here, 61);
    CHECK(next(end.recv_cq).byte_len == 61);
    CHECK(ibv_destroy_flow(made) == 0);
    send_frame(&end, here, 60);
    settle(&end);
    CHECK(count(end.recv_cq) == 0);
    finish(&end);
}

/* A request that cannot be carried out ends the queue pair. */
static void errors(void)
{
    struct end end = end_in(IBV_QPS_RTS, NULL);
    struct rule rule = rule_to(here);
    struct ibv_flow *made = flow(&end, &rule);
    post_recv(&end, 1, SLOT, 59);
    post_recv(&end, 2, SLOT, SLOT);
    send_frame(&end, here, 60);
    CHECK(next(end.recv_cq).status == IBV_WC_LOC_LEN_ERR);
    struct ibv_wc wc = next(end.recv_cq);
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 2);
    CHECK(ibv_destroy_flow(made) == 0);
    finish(&end);
    end = end_in(IBV_QPS_RTS, NULL);
    post_recv(&end, 1, SLOT, SLOT);
    struct ibv_sge wrong = part(0, 60);
    wrong.lkey ^= 0xff00;
    CHECK(post_list(&end, &wrong, 1, 0) == 0);
    CHECK(next(end.send_cq).status == IBV_WC_LOC_PROT_ERR && next(end.recv_cq).status == IBV_WC_WR_FLUSH_ERR);
    finish(&end);
    /* Longer than the interface's MTU allows. */
    end = end_in(IBV_QPS_RTS, NULL);
    frame(here, HEADER);
    struct ibv_sge jumbo = part(0, 65536 + 15);
    CHECK(post_list(&end, &jumbo, 1, 0) == 0 && next(end.send_cq).status == IBV_WC_LOC_LEN_ERR);
    finish(&end);
}

static void steering(void)
{
    struct end one = end_in(IBV_QPS_RTS, NULL), other = end_in(IBV_QPS_RTS, NULL);
    for (int i = 0; i < 8; i++) {
        post_recv(&one, (uint64_t)i, SLOT * (size_t)(1 + i), SLOT);
        post_recv(&other, (uint64_t)i, SLOT * (size_t)(10 + i), SLOT);
    }
    struct rule rule = rule_to(here), all = rule_to(NULL);
    struct ibv_flow *low, *high;
    /* Lower numbers come first; of equal ones, the older. `size` is not looked at, as VPP leaves it 0. */
    rule.attr.priority = 1;
    low = flow(&one, &rule);
    all.attr.priority = 0;
    high = flow(&other, &all);
    send_frame(&one, here, 60);
    settle(&one);
    CHECK(count(one.recv_cq) == 0 && count(other.recv_cq) == 2);
    CHECK(ibv_destroy_flow(high) == 0);
    all.attr.priority = 1;
    high = flow(&other, &all);
    send_frame(&one, here, 60);
    send_frame(&one, there, 60);
    settle(&one);
    CHECK(count(one.recv_cq) == 1 && count(other.recv_cq) == 2);
    CHECK(ibv_destroy_flow(high) == 0 && ibv_destroy_flow(low) == 0);
    /* DONT_TRAP lets others have it; a sniffer sees what is sent and what is received. */
    rule.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
    low = flow(&one, &rule);
    all.attr.type = IBV_FLOW_ATTR_SNIFFER;
    all.attr.num_of_specs = 0;
    high = flow(&other, &all);
    send_frame(&one, here, 60);
    CHECK(next(one.recv_cq).byte_len == 60 && next(other.recv_cq).byte_len == 60 && next(other.recv_cq).byte_len == 60);
    CHECK(ibv_destroy_flow(high) == 0 && ibv_destroy_flow(low) == 0);
    finish(&one);
    finish(&other);
}

/* Default rules take what no other has taken; a rule that drops takes it from them. */
static void defaults(void)
{
    static const uint8_t group[6] = {1, 0, 0x5e, 1, 2, 3};
    struct end one = end_in(IBV_QPS_RTS, NULL), other = end_in(IBV_QPS_RTS, NULL);
    for (int i = 0; i < 8; i++) {
        post_recv(&one, (uint64_t)i, SLOT * (size_t)(1 + i), SLOT);
        post_recv(&other, (uint64_t)i, SLOT * (size_t)(10 + i), SLOT);
    }
    struct rule rule = rule_to(NULL);
    rule.attr.num_of_specs = 0;
    rule.attr.type = IBV_FLOW_ATTR_ALL_DEFAULT;
    struct ibv_flow *all = flow(&one, &rule);
    rule.attr.type = IBV_FLOW_ATTR_MC_DEFAULT;
    struct ibv_flow *multicast = flow(&other, &rule);
    struct rule drop = rule_to(there);
    struct ibv_flow_spec_action_drop action = {.type = IBV_FLOW_SPEC_ACTION_DROP, .size = sizeof action};
    drop.attr.num_of_specs = 2;
    memcpy((uint8_t *)&drop.eth + sizeof drop.eth, &action, sizeof action);
    struct ibv_flow *dropped = flow(&one, &drop);
    send_frame(&one, there, 60);
    send_frame(&one, group, 62);
    send_frame(&one, here, 61);
    CHECK(next(one.recv_cq).byte_len == 61 && next(other.recv_cq).byte_len == 62);
    CHECK(count(one.recv_cq) == 0 && count(other.recv_cq) == 0);
    CHECK(ibv_destroy_flow(dropped) == 0 && ibv_destroy_flow(multicast) == 0 && ibv_destroy_flow(all) == 0);
    finish(&one);
    finish(&other);
}

/* A packet of IPv4 and UDP, with a VLAN tag or without, behind the MAC addresses. */
static uint32_t udp_frame(int vlan, uint16_t port)
{
    uint8_t *at = memory;
    memcpy(at, here, 6);
    memcpy(at + 6, there, 6);
    at += 12;
    if (vlan >= 0) {
        uint8_t tag[4] = {0x81, 0, 0, (uint8_t)vlan};
        memcpy(at, tag, 4);
        at += 4;
    }
    uint8_t headers[30] = {8, 0, 0x45, 0, 0, 38, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2};
    headers[22] = 0x12;
    headers[24] = (uint8_t)(port >> 8);
    headers[25] = (uint8_t)port;
    headers[27] = 18;
    memcpy(at, headers, sizeof headers);
    memset(at + sizeof headers, 0x5a, 10);
    return (uint32_t)(at - memory) + sizeof headers + 10;
}

static void packets(void)
{
    struct end end = end_in(IBV_QPS_RTS, NULL);
    struct rule rule = rule_to(here);
    rule.eth.val.vlan_tag = htons(5);
    rule.eth.mask.vlan_tag = htons(0xfff);
    struct ibv_flow_spec_tcp_udp udp = {.type = IBV_FLOW_SPEC_UDP, .size = sizeof udp};
    udp.val.dst_port = htons(4000);
    udp.mask.dst_port = 0xffff;
    memcpy((uint8_t *)&rule.eth + sizeof rule.eth, &udp, sizeof udp);
    rule.attr.num_of_specs = 2;
    struct ibv_flow *made = flow(&end, &rule);
    for (uint64_t i = 0; i < 4; i++)
        post_recv(&end, i, SLOT * (1 + i), SLOT);
    static const struct { int vlan; uint16_t port; int flags; } sent[5] = {
        {-1, 4000, 0}, {6, 4000, 0}, {5, 4001, 0}, {5, 4000, 0}, {5, 4000, IBV_SEND_IP_CSUM},
    };
    uint8_t tagged[56];
    for (int i = 0; i < 5; i++) {
        struct ibv_sge list = part(0, udp_frame(sent[i].vlan, sent[i].port));
        CHECK(post_list(&end, &list, 1, sent[i].flags) == 0 && next(end.send_cq).status == IBV_WC_SUCCESS);
        memcpy(tagged, memory, sizeof tagged);
    }
    settle(&end);
    struct ibv_wc wc[5];
    CHECK(ibv_poll_cq(end.recv_cq, 5, wc) == 2);
    /* The tag is where it was. */
    CHECK(wc[0].byte_len == sizeof tagged && memcmp(tagged, memory + SLOT, sizeof tagged) == 0);
    CHECK(!(wc[0].wc_flags & IBV_WC_IP_CSUM_OK) && wc[1].wc_flags & IBV_WC_IP_CSUM_OK);
    CHECK(memory[2 * SLOT + 28] | memory[2 * SLOT + 29]);
    CHECK(ibv_destroy_flow(made) == 0);
    finish(&end);
}

static void refusals(void)
{
    struct end end = end_in(IBV_QPS_RTS, NULL);
    struct rule good = rule_to(here), rule = good;
    rule.attr.port = 2;
    CHECK(refusal(&end, &rule) == EINVAL);
    rule = good;
    rule.attr.comp_mask = 1;
    CHECK(refusal(&end, &rule) == EINVAL);
    rule = good;
    rule.attr.type = (enum ibv_flow_attr_type)9;
    CHECK(refusal(&end, &rule) == EINVAL);
    rule = good;
    rule.attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS;
    CHECK(refusal(&end, &rule) == EOPNOTSUPP);
    rule = good;
    rule.attr.flags = 1 << 7;
    CHECK(refusal(&end, &rule) == EINVAL);
    rule = good;
    rule.eth.size = 6;
    CHECK(refusal(&end, &rule) == EINVAL);
    rule.eth.size = 0;
    CHECK(refusal(&end, &rule) == EINVAL);
    rule = good;
    rule.eth.type = (enum ibv_flow_spec_type)0x2f;
    CHECK(refusal(&end, &rule) == EINVAL);
    rule = good;
    rule.eth.type = IBV_FLOW_SPEC_MPLS;
    CHECK(refusal(&end, &rule) == EOPNOTSUPP);
    rule = good;
    rule.attr.type = IBV_FLOW_ATTR_ALL_DEFAULT;
    CHECK(refusal(&end, &rule) == EINVAL);
    finish(&end);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = {1, 1, 1, 1, 0}};
    end.qp = ibv_create_qp(pd, &init);
    CHECK(cq && end.qp);
    struct ibv_flow *of_datagrams = flow(&end, &good);
    CHECK(ibv_destroy_qp(end.qp) == EBUSY && ibv_destroy_flow(of_datagrams) == 0 && ibv_destroy_qp(end.qp) == 0);
    init.qp_type = IBV_QPT_RC;
    CHECK((end.qp = ibv_create_qp(pd, &init)) && refusal(&end, &good) == EINVAL);
    CHECK(ibv_destroy_qp(end.qp) == 0 && ibv_destroy_cq(cq) == 0);
}

/* A thread that waits for an event is woken by a frame. */
static void events(void)
{
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    CHECK(channel);
    struct end end = end_in(IBV_QPS_RTS, channel);
    struct rule rule = rule_to(here);
    struct ibv_flow *made = flow(&end, &rule);
    for (uint64_t i = 0; i < 4; i++) {
        post_recv(&end, i, SLOT, SLOT);
        CHECK(ibv_req_notify_cq(end.recv_cq, 0) == 0);
        struct pollfd polled = {.fd = channel->fd, .events = POLLIN};
        CHECK(poll(&polled, 1, 0) == 0);
        send_frame(&end, here, 60);
        struct ibv_cq *cq;
        void *cookie;
        CHECK(ibv_get_cq_event(channel, &cq, &cookie) == 0 && cq == end.recv_cq);
        ibv_ack_cq_events(cq, 1);
        CHECK(next(cq).wr_id == i);
    }
    CHECK(ibv_destroy_flow(made) == 0);
    finish(&end);
    CHECK(ibv_destroy_comp_channel(channel) == 0);
}

/* ibv_wr_post(3): all requests of a batch, or none. */
static void builders(void)
{
    struct end end = end_in(IBV_QPS_RTS, NULL);
    CHECK(ibv_destroy_qp(end.qp) == 0);
    struct ibv_qp_init_attr_ex init = {
        .send_cq = end.send_cq,
        .recv_cq = end.recv_cq,
        .qp_type = IBV_QPT_RAW_PACKET,
        .cap = {16, 16, 3, 2, 128},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
    };
    CHECK(!ibv_create_qp_ex(context, &init) && errno == EOPNOTSUPP);
    init.send_ops_flags = IBV_QP_EX_WITH_SEND;
    CHECK((end.qp = ibv_create_qp_ex(context, &init)));
    CHECK(!move(end.qp, IBV_QPS_INIT, IBV_QP_PORT) && !move(end.qp, IBV_QPS_RTR, 0) && !move(end.qp, IBV_QPS_RTS, 0));
    struct rule rule = rule_to(here);
    struct ibv_flow *made = flow(&end, &rule);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(end.qp);
    CHECK(ex);
    frame(here, 100);
    for (int bad = 1; bad >= 0; bad--) {
        post_recv(&end, 1, SLOT, SLOT);
        ibv_wr_start(ex);
        ex->wr_id = 1;
        ex->wr_flags = 0;
        ibv_wr_send(ex);
        ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 100);
        ex->wr_id = 2;
        ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_send(ex);
        ibv_wr_set_inline_data(ex, memory, bad ? 129 : 100);
        CHECK(ibv_wr_complete(ex) == (bad ? EINVAL : 0));
    }
    CHECK(next(end.send_cq).wr_id == 2 && next(end.recv_cq).byte_len == 100 && next(end.recv_cq).byte_len == 100);
    CHECK(ibv_destroy_flow(made) == 0);
    finish(&end);
}

/* Groups by the last bytes of a GID. */
static void groups(void)
{
    struct end end = end_in(IBV_QPS_RTS, NULL);
    union ibv_gid gid = {.raw = {[10] = 1, 0, 0x5e, 1, 2, 3}}, other = {.raw = {[10] = 2, 0, 0x5e, 1, 2, 3}};
    post_recv(&end, 1, SLOT, SLOT);
    CHECK(ibv_attach_mcast(end.qp, &other, 0) == EINVAL && ibv_detach_mcast(end.qp, &gid, 0) == EINVAL);
    CHECK(ibv_attach_mcast(end.qp, &gid, 0) == 0 && ibv_attach_mcast(end.qp, &gid, 0) == 0);
    CHECK(ibv_destroy_qp(end.qp) == EBUSY);
    send_frame(&end, here, 60);
    send_frame(&end, gid.raw + 10, 61);
    CHECK(next(end.recv_cq).byte_len == 61);
    CHECK(ibv_detach_mcast(end.qp, &gid, 0) == 0 && ibv_detach_mcast(end.qp, &gid, 0) == EINVAL);
    send_frame(&end, gid.raw + 10, 62);
    settle(&end);
    CHECK(count(end.recv_cq) == 0);
    finish(&end);
}

/* A limit on the rate is kept, and ends when it is taken away. */
static void rates(void)
{
    enum { LENGTH = 996, FRAMES = 16 };
    struct ibv_device_attr_ex caps;
    CHECK(ibv_query_device_ex(context, NULL, &caps) == 0);
    CHECK(caps.packet_pacing_caps.supported_qpts == 1 << IBV_QPT_RAW_PACKET);
    struct end end = end_in(IBV_QPS_RTR, NULL);
    struct ibv_qp_rate_limit_attr slow = {.rate_limit = 1000}, none = {.rate_limit = 0};
    CHECK(ibv_modify_qp_rate_limit(end.qp, &slow) == EINVAL);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .rate_limit = caps.packet_pacing_caps.qp_rate_limit_max + 1};
    CHECK(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_RATE_LIMIT) == EINVAL);
    attr.rate_limit = 100;
    CHECK(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_RATE_LIMIT) == 0);
    CHECK(ibv_modify_qp_rate_limit(end.qp, &slow) == 0);
    frame(there, LENGTH);
    struct ibv_sge list = part(0, LENGTH);
    double begun = now();
    for (int i = 0; i < FRAMES; i++)
        CHECK(post_list(&end, &list, 1, 0) == 0);
    for (int i = 0; i < FRAMES; i++)
        CHECK(next(end.send_cq).status == IBV_WC_SUCCESS);
    /* 8 ms a frame with its FCS: all but the first wait. */
    CHECK(now() - begun > (FRAMES - 2) * 0.008);
    slow.rate_limit = 1;
    CHECK(ibv_modify_qp_rate_limit(end.qp, &slow) == 0);
    for (int i = 0; i < FRAMES; i++)
        CHECK(post_list(&end, &list, 1, 0) == 0);
    CHECK(ibv_modify_qp_rate_limit(end.qp, &none) == 0);
    for (int i = 0; i < FRAMES; i++)
        CHECK(next(end.send_cq).status == IBV_WC_SUCCESS);
    slow.comp_mask = 1;
    CHECK(ibv_modify_qp_rate_limit(end.qp, &slow) == EINVAL);
    finish(&end);
}

int main(void)
{
    open_device();
    states();
    frames();
    errors();
    steering();
    defaults();
    packets();
    refusals();
    events();
    builders();
    groups();
    rates();
    close_device();
    puts("ok");
    return 0;
}
