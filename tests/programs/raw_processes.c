/* Processes that share an interface. "receive PORT COUNT" prints "ready", takes so many packets to a UDP port, which must be all
 * that it gets, ends its rule and prints "ok"; "sniff PORT COUNT" does so of a rule that sees everything; "send FIRST LAST" sends
 * those of these numbers to ports 1 and 2. */
#include "raw_ethernet.h"

enum { PORTS = 4000, LENGTH = 60, UDP_AT = 34, NUMBER_AT = 42 };

static uint16_t word(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static void packet(uint16_t port, uint16_t number)
{
    static const uint8_t headers[] = {
        8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 0, 0, 0, 26, 0, 0,
    };
    frame(here, LENGTH);
    memcpy(memory + 12, headers, sizeof headers);
    memory[UDP_AT + 2] = (uint8_t)((PORTS + port) >> 8);
    memory[UDP_AT + 3] = (uint8_t)(PORTS + port);
    memory[NUMBER_AT] = (uint8_t)(number >> 8);
    memory[NUMBER_AT + 1] = (uint8_t)number;
}

static void receive(uint16_t port, unsigned most, int sniffs)
{
    struct end end = end_in(IBV_QPS_RTS, NULL);
    struct rule rule = rule_to(here);
    struct ibv_flow_spec_tcp_udp udp = {.type = IBV_FLOW_SPEC_UDP, .size = sizeof udp};
    udp.val.dst_port = htons((uint16_t)(PORTS + port));
    udp.mask.dst_port = 0xffff;
    memcpy((uint8_t *)&rule.eth + sizeof rule.eth, &udp, sizeof udp);
    rule.attr.num_of_specs = sniffs ? 0 : 2;
    rule.attr.type = sniffs ? IBV_FLOW_ATTR_SNIFFER : IBV_FLOW_ATTR_NORMAL;
    for (uint64_t i = 0; i < 16; i++)
        post_recv(&end, i, SLOT * (1 + i), SLOT);
    struct ibv_flow *made = flow(&end, &rule);
    puts("ready");
    fflush(stdout);
    for (unsigned number = 0; number < most;) {
        struct ibv_wc wc = next(end.recv_cq);
        const uint8_t *got = memory + SLOT * (1 + wc.wr_id);
        CHECK(wc.status == IBV_WC_SUCCESS);
        int is_own = wc.byte_len == LENGTH && memcmp(got, here, 6) == 0 && word(got + UDP_AT + 2) == PORTS + port;
        CHECK(is_own || sniffs);
        if (is_own)
            CHECK(word(got + NUMBER_AT) == number++);
        post_recv(&end, wc.wr_id, SLOT * (1 + wc.wr_id), SLOT);
    }
    CHECK(ibv_destroy_flow(made) == 0);
    finish(&end);
}

static void send_all(unsigned first, unsigned last)
{
    struct end end = end_in(IBV_QPS_RTS, NULL);
    for (unsigned number = first; number < last; number++)
        for (uint16_t port = 1; port <= 2; port++) {
            packet(port, (uint16_t)number);
            struct ibv_sge list = part(0, LENGTH);
            CHECK(post_list(&end, &list, 1, 0) == 0 && next(end.send_cq).status == IBV_WC_SUCCESS);
        }
    finish(&end);
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    unsigned first = (unsigned)atoi(argv[2]), second = (unsigned)atoi(argv[3]);
    open_device();
    if (strcmp(argv[1], "send") == 0)
        send_all(first, second);
    else
        receive((uint16_t)first, second, strcmp(argv[1], "sniff") == 0);
    close_device();
    puts("ok");
    return 0;
}
