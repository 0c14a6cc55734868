/* A RoCE v2 peer for fuzz targets: the other end of a queue pair, in the process that has the queue pair.
 *
 * The program under test makes its queue pair with ordinary verbs, over urxe (`urxe run -- ./target`), and connects it to the peer:
 * dest_qp_num, rq_psn and the GID are those of struct urxe_fuzz. The peer then sends messages, or any packets, with right ICRCs,
 * and acknowledges what the program sends. It has no thread, and nothing random; functions return 0, or -1 with errno.
 *
 * Header only, for C and C++, IPv4. docs/guide/fuzzing.md has an example. */
#ifndef URXE_FUZZ_H
#define URXE_FUZZ_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define URXE_FUZZ_PORT 4791
/* The longest packet, BTH to padding. */
#define URXE_FUZZ_MAX 4200

struct urxe_fuzz {
	/* What the program connects to. */
	uint32_t qpn;
	uint32_t psn;
	uint8_t gid[16];
	/* The program's queue pair. */
	uint32_t target_qpn;
	/* PSN of the next request, and packets that have come. */
	uint32_t next_psn;
	uint64_t received;
	int rx, tx;
	struct sockaddr_in local, source, target;
};

static inline uint32_t urxe_fuzz_crc(uint32_t crc, const uint8_t *bytes, size_t len)
{
	while (len--) {
		crc ^= *bytes++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (0xEDB88320u & -(crc & 1));
	}
	return crc;
}

static inline void urxe_fuzz_put24(uint8_t *at, uint32_t value)
{
	at[0] = (uint8_t)(value >> 16);
	at[1] = (uint8_t)(value >> 8);
	at[2] = (uint8_t)value;
}

static inline uint32_t urxe_fuzz_get24(const uint8_t *at)
{
	return (uint32_t)at[0] << 16 | (uint32_t)at[1] << 8 | at[2];
}

static inline void urxe_fuzz_close(struct urxe_fuzz *peer)
{
	if (peer->rx >= 0)
		close(peer->rx);
	if (peer->tx >= 0)
		close(peer->tx);
	peer->rx = peer->tx = -1;
}

/* Takes `address`, which no other RoCE v2 process has (127.0.0.2), as the peer of a device at `target` (127.0.0.1). */
static inline int urxe_fuzz_open(struct urxe_fuzz *peer, const char *address, const char *target)
{
	const int discover = IP_PMTUDISC_DO;
	socklen_t len = sizeof(peer->source);

	memset(peer, 0, sizeof(*peer));
	peer->rx = peer->tx = -1;
	peer->qpn = 0x51;
	peer->psn = 0x1000;
	peer->local.sin_family = peer->source.sin_family = peer->target.sin_family = AF_INET;
	peer->local.sin_port = peer->target.sin_port = htons(URXE_FUZZ_PORT);
	if (inet_pton(AF_INET, address, &peer->local.sin_addr) != 1 || inet_pton(AF_INET, target, &peer->target.sin_addr) != 1) {
		errno = EINVAL;
		return -1;
	}
	peer->source.sin_addr = peer->local.sin_addr;
	peer->gid[10] = peer->gid[11] = 0xFF;
	memcpy(peer->gid + 12, &peer->local.sin_addr, 4);
	peer->rx = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	peer->tx = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	/* With DF the kernel gives packets identification 0, which the ICRC covers. */
	if (peer->rx < 0 || peer->tx < 0 || bind(peer->rx, (struct sockaddr *)&peer->local, sizeof(peer->local)) ||
	    setsockopt(peer->tx, IPPROTO_IP, IP_MTU_DISCOVER, &discover, sizeof(discover)) ||
	    bind(peer->tx, (struct sockaddr *)&peer->source, sizeof(peer->source)) ||
	    getsockname(peer->tx, (struct sockaddr *)&peer->source, &len)) {
		const int error = errno;

		urxe_fuzz_close(peer);
		errno = error;
		return -1;
	}
	return 0;
}

/* Names the program's queue pair, and the PSN that it expects first (its rq_psn). */
static inline void urxe_fuzz_connect(struct urxe_fuzz *peer, uint32_t target_qpn, uint32_t rq_psn)
{
	peer->target_qpn = target_qpn;
	peer->next_psn = rq_psn & 0xFFFFFF;
}

