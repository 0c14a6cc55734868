/* Each specification of flow rules, with a frame that meets it and one that does not. "taken": what a rule takes is not the host's any
 * more; "copied": it is. Prints "ok". */
#include "raw_ethernet.h"

#include <net/if.h>
#include <netpacket/packet.h>
#include <stddef.h>
#include <sys/socket.h>

enum { BEFORE_IP = 14, LONGEST = 256 };

/* A frame in the making. */
struct making {
    uint8_t bytes[LONGEST];
    uint32_t length;
};

static void add(struct making *making, const void *bytes, size_t length)
{
    CHECK(making->length + length <= LONGEST);
    memcpy(making->bytes + making->length, bytes, length);
    making->length += (uint32_t)length;
}

#define ADD(making, ...)                                   \
    do {                                                   \
        const uint8_t added[] = {__VA_ARGS__};             \
        add(making, added, sizeof added);                  \
    } while (0)

static void ethertype_of_ipv4(struct making *making)
{
    ADD(making, 8, 0);
}

static void addresses(struct making *making)
{
    add(making, here, 6);
    add(making, there, 6);
}

static void tags(struct making *making, int count)
{
    for (int tag = 0; tag < count; tag++)
        ADD(making, tag ? 0x81 : 0x88, tag ? 0x00 : 0xa8, 0x60, 5);
}

/* IPv4 with `options` words of options, behind an ethertype. */
static void ipv4(struct making *making, uint8_t protocol, int options)
{
    ADD(making, (uint8_t)(0x45 + options), 0x28, 0, 100, 0, 0, 0, 0, 63, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2);
    for (int word = 0; word < options; word++)
        ADD(making, 1, 1, 1, 1);
}

/* IPv6 with a header of destination options. */
static void ipv6(struct making *making, uint8_t protocol)
{
    ADD(making, 0x86, 0xdd, 0x61, 0x23, 0x45, 0x67, 0, 60, 60, 9);
    ADD(making, 0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2);
    ADD(making, protocol, 0, 1, 4, 0, 0, 0, 0);
}

static void transport(struct making *making, uint16_t to)
{
    ADD(making, 0x12, 0x34, (uint8_t)(to >> 8), (uint8_t)to, 0, 50, 0, 0, 1, 2, 3, 4, 0x50, 0, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8);
}

/* A frame inside of VXLAN: its UDP header is the first 8 bytes of what follows an IP header. */
static void vxlan(struct making *making, uint8_t vni)
{
    ADD(making, 0x12, 0x34, 4789 >> 8, 4789 & 0xff, 0, 90, 0, 0, 8, 0, 0, 0, 0, 7, vni, 0);
    add(making, there, 6);
    add(making, here, 6);
}

static void gre(struct making *making, uint8_t key)
{
    /* A checksum, a key and a sequence number; then IPv4. */
    ADD(making, 0xb0, 0);
    ethertype_of_ipv4(making);
    ADD(making, 0, 0, 0, 0, 1, 2, 3, key, 0, 0, 0, 9);
}

static struct {
    struct ibv_flow_attr attr;
    uint8_t specs[LONGEST];
} rule;

static void begin(void)
{
    memset(&rule, 0, sizeof rule);
    rule.attr.type = IBV_FLOW_ATTR_NORMAL;
    rule.attr.port = 1;
}

/* Adds a specification. */
static void want(const void *spec, size_t length)
{
    static size_t used;
    if (rule.attr.num_of_specs++ == 0)
        used = 0;
    CHECK(used + length <= sizeof rule.specs);
    memcpy(rule.specs + used, spec, length);
    used += length;
}

static int host;
static struct end end;
static int is_taken;

/* How many frames the host's network stack has got since the last call. */
static int seen_by_host(void)
{
    uint8_t bytes[LONG];
    int count = 0;
    while (recv(host, bytes, sizeof bytes, MSG_DONTWAIT) >= 0)
        count++;
    CHECK(errno == EAGAIN);
    return count;
}

static void try_rule(const char *name, const struct making *met, const struct making *other)
{
    struct ibv_flow *made = ibv_create_flow(end.qp, &rule.attr);
    if (!made) {
        fprintf(stderr, "%s: errno %d\n", name, errno);
        exit(1);
    }
    settle(&end);
    seen_by_host();
    const struct making *sent[2] = {other, met};
    for (int i = 0; i < 2; i++) {
        memcpy(memory, sent[i]->bytes, sent[i]->length);
        struct ibv_sge list = part(0, sent[i]->length);
        CHECK(post_list(&end, &list, 1, 0) == 0 && next(end.send_cq).status == IBV_WC_SUCCESS);
    }
    struct ibv_wc wc = next(end.recv_cq);
    const uint8_t *got = memory + SLOT * (1 + wc.wr_id);
    if (wc.status || wc.byte_len != met->length || memcmp(got, met->bytes, met->length)) {
        fprintf(stderr, "%s: status %d, %u bytes\n", name, wc.status, wc.byte_len);
        exit(1);
    }
    post_recv(&end, wc.wr_id, SLOT * (1 + wc.wr_id), SLOT);
    settle(&end);
    CHECK(count(end.recv_cq) == 0);
    /* The marker of `settle` is the host's as well. */
    int seen = seen_by_host();
    if (seen != (is_taken ? 2 : 3)) {
        fprintf(stderr, "%s: the host has got %d frames\n", name, seen);
        exit(1);
    }
    CHECK(ibv_destroy_flow(made) == 0);
}

#define SPEC(kind, type_of, ...)                                                        \
    do {                                                                                \
        struct kind spec = {.type = (enum ibv_flow_spec_type)(type_of), .size = sizeof spec, __VA_ARGS__}; \
        want(&spec, sizeof spec);                                                       \
    } while (0)

