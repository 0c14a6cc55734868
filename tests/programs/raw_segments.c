/* Frames that the kernel hands on as one are frames of the cable to a raw queue pair. "receive ADDRESS" prints "ready", takes a TCP
 * stream and datagrams by sockets, and compares them with the frames that it receives of them; "send ADDRESS" sends both, as long
 * packets that a card would cut. "receive-datagrams" and "send-datagrams" leave the stream out: rules that take its frames from the host
 * leave no connection. */
#include "raw_ethernet.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { PORT = 4711, TOTAL = 4 << 20, WINDOW = 1 << 18, RECEIVES = 2048, MTU = 1500 };
/* A datagram's payload is cut into so many of this length, and a shorter one. */
enum { PART = 1000, PARTS = 9, REST = 500, MESSAGE = PARTS * PART + REST, MESSAGES = 20 };

static uint8_t pattern(size_t at)
{
    return (uint8_t)(at ^ at >> 8 ^ at >> 16);
}

static uint32_t number(const uint8_t *at, int bytes)
{
    uint32_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
}

/* Linux before 6.2 loses datagrams that are to be cut. */
static int cuts_datagrams(void)
{
    struct utsname system;
    int major, minor;
    CHECK(uname(&system) == 0 && sscanf(system.release, "%d.%d", &major, &minor) == 2);
    return major > 6 || (major == 6 && minor >= 2);
}

static int open_socket(const char *address, int kind, int listens)
{
    struct addrinfo hint = {.ai_socktype = kind, .ai_flags = AI_NUMERICHOST}, *to;
    char port[8];
    snprintf(port, sizeof port, "%d", PORT);
    CHECK(getaddrinfo(address, port, &hint, &to) == 0);
    int fd = socket(to->ai_family, kind | SOCK_CLOEXEC, 0), window = WINDOW, one = 1;
    CHECK(fd >= 0);
    if (listens) {
        CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &window, sizeof window) == 0);
        CHECK(bind(fd, to->ai_addr, to->ai_addrlen) == 0 && fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    } else {
        CHECK(connect(fd, to->ai_addr, to->ai_addrlen) == 0);
    }
    freeaddrinfo(to);
    return fd;
}

static void send_stream(const char *address, uint8_t *bytes)
{
    int fd = open_socket(address, SOCK_STREAM, 0);
    for (size_t sent = 0; sent < TOTAL;) {
        ssize_t now = send(fd, bytes + sent, TOTAL - sent, 0);
        CHECK(now > 0);
        sent += (size_t)now;
    }
    /* The other end closes when it has seen all. */
    CHECK(shutdown(fd, SHUT_WR) == 0 && recv(fd, bytes, 1, 0) == 0 && close(fd) == 0);
}

static void send_all(const char *address, int with_stream)
{
    static uint8_t bytes[TOTAL];
    for (size_t at = 0; at < TOTAL; at++)
        bytes[at] = pattern(at);
    if (with_stream)
        send_stream(address, bytes);
    int part = PART, fd = open_socket(address, SOCK_DGRAM, 0);
    CHECK(setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &part, sizeof part) == 0);
    for (int i = 0; i < MESSAGES && cuts_datagrams(); i++)
        CHECK(send(fd, bytes + i, MESSAGE, 0) == MESSAGE);
    CHECK(close(fd) == 0);
}

/* Packets that the interface has received: of several segments, one. */
static unsigned long packets(void)
{
    FILE *file = fopen("/proc/net/dev", "re");
    CHECK(file);
    char line[512];
    unsigned long bytes, found = 0;
    while (fgets(line, sizeof line, file))
        sscanf(line, " veth0: %lu %lu", &bytes, &found);
    CHECK(fclose(file) == 0);
    return found;
}

static uint64_t sum(const uint8_t *at, size_t length)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < length; i++)
        sum += (uint64_t)at[i] << (i % 2 ? 0 : 8);
    return sum;
}

static int is_whole(uint64_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return sum == 0xffff;
}

/* Looks at the headers of a frame, and returns that of the transport. */
static const uint8_t *transport(const uint8_t *frame, size_t length, uint8_t protocol)
{
    size_t network = HEADER + (number(frame + 12, 2) == 0x8100 ? 4 : 0), header = 40, whole;
    const uint8_t *ip = frame + network;
    CHECK(length <= network + MTU);
    uint64_t pseudo;
    if (ip[0] >> 4 == 4) {
        header = (ip[0] & 15u) * 4;
        whole = number(ip + 2, 2);
        CHECK(is_whole(sum(ip, header)) && ip[9] == protocol);
        pseudo = sum(ip + 12, 8);
    } else {
        whole = header + number(ip + 4, 2);
        CHECK(ip[6] == protocol);
        pseudo = sum(ip + 8, 32);
    }
    CHECK(length == network + whole && is_whole(pseudo + protocol + (whole - header) + sum(ip + header, whole - header)));
    return ip + header;
}

static uint8_t seen[TOTAL];
static unsigned long frames;
static unsigned datagrams;

