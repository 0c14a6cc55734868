/* What programs of raw packet queue pairs on lo have in common: a frame that is sent there comes back. */
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                         \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);    \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

/* Not every program calls all of them. */
#define HELPER static __attribute__((unused))

enum { SLOT = 2048, SLOTS = 64, HEADER = 14 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t *memory;
/* Longer than any frame of lo. */
enum { LONG = 70000, MEMORY = SLOT * SLOTS + LONG };

struct end {
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_qp *qp;
};

HELPER struct ibv_sge part(size_t offset, uint32_t length)
{
    return (struct ibv_sge){.addr = (uintptr_t)memory + offset, .length = length, .lkey = mr->lkey};
}

HELPER int move(struct ibv_qp *qp, enum ibv_qp_state state, int more)
{
    struct ibv_qp_attr attr = {.qp_state = state, .port_num = 1};
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | more);
}

HELPER struct end end_in(enum ibv_qp_state state, struct ibv_comp_channel *channel)
{
    struct end end;
    CHECK((end.send_cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
    CHECK((end.recv_cq = ibv_create_cq(context, 64, NULL, channel, 0)));
    struct ibv_qp_init_attr init = {
        .send_cq = end.send_cq,
        .recv_cq = end.recv_cq,
        .qp_type = IBV_QPT_RAW_PACKET,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 3, .max_recv_sge = 2, .max_inline_data = 128},
    };
    CHECK((end.qp = ibv_create_qp(pd, &init)));
    if (state >= IBV_QPS_INIT)
        CHECK(move(end.qp, IBV_QPS_INIT, IBV_QP_PORT) == 0);
    if (state >= IBV_QPS_RTR)
        CHECK(move(end.qp, IBV_QPS_RTR, 0) == 0);
    if (state >= IBV_QPS_RTS)
        CHECK(move(end.qp, IBV_QPS_RTS, 0) == 0);
    return end;
}

HELPER void finish(struct end *end)
{
    CHECK(ibv_destroy_qp(end->qp) == 0);
    CHECK(ibv_destroy_cq(end->send_cq) == 0);
    CHECK(ibv_destroy_cq(end->recv_cq) == 0);
}

HELPER int post_list(struct end *end, struct ibv_sge *list, int count, int flags)
{
    struct ibv_send_wr *bad, wr = {.wr_id = 7, .sg_list = list, .num_sge = count, .opcode = IBV_WR_SEND};
    wr.send_flags = IBV_SEND_SIGNALED | flags;
    return ibv_post_send(end->qp, &wr, &bad);
}

HELPER struct ibv_wc next(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int found;
    while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    CHECK(found == 1);
    return wc;
}

HELPER void post_recv(struct end *end, uint64_t id, size_t offset, uint32_t length)
{
    struct ibv_sge list = part(offset, length);
    struct ibv_recv_wr *bad, wr = {.wr_id = id, .sg_list = &list, .num_sge = 1};
    CHECK(ibv_post_recv(end->qp, &wr, &bad) == 0);
}

static const uint8_t here[6] = {2, 0, 0, 0, 0, 1}, there[6] = {2, 0, 0, 0, 0, 2};

/* A frame of an experimental ethertype at the start of the memory. */
HELPER void frame(const uint8_t *to, uint32_t length)
{
    memcpy(memory, to, 6);
    memcpy(memory + 6, there, 6);
    memory[12] = 0x88;
    memory[13] = 0xb5;
    for (uint32_t at = HEADER; at < length; at++)
        memory[at] = (uint8_t)at;
}

HELPER void send_frame(struct end *end, const uint8_t *to, uint32_t length)
{
    frame(to, length);
    struct ibv_sge list = part(0, length);
    CHECK(post_list(end, &list, 1, 0) == 0);
    struct ibv_wc wc = next(end->send_cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 7 && wc.opcode == IBV_WC_SEND && wc.qp_num == end->qp->qp_num);
}

/* All that was sent has been looked at when a sniffer has seen a frame behind it. */
static void settle(struct end *end);

struct rule {
    struct ibv_flow_attr attr;
    struct ibv_flow_spec_eth eth;
    uint8_t more[32];
};

HELPER struct rule rule_to(const uint8_t *to)
{
    struct rule rule = {.attr = {.type = IBV_FLOW_ATTR_NORMAL, .num_of_specs = 1, .port = 1}};
    rule.eth.type = IBV_FLOW_SPEC_ETH;
    rule.eth.size = sizeof rule.eth;
    if (to) {
        memcpy(rule.eth.val.dst_mac, to, 6);
        memset(rule.eth.mask.dst_mac, 0xff, 6);
    }
    return rule;
}

HELPER struct ibv_flow *flow(struct end *end, struct rule *rule)
{
    struct ibv_flow *made = ibv_create_flow(end->qp, &rule->attr);
    CHECK(made);
    return made;
}

HELPER int refusal(struct end *end, struct rule *rule)
{
    errno = 0;
    CHECK(ibv_create_flow(end->qp, &rule->attr) == NULL);
    return errno;
}

HELPER void settle(struct end *end)
{
    static const uint8_t marker[6] = {2, 0, 0, 0, 0, 99};
    /* As long as no other frame. */
    enum { MARKER = 79, ON_THEIR_WAY = 14 };
    struct end last = end_in(IBV_QPS_RTS, NULL);
    struct rule rule = rule_to(NULL);
    rule.attr.type = IBV_FLOW_ATTR_SNIFFER;
    rule.attr.num_of_specs = 0;
    for (uint64_t i = 0; i < 2 + ON_THEIR_WAY; i++)
        post_recv(&last, i, SLOT * (SLOTS - 1), SLOT);
    struct ibv_flow *made = flow(&last, &rule);
    send_frame(end, marker, MARKER);
    /* Once as it is sent, and once as it is received. */
    for (int seen = 0; seen < 2;) {
        struct ibv_wc wc = next(last.recv_cq);
        CHECK(wc.status == IBV_WC_SUCCESS);
        seen += wc.byte_len == MARKER;
    }
    CHECK(ibv_destroy_flow(made) == 0);
    finish(&last);
}

/* Seconds of a clock that nobody sets. */
HELPER double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

/* The command urxe, for programs that read counters. */
static __attribute__((unused)) const char *urxe;

/* A counter of a device of this process, as `urxe status` shows it. */
HELPER unsigned long counter(const char *device, const char *name)
{
    char command[4096], begin[256], line[1024];
    CHECK(snprintf(command, sizeof command, "%s status --metrics", urxe) < (int)sizeof command);
    int length = snprintf(begin, sizeof begin, "urxe_%s_total{device=\"%s\",pid=\"%d\",", name, device, getpid());
    /* A device that is slow to answer is left out. */
    for (int attempt = 0; attempt < 1000; attempt++) {
        FILE *output = popen(command, "re");
        CHECK(output);
        unsigned long value = 0;
        int found = 0;
        while (fgets(line, sizeof line, output))
            if (strncmp(line, begin, (size_t)length) == 0) {
                value = strtoul(strrchr(line, ' '), NULL, 10);
                found++;
            }
        CHECK(pclose(output) == 0 && found <= 1);
        if (found == 1)
            return value;
        usleep(20000);
    }
    CHECK(!"the device answers");
    return 0;
}

HELPER int count(struct ibv_cq *cq)
{
    struct ibv_wc wc[32];
    int found = ibv_poll_cq(cq, 32, wc);
    CHECK(found >= 0);
    return found;
}

HELPER void open_device(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0] && (context = ibv_open_device(list[0])));
    CHECK((pd = ibv_alloc_pd(context)) && (memory = calloc(1, MEMORY)));
    CHECK((mr = ibv_reg_mr(pd, memory, MEMORY, IBV_ACCESS_LOCAL_WRITE)));
    ibv_free_device_list(list);
}

HELPER void close_device(void)
{
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}