static void outer(void)
{
    struct making met = {.length = 0}, other = {.length = 0};
    addresses(&met);
    tags(&met, 2);
    ethertype_of_ipv4(&met);
    ipv4(&met, 17, 2);
    transport(&met, 4000);
    other = met;
    other.bytes[15] = 6;
    begin();
    SPEC(ibv_flow_spec_eth, IBV_FLOW_SPEC_ETH, .val = {.vlan_tag = htons(5), .ether_type = htons(0x0800)},
         .mask = {.vlan_tag = htons(0xfff), .ether_type = 0xffff});
    try_rule("ETH", &met, &other);

    other = met;
    other.bytes[other.length - 22] ^= 1;
    begin();
    SPEC(ibv_flow_spec_eth, IBV_FLOW_SPEC_ETH, .mask = {.ether_type = 0});
    SPEC(ibv_flow_spec_ipv4, IBV_FLOW_SPEC_IPV4, .val = {.src_ip = htonl(0x0a000001)}, .mask = {.src_ip = htonl(0xff0000ff)});
    SPEC(ibv_flow_spec_tcp_udp, IBV_FLOW_SPEC_UDP, .val = {.dst_port = htons(4000), .src_port = htons(0x1234)},
         .mask = {.dst_port = 0xffff, .src_port = 0xffff});
    try_rule("IPV4, UDP", &met, &other);

    other.bytes[other.length - 22] ^= 1;
    other.bytes[BEFORE_IP + 8 + 8] = 64;
    begin();
    SPEC(ibv_flow_spec_ipv4_ext, IBV_FLOW_SPEC_IPV4_EXT, .val = {.proto = 17, .tos = 0x28, .ttl = 63},
         .mask = {.proto = 0xff, .tos = 0xfc, .ttl = 0xff});
    try_rule("IPV4_EXT", &met, &other);

    met.length = 0;
    addresses(&met);
    ipv6(&met, 6);
    transport(&met, 81);
    other = met;
    other.bytes[BEFORE_IP + 39] = 3;
    begin();
    SPEC(ibv_flow_spec_ipv6, IBV_FLOW_SPEC_IPV6,
         .val = {.dst_ip = {0xfd, 0x77, [15] = 2}, .flow_label = htonl(0x34567), .traffic_class = 0x12, .hop_limit = 9, .next_hdr = 60},
         .mask = {.dst_ip = {0xff, 0xff, [15] = 0xff}, .flow_label = htonl(0xfffff), .traffic_class = 0xff, .hop_limit = 0xff, .next_hdr = 0xff});
    try_rule("IPV6", &met, &other);

    other = met;
    other.bytes[BEFORE_IP + 40] = 17;
    begin();
    SPEC(ibv_flow_spec_tcp_udp, IBV_FLOW_SPEC_TCP, .val = {.dst_port = htons(81)}, .mask = {.dst_port = 0xffff});
    try_rule("TCP", &met, &other);
}

static void tunnels(void)
{
    struct making met = {.length = 0}, other = {.length = 0};
    addresses(&met);
    ethertype_of_ipv4(&met);
    ipv4(&met, 17, 0);
    vxlan(&met, 9);
    tags(&met, 1);
    ipv6(&met, 17);
    transport(&met, 4001);
    other = met;
    other.bytes[BEFORE_IP + 20 + 8 + 6] = 8;
    begin();
    SPEC(ibv_flow_spec_tunnel, IBV_FLOW_SPEC_VXLAN_TUNNEL, .val = {.tunnel_id = htonl(0x709)}, .mask = {.tunnel_id = htonl(0xffffff)});
    try_rule("VXLAN_TUNNEL", &met, &other);

    other = met;
    other.bytes[other.length - 21] ^= 1;
    begin();
    SPEC(ibv_flow_spec_eth, IBV_FLOW_SPEC_ETH | IBV_FLOW_SPEC_INNER, .val = {.dst_mac = {2, 0, 0, 0, 0, 2}}, .mask = {.dst_mac = {[5] = 0xff}});
    SPEC(ibv_flow_spec_tcp_udp, IBV_FLOW_SPEC_UDP | IBV_FLOW_SPEC_INNER, .val = {.dst_port = htons(4001)}, .mask = {.dst_port = 0xffff});
    try_rule("inner UDP", &met, &other);

    met.length = 0;
    addresses(&met);
    ethertype_of_ipv4(&met);
    ipv4(&met, 47, 1);
    gre(&met, 4);
    ipv4(&met, 6, 0);
    transport(&met, 82);
    other = met;
    other.bytes[BEFORE_IP + 24 + 11] = 5;
    begin();
    SPEC(ibv_flow_spec_gre, IBV_FLOW_SPEC_GRE, .val = {.protocol = htons(0x0800), .key = htonl(0x01020304)},
         .mask = {.protocol = 0xffff, .key = 0xffffffff});
    try_rule("GRE", &met, &other);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    is_taken = strcmp(argv[1], "taken") == 0;
    host = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(3));
    struct sockaddr_ll lo = {.sll_family = AF_PACKET, .sll_protocol = htons(3), .sll_ifindex = (int)if_nametoindex("lo")};
    int one = 1;
    CHECK(host >= 0 && bind(host, (struct sockaddr *)&lo, sizeof lo) == 0);
    CHECK(setsockopt(host, SOL_PACKET, 23, &one, sizeof one) == 0);
    open_device();
    end = end_in(IBV_QPS_RTS, NULL);
    for (uint64_t i = 0; i < 8; i++)
        post_recv(&end, i, SLOT * (1 + i), SLOT);
    outer();
    tunnels();
    finish(&end);
    close_device();
    puts("ok");
    return 0;
}