static void segment(const uint8_t *frame, size_t length)
{
    static uint32_t first;
    const uint8_t *tcp = transport(frame, length, 6);
    size_t header = (tcp[12] >> 4) * 4u, offset, payload = length - (size_t)(tcp - frame) - header;
    if (tcp[13] & 2)
        first = number(tcp + 4, 4) + 1;
    offset = number(tcp + 4, 4) - first;
    CHECK(payload == 0 || offset + payload <= TOTAL);
    for (size_t i = 0; i < payload; i++) {
        CHECK(tcp[header + i] == pattern(offset + i));
        seen[offset + i] = 1;
    }
    frames += payload > 0;
}

static void datagram(const uint8_t *frame, size_t length)
{
    const uint8_t *udp = transport(frame, length, 17);
    unsigned message = datagrams / (PARTS + 1), part = datagrams % (PARTS + 1), payload = part == PARTS ? REST : PART;
    CHECK(number(udp + 4, 2) == 8 + payload);
    for (size_t i = 0; i < payload; i++)
        CHECK(udp[8 + i] == pattern(message + part * PART + i));
    datagrams++;
}

static struct ibv_flow *port_rule(struct ibv_qp *qp, enum ibv_flow_spec_type type)
{
    struct rule rule = rule_to(NULL);
    struct ibv_flow_spec_tcp_udp ports = {.type = type, .size = sizeof ports};
    ports.val.dst_port = htons(PORT);
    ports.mask.dst_port = 0xffff;
    memcpy((uint8_t *)&rule.eth + sizeof rule.eth, &ports, sizeof ports);
    rule.attr.num_of_specs = 2;
    struct ibv_flow *made = ibv_create_flow(qp, &rule.attr);
    CHECK(made);
    return made;
}

static void post(struct ibv_qp *qp, struct ibv_mr *region, uint64_t slot)
{
    struct ibv_sge list = {(uintptr_t)region->addr + slot * SLOT, SLOT, region->lkey};
    struct ibv_recv_wr *bad, wr = {.wr_id = slot, .sg_list = &list, .num_sge = 1};
    CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void poll_frames(struct ibv_qp *qp, struct ibv_mr *region)
{
    struct ibv_wc wc[64];
    int found = ibv_poll_cq(qp->recv_cq, 64, wc);
    CHECK(found >= 0);
    for (int i = 0; i < found; i++) {
        const uint8_t *frame = (uint8_t *)region->addr + wc[i].wr_id * SLOT;
        CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].wc_flags & IBV_WC_IP_CSUM_OK);
        size_t network = HEADER + (number(frame + 12, 2) == 0x8100 ? 4 : 0);
        int is_tcp = frame[network + (frame[network] >> 4 == 4 ? 9 : 6)] == 6;
        (is_tcp ? segment : datagram)(frame, wc[i].byte_len);
        post(qp, region, wc[i].wr_id);
    }
}

/* Reads what its frames have shown: the window holds the sender back until these have been seen. */
static void receive_stream(int server, struct ibv_qp *qp, struct ibv_mr *region)
{
    static uint8_t read_to[TOTAL];
    unsigned long before = packets();
    int fd = -1;
    for (size_t covered = 0, taken = 0; taken < TOTAL;) {
        poll_frames(qp, region);
        while (covered < TOTAL && seen[covered])
            covered++;
        if (fd < 0)
            fd = accept4(server, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        ssize_t now = fd >= 0 && covered > taken ? recv(fd, read_to, covered - taken, 0) : -1;
        CHECK(now > 0 || (now < 0 && (fd < 0 || covered == taken || errno == EAGAIN)));
        taken += now > 0 ? (size_t)now : 0;
    }
    CHECK(packets() - before < frames && close(fd) == 0);
}

static void receive_all(const char *address, int with_stream)
{
    struct ibv_cq *cq = ibv_create_cq(context, RECEIVES, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RAW_PACKET};
    init.cap.max_recv_wr = RECEIVES;
    init.cap.max_recv_sge = 1;
    void *bytes = calloc(RECEIVES, SLOT);
    struct ibv_mr *region = ibv_reg_mr(pd, bytes, (size_t)RECEIVES * SLOT, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_qp *qp = cq && region ? ibv_create_qp(pd, &init) : NULL;
    CHECK(qp && !move(qp, IBV_QPS_INIT, IBV_QP_PORT) && !move(qp, IBV_QPS_RTR, 0));
    for (uint64_t slot = 0; slot < RECEIVES; slot++)
        post(qp, region, slot);
    struct ibv_flow *rules[2] = {port_rule(qp, IBV_FLOW_SPEC_TCP), port_rule(qp, IBV_FLOW_SPEC_UDP)};
    int server = open_socket(address, SOCK_STREAM, 1), datagram_fd = open_socket(address, SOCK_DGRAM, 1);
    CHECK(listen(server, 1) == 0);
    puts("ready");
    fflush(stdout);
    if (with_stream)
        receive_stream(server, qp, region);
    CHECK(close(server) == 0);
    while (datagrams < MESSAGES * (PARTS + 1) && cuts_datagrams())
        poll_frames(qp, region);
    CHECK(close(datagram_fd) == 0 && ibv_destroy_flow(rules[0]) == 0 && ibv_destroy_flow(rules[1]) == 0);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(region) == 0);
    free(bytes);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    int with_stream = strstr(argv[1], "-datagrams") == NULL;
    if (strncmp(argv[1], "send", 4) == 0) {
        send_all(argv[2], with_stream);
    } else {
        open_device();
        receive_all(argv[2], with_stream);
        close_device();
    }
    puts("ok");
    return 0;
}
