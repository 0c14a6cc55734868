/* Peer over librpma, Intel's library for remote persistent memory.
 *
 *     rpma_peer server ADDRESS PORT
 *     rpma_peer client ADDRESS PORT ROUNDS
 *
 * In each round the client writes to the server's memory, flushes, reads it back and compares; then it tells the server, who compares
 * what is there. ROUNDS 0: without end. */

#include <librpma.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SIZE (1u << 20)
/* Behind the data: the word that is written atomically. */
#define WORD SIZE
#define ROOM (SIZE + 4096)

#define ALL_USAGE                                                                                                                  \
    (RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_SEND |    \
     RPMA_MR_USAGE_RECV | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT)

#define TRY(call)                                                                                                                  \
    do {                                                                                                                           \
        int rc_ = (call);                                                                                                          \
        if (rc_) {                                                                                                                 \
            printf("failed: %s: %s\n", #call, rpma_err_2str(rc_));                                                                 \
            exit(1);                                                                                                               \
        }                                                                                                                          \
    } while (0)

struct message {
    uint64_t round, length;
};

struct region {
    char *bytes;
    struct rpma_mr_local *mr;
};

static const size_t LENGTHS[] = {1, 4096, 65537, SIZE};

static struct region region(struct rpma_peer *peer, size_t size)
{
    struct region made = {mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), NULL};
    if (made.bytes == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    TRY(rpma_mr_reg(peer, made.bytes, size, ALL_USAGE, &made.mr));
    return made;
}

static char pattern(uint64_t round, size_t at)
{
    return (char)(round * 31 + at * 7 + (at >> 8));
}

static void compare(const char *where, const char *bytes, struct message message)
{
    for (size_t at = 0; at < message.length; at++) {
        if (bytes[at] != pattern(message.round, at)) {
            printf("different %s: round %lu, byte %zu\n", where, (unsigned long)message.round, at);
            exit(1);
        }
    }
}

static struct rpma_peer *open_peer(const char *address, enum rpma_util_ibv_context_type type)
{
    struct ibv_context *context;
    struct rpma_peer *peer;
    TRY(rpma_utils_get_ibv_context(address, type, &context));
    TRY(rpma_peer_new(context, &peer));
    return peer;
}

static void expect(struct rpma_conn *conn, enum rpma_conn_event expected)
{
    enum rpma_conn_event event;
    TRY(rpma_conn_next_event(conn, &event));
    if (event != expected) {
        printf("failed: %s\n", rpma_utils_conn_event_2str(event));
        exit(1);
    }
}

/* Waits for a completion. */
static enum ibv_wc_opcode completed(struct rpma_conn *conn)
{
    struct rpma_cq *cq;
    struct ibv_wc wc;
    int rc;
    TRY(rpma_conn_get_cq(conn, &cq));
    while ((rc = rpma_cq_get_wc(cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
        TRY(rpma_cq_wait(cq));
    TRY(rc);
    if (wc.status != IBV_WC_SUCCESS) {
        printf("failed: %s\n", ibv_wc_status_str(wc.status));
        exit(1);
    }
    return wc.opcode;
}

static int server(const char *address, const char *port)
{
    struct rpma_peer *peer = open_peer(address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
    struct region data = region(peer, ROOM), messages = region(peer, 4096);
    struct message *in = (struct message *)messages.bytes, *out = in + 1;
    size_t length;
    char descriptor[256];
    TRY(rpma_mr_get_descriptor_size(data.mr, &length));
    TRY(rpma_mr_get_descriptor(data.mr, descriptor));
    struct rpma_conn_private_data told = {descriptor, (uint8_t)length};

    struct rpma_ep *ep;
    struct rpma_conn_req *request;
    struct rpma_conn *conn;
    TRY(rpma_ep_listen(peer, address, port, &ep));
    TRY(rpma_ep_next_conn_req(ep, NULL, &request));
    TRY(rpma_conn_req_recv(request, messages.mr, 0, sizeof *in, NULL));
    TRY(rpma_conn_req_connect(&request, &told, &conn));
    expect(conn, RPMA_CONN_ESTABLISHED);
    for (unsigned long count = 0;;) {
        if (completed(conn) != IBV_WC_RECV)
            continue;
        if (in->length == 0) {
            printf("compared %lu\n", count);
            break;
        }
        compare("at the server", data.bytes, *in);
        uint64_t word;
        memcpy(&word, data.bytes + WORD, sizeof word);
        if (word != in->round) {
            printf("different word: %lu in round %lu\n", (unsigned long)word, (unsigned long)in->round);
            return 1;
        }
        count++;
        *out = *in;
        TRY(rpma_recv(conn, messages.mr, 0, sizeof *in, NULL));
        TRY(rpma_send(conn, messages.mr, sizeof *in, sizeof *out, RPMA_F_COMPLETION_ALWAYS, NULL));
    }
    expect(conn, RPMA_CONN_CLOSED);
    TRY(rpma_conn_disconnect(conn));
    TRY(rpma_conn_delete(&conn));
    TRY(rpma_ep_shutdown(&ep));
    TRY(rpma_mr_dereg(&data.mr));
    TRY(rpma_mr_dereg(&messages.mr));
    TRY(rpma_peer_delete(&peer));
    return 0;
}

static int client(const char *address, const char *port, uint64_t rounds)
{
    struct rpma_peer *peer = open_peer(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
    struct region source = region(peer, SIZE), back = region(peer, ROOM), messages = region(peer, 4096);
    struct message *out = (struct message *)messages.bytes, *in = out + 1;

    struct rpma_conn_req *request;
    struct rpma_conn *conn;
    struct rpma_conn_private_data told;
    struct rpma_mr_remote *remote;
    struct rpma_peer_cfg *cfg;
    TRY(rpma_conn_req_new(peer, address, port, NULL, &request));
    TRY(rpma_conn_req_recv(request, messages.mr, sizeof *out, sizeof *in, NULL));
    TRY(rpma_conn_req_connect(&request, NULL, &conn));
    expect(conn, RPMA_CONN_ESTABLISHED);
    TRY(rpma_conn_get_private_data(conn, &told));
    TRY(rpma_mr_remote_from_descriptor(told.ptr, told.len, &remote));
    /* As where the server says that what is written reaches its persistent memory. */
    TRY(rpma_peer_cfg_new(&cfg));
    TRY(rpma_peer_cfg_set_direct_write_to_pmem(cfg, true));
    TRY(rpma_conn_apply_remote_peer_cfg(conn, cfg));
    TRY(rpma_peer_cfg_delete(&cfg));

    for (uint64_t round = 1; rounds == 0 || round <= rounds; round++) {
        struct message now = {round, LENGTHS[round % (sizeof LENGTHS / sizeof *LENGTHS)]};
        for (size_t at = 0; at < now.length; at++)
            source.bytes[at] = pattern(round, at);
        enum rpma_flush_type type = round / 4 % 2 ? RPMA_FLUSH_TYPE_PERSISTENT : RPMA_FLUSH_TYPE_VISIBILITY;
        char word[8];
        memcpy(word, &round, sizeof word);
        TRY(rpma_write(conn, remote, 0, source.mr, 0, now.length, RPMA_F_COMPLETION_ON_ERROR, NULL));
        TRY(rpma_atomic_write(conn, remote, WORD, word, RPMA_F_COMPLETION_ON_ERROR, NULL));
        TRY(rpma_flush(conn, remote, 0, ROOM, type, RPMA_F_COMPLETION_ALWAYS, NULL));
        completed(conn);
        TRY(rpma_read(conn, back.mr, 0, remote, 0, now.length, RPMA_F_COMPLETION_ALWAYS, NULL));
        completed(conn);
        compare("at the client", back.bytes, now);
        *out = now;
        TRY(rpma_send(conn, messages.mr, 0, sizeof *out, RPMA_F_COMPLETION_ALWAYS, NULL));
        /* The completion of the send, and the answer. */
        completed(conn);
        completed(conn);
        if (memcmp(in, &now, sizeof now) != 0) {
            printf("different answer in round %lu\n", (unsigned long)round);
            return 1;
        }
        TRY(rpma_recv(conn, messages.mr, sizeof *out, sizeof *in, NULL));
        printf("done %lu\n", (unsigned long)round);
    }
    *out = (struct message){0, 0};
    TRY(rpma_send(conn, messages.mr, 0, sizeof *out, RPMA_F_COMPLETION_ALWAYS, NULL));
    completed(conn);
    TRY(rpma_conn_disconnect(conn));
    expect(conn, RPMA_CONN_CLOSED);
    TRY(rpma_mr_remote_delete(&remote));
    TRY(rpma_conn_delete(&conn));
    TRY(rpma_mr_dereg(&source.mr));
    TRY(rpma_mr_dereg(&back.mr));
    TRY(rpma_mr_dereg(&messages.mr));
    TRY(rpma_peer_delete(&peer));
    printf("compared %lu\n", (unsigned long)rounds);
    return 0;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 4 && strcmp(argv[1], "server") == 0)
        return server(argv[2], argv[3]);
    if (argc == 5 && strcmp(argv[1], "client") == 0)
        return client(argv[2], argv[3], strtoull(argv[4], NULL, 10));
    return 2;
}
