/*
 * An NFSv4 client over RPC-over-RDMA in user space.
 *
 *     nfs-client ADDRESS PORT null | put FILE NAME | get NAME FILE BYTES
 *
 * NAME is in the server's root export, and there already. Data goes by chunks: the server READs what is written, and WRITEs what is
 * read, up to 262144 bytes of each call.
 */
#include "connection.h"

#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INLINE = 4096, RECEIVES = 16, SENDS = 16, READS = 16, RETRIES = 6, PART = 262144, REQUEST = 1024 };
enum { SENT = 1000 };
/* RPC over RDMA (RFC 8166), RPC (RFC 5531). */
enum { RDMA_VERSION = 1, RDMA_MSG = 0, RPC_CALL = 0, RPC_REPLY = 1, RPC_VERSION = 2, AUTH_SYS = 1 };
/* NFSv4.0 (RFC 7530). */
enum { NFS = 100003, NFS_VERSION = 4, PROCEDURE_NULL = 0, PROCEDURE_COMPOUND = 1 };
enum { OP_COMMIT = 5, OP_LOOKUP = 15, OP_PUTROOTFH = 24, OP_READ = 25, OP_WRITE = 38, UNSTABLE = 0 };

/* XDR: big-endian words in a message that is written or read. */
struct xdr {
    uint8_t *at, *end;
};

static void word(struct xdr *xdr, uint32_t value) {
    if (xdr->end - xdr->at < 4)
        fail("a call has no room");
    value = htonl(value);
    memcpy(xdr->at, &value, 4);
    xdr->at += 4;
}

static void hyper(struct xdr *xdr, uint64_t value) {
    word(xdr, value >> 32);
    word(xdr, value);
}

static void string(struct xdr *xdr, const char *text) {
    uint32_t length = strlen(text), padded = (length + 3) & ~3u;
    word(xdr, length);
    if (xdr->end - xdr->at < (ptrdiff_t)padded)
        fail("a call has no room");
    memset(xdr->at, 0, padded);
    memcpy(xdr->at, text, length);
    xdr->at += padded;
}

static uint32_t next_word(struct xdr *xdr) {
    uint32_t value;
    if (xdr->end - xdr->at < 4)
        fail("a reply is cut");
    memcpy(&value, xdr->at, 4);
    xdr->at += 4;
    return ntohl(value);
}

static uint64_t next_hyper(struct xdr *xdr) {
    uint64_t high = next_word(xdr);
    return high << 32 | next_word(xdr);
}

static void skip(struct xdr *xdr, uint32_t bytes) {
    for (bytes = (bytes + 3) & ~3u; bytes; bytes -= 4)
        next_word(xdr);
}

/* Data of a call: a part of a region, which the server READs at a place of the call's message, or WRITEs. */
struct chunk {
    int writing;
    uint8_t *data;
    uint32_t length, key;
};

struct client {
    struct connection *connection;
    uint8_t call[INLINE], replies[RECEIVES][INLINE];
    struct ibv_mr *call_region, *replies_region;
    uint32_t transaction;
};

static void post_reply(struct client *client, int slot) {
    connection_receive(client->connection, slot, client->replies[slot], INLINE, client->replies_region->lkey);
}

static struct client *open_client(const char *address, int port) {
    struct client *client = calloc(1, sizeof *client);
    if (!client)
        fail("calloc: %m");
    client->connection = connection_resolve(address, port, SENDS, RECEIVES);
    client->call_region = connection_register(client->connection, client->call, INLINE, 0);
    client->replies_region = connection_register(client->connection, client->replies, sizeof client->replies, IBV_ACCESS_LOCAL_WRITE);
    for (int slot = 0; slot < RECEIVES; slot++)
        post_reply(client, slot);
    connection_connect(client->connection, NULL, 0, READS, RETRIES);
    return client;
}

/* Starts an RPC call. */
static void begin(struct xdr *message, int procedure, uint32_t transaction) {
    word(message, transaction);
    word(message, RPC_CALL);
    word(message, RPC_VERSION);
    word(message, NFS);
    word(message, NFS_VERSION);
    word(message, procedure);
    word(message, AUTH_SYS);
    word(message, 24);
    word(message, 0);
    string(message, "urxe");
    /* User and group 0, no more groups; no verifier. */
    for (int field = 0; field < 5; field++)
        word(message, 0);

}

