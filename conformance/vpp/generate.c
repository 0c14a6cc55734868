/* Sends UDP packets of 64 bytes on the cable, FCS included, as fast as one processor does: generate NETDEV MAC SOURCE DESTINATION
 * SECONDS. Prints how many have left. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <netpacket/packet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { BURST = 64, LENGTH = 60, HEADER = 14 };

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    unsigned mac[6];
    if (argc != 6 || sscanf(argv[2], "%x:%x:%x:%x:%x:%x", &mac[0], &mac[1], &mac[2], &mac[3], &mac[4], &mac[5]) != 6)
        return 2;
    static uint8_t frame[LENGTH];
    for (int i = 0; i < 6; i++)
        frame[i] = (uint8_t)mac[i];
    memcpy(frame + 6, "\2\0\0\0\0\7\10\0", 8);
    struct iphdr ip = {.version = 4, .ihl = 5, .tot_len = htons(LENGTH - HEADER), .ttl = 64, .protocol = IPPROTO_UDP};
    inet_pton(AF_INET, argv[3], &ip.saddr);
    inet_pton(AF_INET, argv[4], &ip.daddr);
    uint32_t sum = 0;
    uint16_t words[sizeof ip / 2];
    memcpy(words, &ip, sizeof ip);
    for (size_t i = 0; i < sizeof ip / 2; i++)
        sum += words[i];
    sum = (sum & 0xffff) + (sum >> 16);
    ip.check = (uint16_t)~(sum + (sum >> 16));
    struct udphdr udp = {.source = htons(4001), .dest = htons(9), .len = htons(LENGTH - HEADER - sizeof ip)};
    memcpy(frame + HEADER, &ip, sizeof ip);
    memcpy(frame + HEADER + sizeof ip, &udp, sizeof udp);

    int fd = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(argv[1])};
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0) {
        perror("generate");
        return 1;
    }
    struct iovec parts[BURST];
    struct mmsghdr messages[BURST] = {0};
    for (int i = 0; i < BURST; i++) {
        parts[i] = (struct iovec){frame, LENGTH};
        messages[i].msg_hdr.msg_iov = &parts[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    unsigned long sent = 0;
    for (double end = now() + atof(argv[5]); now() < end;) {
        int left = sendmmsg(fd, messages, BURST, 0);
        sent += left > 0 ? (unsigned long)left : 0;
    }
    printf("%lu\n", sent);
    return 0;
}