/* Sends a packet, from the BTH to the padding, as it is; a right ICRC is appended. */
static inline int urxe_fuzz_deliver(struct urxe_fuzz *peer, const void *packet, size_t len)
{
	uint8_t headers[8 + 20 + 8 + 12], bytes[URXE_FUZZ_MAX + 4];
	uint16_t ip_len = htons((uint16_t)(20 + 8 + len + 4)), udp_len = htons((uint16_t)(8 + len + 4));
	uint32_t crc;

	if (len < 12 || len > URXE_FUZZ_MAX) {
		errno = EINVAL;
		return -1;
	}
	/* IBA 7.8.1, annex A17.3.3: what routers may change counts as ones. */
	memset(headers, 0xFF, 8);
	memcpy(headers + 8, "\x45\xFF\0\0\0\0\x40\0\xFF\x11\xFF\xFF", 12);
	memcpy(headers + 10, &ip_len, 2);
	memcpy(headers + 20, &peer->source.sin_addr, 4);
	memcpy(headers + 24, &peer->target.sin_addr, 4);
	memcpy(headers + 28, &peer->source.sin_port, 2);
	memcpy(headers + 30, &peer->target.sin_port, 2);
	memcpy(headers + 32, &udp_len, 2);
	memset(headers + 34, 0xFF, 2);
	memcpy(headers + 36, packet, 12);
	headers[36 + 4] = 0xFF;
	crc = urxe_fuzz_crc(0xFFFFFFFFu, headers, sizeof(headers));
	crc = ~urxe_fuzz_crc(crc, (const uint8_t *)packet + 12, len - 12);
	memcpy(bytes, packet, len);
	for (int i = 0; i < 4; i++)
		bytes[len + i] = (uint8_t)(crc >> 8 * i);
	return sendto(peer->tx, bytes, len + 4, 0, (struct sockaddr *)&peer->target, sizeof(peer->target)) < 0 ? -1 : 0;
}

/* Sends a message of one packet by SEND, with the next PSN. */
static inline int urxe_fuzz_send(struct urxe_fuzz *peer, const void *message, size_t len)
{
	uint8_t packet[URXE_FUZZ_MAX] = { 0x04 };
	size_t pad = -len & 3;

	if (len > 4096) {
		errno = EMSGSIZE;
		return -1;
	}
	packet[1] = (uint8_t)(pad << 4);
	packet[2] = packet[3] = 0xFF;
	urxe_fuzz_put24(packet + 5, peer->target_qpn);
	packet[8] = 0x80;
	urxe_fuzz_put24(packet + 9, peer->next_psn);
	if (len)
		memcpy(packet + 12, message, len);
	peer->next_psn = (peer->next_psn + 1) & 0xFFFFFF;
	return urxe_fuzz_deliver(peer, packet, 12 + len + pad);
}

/* Takes a packet that the program has sent, if there is one, and acknowledges it where it asks for that. Returns its bytes, BTH to
 * ICRC, in `packet`; 0 if there is none. */
static inline ssize_t urxe_fuzz_receive(struct urxe_fuzz *peer, void *packet, size_t len)
{
	uint8_t ack[16] = { 0x11, 0, 0xFF, 0xFF }, *bytes = (uint8_t *)packet;
	ssize_t got = recv(peer->rx, packet, len, MSG_DONTWAIT);

	if (got < 16)
		return got < 0 && errno != EAGAIN ? -1 : 0;
	peer->received++;
	/* RC requests: SEND, with Invalidate too, and WRITE. READs and atomics are the caller's to answer. */
	if (urxe_fuzz_get24(bytes + 5) == peer->qpn && (bytes[0] <= 0x0B || bytes[0] == 0x16 || bytes[0] == 0x17) && bytes[8] & 0x80) {
		urxe_fuzz_put24(ack + 5, peer->target_qpn);
		memcpy(ack + 9, bytes + 9, 3);
		/* ACK without credits. */
		ack[12] = 0x1F;
		if (urxe_fuzz_deliver(peer, ack, sizeof(ack)))
			return -1;
	}
	return got;
}

#endif