/* Puts the header for the chunk before the message. */
static void transport_header(struct xdr *xdr, uint32_t transaction, const struct chunk *chunk, uint32_t position) {
    word(xdr, transaction);
    word(xdr, RDMA_VERSION);
    word(xdr, RECEIVES);
    word(xdr, RDMA_MSG);
    if (chunk && chunk->writing) {
        word(xdr, 1);
        word(xdr, position);
        word(xdr, chunk->key);
        word(xdr, chunk->length);
        hyper(xdr, (uintptr_t)chunk->data);
    }
    word(xdr, 0);
    if (chunk && !chunk->writing) {
        word(xdr, 1);
        word(xdr, 1);
        word(xdr, chunk->key);
        word(xdr, chunk->length);
        hyper(xdr, (uintptr_t)chunk->data);
    }
    word(xdr, 0);
    word(xdr, 0);
}

/* Reads the header of a reply, and RPC's; what comes after it. Bytes that the server wrote to the chunk go to `written`. */
static struct xdr accepted(struct xdr reply, uint32_t transaction, uint32_t *written) {
    *written = 0;
    if (next_word(&reply) != transaction || next_word(&reply) != RDMA_VERSION)
        fail("a reply to another call");
    next_word(&reply);
    uint32_t type = next_word(&reply);
    if (type != RDMA_MSG)
        fail("a reply of type %u", type);
    if (next_word(&reply))
        fail("a reply with a read list");
    while (next_word(&reply))
        for (uint32_t segments = next_word(&reply); segments; segments--) {
            next_word(&reply);
            *written += next_word(&reply);
            next_hyper(&reply);
        }
    if (next_word(&reply))
        fail("a reply with a reply chunk");
    if (next_word(&reply) != transaction || next_word(&reply) != RPC_REPLY || next_word(&reply))
        fail("RPC denies the call");
    next_word(&reply);
    skip(&reply, next_word(&reply));
    uint32_t status = next_word(&reply);
    if (status)
        fail("RPC does not take the call: %u", status);
    return reply;
}

/* Sends a call, `length` bytes of `message`, and waits for its reply. */
static struct xdr exchange(struct client *client, const uint8_t *message, uint32_t length, const struct chunk *chunk, uint32_t position,
                           uint32_t *written) {
    static uint8_t copy[INLINE];
    struct xdr xdr = {client->call, client->call + INLINE};
    transport_header(&xdr, client->transaction, chunk, position);
    if (xdr.end - xdr.at < (ptrdiff_t)length)
        fail("a call has no room");
    memcpy(xdr.at, message, length);
    struct ibv_sge place = {(uintptr_t)client->call, xdr.at + length - client->call, client->call_region->lkey};
    struct ibv_send_wr send = {
        .wr_id = SENT, .sg_list = &place, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
    };
    connection_post(client->connection, &send);
    struct ibv_wc completion;
    int sent = 0, slot = -1;
    uint32_t size = 0;
    while (!sent || slot < 0) {
        completion = connection_wait(client->connection, "calling the server");
        if (completion.wr_id == SENT) {
            sent = 1;
        } else {
            slot = completion.wr_id;
            size = completion.byte_len;
        }
    }
    memcpy(copy, client->replies[slot], size);
    post_reply(client, slot);
    return accepted((struct xdr){copy, copy + size}, client->transaction++, written);
}

/* Starts a compound that has the file as its current one; two operations, and more. */
static void open_compound(struct xdr *xdr, struct client *client, const char *name, int operations) {
    begin(xdr, PROCEDURE_COMPOUND, client->transaction);
    string(xdr, "");
    word(xdr, 0);
    word(xdr, 2 + operations);
    word(xdr, OP_PUTROOTFH);
    word(xdr, OP_LOOKUP);
    string(xdr, name);
}

/* Reads the results of a compound up to that of its third operation. */
static void third_result(struct xdr *reply, uint32_t operation) {
    uint32_t status = next_word(reply);
    skip(reply, next_word(reply));
    uint32_t results = next_word(reply);
    for (uint32_t i = 0; i < 3 && i < results; i++) {
        uint32_t found = next_word(reply), error = next_word(reply);
        if (error)
            fail("operation %u: status %u", found, error);
        if (i == 2 && found == operation)
            return;
    }
    fail("a compound of %u results, status %u", results, status);
}

/* The stateid of nobody's opening. */
static void anonymous(struct xdr *xdr) {
    for (int field = 0; field < 4; field++)
        word(xdr, 0);
}

/* Begins the request for a part of a file, in `message`, which has REQUEST bytes. */
static struct xdr begin_part(struct client *client, uint8_t *message, const char *name, uint32_t operation, uint64_t at) {
    struct xdr xdr = {message, message + REQUEST};
    open_compound(&xdr, client, name, 1);
    word(&xdr, operation);
    anonymous(&xdr);
    hyper(&xdr, at);
    return xdr;
}

static void write_part(struct client *client, const char *name, uint64_t at, struct chunk chunk) {
    uint8_t message[REQUEST];
    uint32_t ignored;
    struct xdr xdr = begin_part(client, message, name, OP_WRITE, at);
    word(&xdr, UNSTABLE);
    word(&xdr, chunk.length);
    uint32_t length = xdr.at - message;
    struct xdr reply = exchange(client, message, length, &chunk, length, &ignored);
    third_result(&reply, OP_WRITE);
    uint32_t count = next_word(&reply);
    if (count != chunk.length)
        fail("WRITE of %u bytes: %u were written", chunk.length, count);
}

static void read_part(struct client *client, const char *name, uint64_t at, struct chunk chunk) {
    uint8_t message[REQUEST];
    uint32_t written;
    struct xdr xdr = begin_part(client, message, name, OP_READ, at);
    word(&xdr, chunk.length);
    struct xdr reply = exchange(client, message, xdr.at - message, &chunk, 0, &written);
    third_result(&reply, OP_READ);
    next_word(&reply);
    uint32_t count = next_word(&reply);
    if (count != chunk.length || written < count)
        fail("READ of %u bytes: %u are there, %u came by the chunk", chunk.length, count, written);
}

static void copy_file(struct client *client, int writing, const char *path, const char *name, uint64_t length) {
    int file = open(path, writing ? O_RDONLY : O_RDWR | O_CREAT | O_TRUNC, 0644);
    struct stat status;
    if (file < 0 || fstat(file, &status) || (!writing && ftruncate(file, length)))
        fail("%s: %m", path);
    length = writing ? (uint64_t)status.st_size : length;
    uint8_t *data = mmap(NULL, length, PROT_READ | PROT_WRITE, writing ? MAP_PRIVATE : MAP_SHARED, file, 0);
    if (data == MAP_FAILED)
        fail("mmap of %s: %m", path);
    struct ibv_mr *region = connection_register(client->connection, data, length,
                                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    for (uint64_t at = 0; at < length; at += PART) {
        struct chunk chunk = {writing, data + at, length - at < PART ? length - at : PART, region->rkey};
        (writing ? write_part : read_part)(client, name, at, chunk);
    }
    ibv_dereg_mr(region);
    munmap(data, length);
    close(file);
    printf("%s: %lu bytes %s\n", name, (unsigned long)length, writing ? "written" : "read");
}

int main(int count, char **words) {
    const char *task = count > 3 ? words[3] : "";
    int null = count == 4 && !strcmp(task, "null"), put = count == 6 && !strcmp(task, "put"), get = count == 7 && !strcmp(task, "get");
    if (!null && !put && !get)
        fail("usage: nfs-client ADDRESS PORT null | put FILE NAME | get NAME FILE BYTES");
    struct client *client = open_client(words[1], atoi(words[2]));
    if (null) {
        uint8_t message[256];
        uint32_t ignored;
        struct xdr xdr = {message, message + sizeof message};
        begin(&xdr, PROCEDURE_NULL, client->transaction);
        exchange(client, message, xdr.at - message, NULL, 0, &ignored);
        printf("NFSv4 answers\n");
    } else if (put) {
        copy_file(client, 1, words[4], words[5], 0);
    } else {
        copy_file(client, 0, words[5], words[4], strtoull(words[6], NULL, 0));
    }
    connection_close(client->connection);
    return 0;
}
