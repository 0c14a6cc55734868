/*
 * An NVMe over RDMA host in user space.
 *
 *     nvme-host ADDRESS PORT SUBSYSTEM identify
 *     nvme-host ADDRESS PORT SUBSYSTEM [--size BYTES] [--invalidate] write|read FILE BYTES
 *     nvme-host ADDRESS PORT SUBSYSTEM [--size BYTES] [--invalidate] busy
 *
 * `write` copies the first BYTES of FILE to the start of namespace 1, and `read` copies them back; `busy` writes and reads until it
 * is ended, and compares. Commands carry up to --size bytes (131072), and up to 31 of them are on their way. With
 * --invalidate each has a memory window, which the response has to invalidate.
 */
#include "connection.h"
#include "nvme.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ADMIN = 0, IO = 1 };
enum { READS = 16, RETRIES = 7 };
/* wr_id: receives have the slot's number. */
enum { SENT = 1000, BOUND = 2000 };

static const char *HOST = "nqn.2014-08.org.nvmexpress:uuid:5f0c2d1e-8a34-4b7e-9d61-1f2e3d4c5b6a";
static const char *subsystem;
static size_t transfer_size = 131072;
static int invalidate;

struct queue {
    struct connection *connection;
    uint8_t commands[DEPTH][COMMAND], responses[DEPTH][RESPONSE];
    struct ibv_mr *commands_region, *responses_region;
    struct ibv_mw *windows[DEPTH];
    /* Key of the command's window; 0: no window. */
    uint32_t keys[DEPTH];
    int busy[DEPTH], in_flight;
};

static void post_response(struct queue *queue, int slot) {
    connection_receive(queue->connection, slot, queue->responses[slot], RESPONSE, queue->responses_region->lkey);
}

static struct queue *open_queue(const char *address, int port, int number) {
    struct queue *queue = calloc(1, sizeof *queue);
    if (!queue)
        fail("calloc: %m");
    queue->connection = connection_resolve(address, port, 3 * DEPTH, DEPTH);
    queue->commands_region = connection_register(queue->connection, queue->commands, sizeof queue->commands, 0);
    queue->responses_region =
        connection_register(queue->connection, queue->responses, sizeof queue->responses, IBV_ACCESS_LOCAL_WRITE);
    for (int slot = 0; slot < DEPTH; slot++)
        post_response(queue, slot);
    uint8_t request[32] = {0};
    put(request + 2, number, 2);
    put(request + 4, DEPTH, 2);
    put(request + 6, DEPTH - 1, 2);
    connection_connect(queue->connection, request, sizeof request, READS, RETRIES);
    return queue;
}

/* An empty command of this opcode in a free slot, whose number is the command's identifier. */
static uint8_t *command(struct queue *queue, int opcode) {
    int slot = 0;
    while (queue->busy[slot])
        slot++;
    uint8_t *at = queue->commands[slot];
    memset(at, 0, COMMAND);
    at[0] = opcode;
    at[1] = SGL_KEYED;
    put(at + 2, slot, 2);
    at[39] = SGL_KEYED;
    queue->keys[slot] = 0;
    return at;
}

static void describe(uint8_t *at, const void *data, uint32_t length, uint32_t key) {
    put(at + 24, (uintptr_t)data, 8);
    put(at + 32, length, 3);
    put(at + 35, key, 4);
}

/* Binds the slot's window, and describes the data by it. */
static void describe_by_window(struct queue *queue, uint8_t *at, struct ibv_mr *region, void *data, uint32_t length, int access) {
    int slot = get(at + 2, 2);
    struct ibv_mw *window = queue->windows[slot];
    if (!window && !(window = queue->windows[slot] = ibv_alloc_mw(queue->connection->pd, IBV_MW_TYPE_2)))
        fail("ibv_alloc_mw: %m");
    struct ibv_send_wr bind = {.wr_id = BOUND, .opcode = IBV_WR_BIND_MW};
    bind.bind_mw.mw = window;
    bind.bind_mw.rkey = ibv_inc_rkey(window->rkey);
    bind.bind_mw.bind_info = (struct ibv_mw_bind_info){region, (uintptr_t)data, length, access};
    connection_post(queue->connection, &bind);
    window->rkey = queue->keys[slot] = bind.bind_mw.rkey;
    describe(at, data, length, bind.bind_mw.rkey);
    at[39] = SGL_KEYED | SGL_INVALIDATE;
}

static void submit(struct queue *queue, uint8_t *at) {
    struct ibv_sge place = {(uintptr_t)at, COMMAND, queue->commands_region->lkey};
    struct ibv_send_wr send = {
        .wr_id = SENT, .sg_list = &place, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
    };
    queue->busy[get(at + 2, 2)] = 1;
    queue->in_flight++;
    connection_post(queue->connection, &send);
}

/* Waits for a response; its result. */
static uint64_t response(struct queue *queue, const char *doing) {
    struct ibv_wc completion;
    do
        completion = connection_wait(queue->connection, doing);
    while (completion.wr_id >= SENT);
    uint8_t *at = queue->responses[completion.wr_id];
    unsigned slot = get(at + 12, 2), status = get(at + 14, 2) >> 1;
    uint64_t result = get(at, 8);
    if (slot >= DEPTH || !queue->busy[slot])
        fail("%s: a response to command %u, which is not on its way", doing, slot);
    if (status)
        fail("%s: status %#x", doing, status);
    uint32_t gone = completion.wc_flags & IBV_WC_WITH_INV ? completion.invalidated_rkey : 0;
    if (gone != queue->keys[slot])
        fail("%s: the response invalidated key %#x, and the command's was %#x", doing, gone, queue->keys[slot]);
    queue->busy[slot] = 0;
    queue->in_flight--;
    post_response(queue, completion.wr_id);
    return result;
}

static uint64_t property(struct queue *queue, int offset, int bytes, const uint64_t *value) {
    uint8_t *at = command(queue, NVME_FABRICS);
    at[4] = value ? FABRICS_PROPERTY_SET : FABRICS_PROPERTY_GET;
    at[40] = bytes == 8;
    put(at + 44, offset, 4);
    if (value)
        put(at + 48, *value, 8);
    submit(queue, at);
    return response(queue, value ? "setting a property" : "getting a property");
}

/* Connect of the queue; the controller's identifier. */
static unsigned fabrics_connect(struct queue *queue, int number, unsigned controller) {
    static uint8_t data[CONNECT_DATA];
    memset(data, 0, sizeof data);
    memset(data, 0x5f, 16);
    put(data + 16, controller, 2);
    snprintf((char *)data + 256, 256, "%s", subsystem);
    snprintf((char *)data + 512, 256, "%s", HOST);
    struct ibv_mr *region = connection_register(queue->connection, data, sizeof data, IBV_ACCESS_REMOTE_READ);
    uint8_t *at = command(queue, NVME_FABRICS);
    at[4] = FABRICS_CONNECT;
    describe(at, data, sizeof data, region->rkey);
    put(at + 42, number, 2);
    put(at + 44, DEPTH - 1, 2);
    submit(queue, at);
    controller = response(queue, "Connect") & 0xffff;
    ibv_dereg_mr(region);
    return controller;
}

/* Identify of namespace 1, or of the controller, into 4096 bytes. */
static void identify(struct queue *queue, int subject, uint8_t *into) {
    struct ibv_mr *region =
        connection_register(queue->connection, into, IDENTIFY_DATA, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    uint8_t *at = command(queue, NVME_IDENTIFY);
    put(at + 4, subject == IDENTIFY_NAMESPACE, 4);
    at[40] = subject;
    describe(at, into, IDENTIFY_DATA, region->rkey);
    submit(queue, at);
    response(queue, "Identify");
    ibv_dereg_mr(region);
}

struct disk {
    struct queue *admin, *io;
    unsigned controller, block;
    uint64_t blocks;
};

static struct disk open_disk(const char *address, int port) {
    static uint8_t data[IDENTIFY_DATA];
    struct disk disk = {.admin = open_queue(address, port, ADMIN)};
    disk.controller = fabrics_connect(disk.admin, ADMIN, 0xffff);
    property(disk.admin, PROPERTY_CAP, 8, NULL);
    /* Enabled; I/O commands of 64 bytes, completions of 16. */
    uint64_t enable = 1 | 6 << 16 | 4 << 20;
    property(disk.admin, PROPERTY_CC, 4, &enable);
    while (!(property(disk.admin, PROPERTY_CSTS, 4, NULL) & 1))
        usleep(10000);
    identify(disk.admin, IDENTIFY_CONTROLLER, data);
    if (strncmp((char *)data + 768, subsystem, 256))
        fail("Identify names the subsystem %.256s", data + 768);
    printf("controller %u, model %.40s, firmware %.8s\n", disk.controller, data + 24, data + 64);
    identify(disk.admin, IDENTIFY_NAMESPACE, data);
    disk.blocks = get(data, 8);
    disk.block = 1u << data[128 + 4 * (data[26] & 15) + 2];
    printf("namespace 1: %lu blocks of %u bytes\n", (unsigned long)disk.blocks, disk.block);
    uint8_t *at = command(disk.admin, NVME_SET_FEATURES);
    at[40] = 7; /* number of queues; 0-based */
    submit(disk.admin, at);
    response(disk.admin, "setting the number of queues");
    disk.io = open_queue(address, port, IO);
    fabrics_connect(disk.io, IO, disk.controller);
    return disk;
}

/* Writes or reads the start of the disk. */
static void copy(struct disk *disk, int writing, uint8_t *data, size_t length, struct ibv_mr *region) {
    struct queue *queue = disk->io;
    size_t at = 0;
    const char *doing = writing ? "writing" : "reading";
    if (length % disk->block || length / disk->block > disk->blocks)
        fail("%zu bytes are no blocks of the namespace", length);
    while (at < length || queue->in_flight) {
        if (at == length || queue->in_flight == DEPTH - 1) {
            response(queue, doing);
            continue;
        }
        size_t part = length - at < transfer_size ? length - at : transfer_size;
        uint8_t *next = command(queue, writing ? NVME_WRITE : NVME_READ);
        put(next + 4, 1, 4);
        put(next + 40, at / disk->block, 8);
        put(next + 48, part / disk->block - 1, 2);
        if (invalidate)
            describe_by_window(queue, next, region, data + at, part, writing ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE);
        else
            describe(next, data + at, part, region->rkey);
        submit(queue, next);
        at += part;
    }
    if (writing) {
        uint8_t *flush = command(queue, NVME_FLUSH);
        put(flush + 4, 1, 4);
        submit(queue, flush);
        response(queue, "Flush");
    }
}

static struct ibv_mr *whole(struct disk *disk, uint8_t *data, size_t length) {
    return connection_register(disk->io->connection, data, length,
                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND);
}

static void copy_file(struct disk *disk, int writing, const char *path, size_t length) {
    int file = open(path, writing ? O_RDONLY : O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || (!writing && ftruncate(file, length)))
        fail("%s: %m", path);
    uint8_t *data = mmap(NULL, length, PROT_READ | PROT_WRITE, writing ? MAP_PRIVATE : MAP_SHARED, file, 0);
    if (data == MAP_FAILED)
        fail("mmap of %s: %m", path);
    struct ibv_mr *region = whole(disk, data, length);
    copy(disk, writing, data, length, region);
    ibv_dereg_mr(region);
    munmap(data, length);
    close(file);
    printf("%s: %zu bytes %s\n", path, length, writing ? "written" : "read");
}

static void stay_busy(struct disk *disk) {
    size_t length = 1 << 20;
    uint8_t *written = malloc(length), *got = malloc(length);
    if (!written || !got)
        fail("malloc: %m");
    struct ibv_mr *from = whole(disk, written, length), *to = whole(disk, got, length);
    for (unsigned round = 0;; round++) {
        for (size_t i = 0; i < length; i++)
            written[i] = (i * 2654435761u >> 13) + round;
        memset(got, 0, length);
        copy(disk, 1, written, length, from);
        copy(disk, 0, got, length, to);
        if (memcmp(written, got, length))
            fail("round %u: other bytes came back", round);
        printf("round %u\n", round);
    }
}

int main(int count, char **words) {
    const char *usage = "nvme-host ADDRESS PORT SUBSYSTEM [--size BYTES] [--invalidate] identify | busy | write FILE BYTES | read FILE BYTES";
    if (count < 5)
        fail("usage: %s", usage);
    setvbuf(stdout, NULL, _IOLBF, 0);
    subsystem = words[3];
    int next = 4;
    for (; next < count && words[next][0] == '-'; next++) {
        if (!strcmp(words[next], "--invalidate"))
            invalidate = 1;
        else if (!strcmp(words[next], "--size") && next + 1 < count)
            transfer_size = strtoul(words[++next], NULL, 0);
        else
            fail("usage: %s", usage);
    }
    const char *task = next < count ? words[next] : "";
    int writing = !strcmp(task, "write"), busy = !strcmp(task, "busy");
    if (!(count - next == 3 && (writing || !strcmp(task, "read"))) && !(count - next == 1 && (busy || !strcmp(task, "identify"))))
        fail("usage: %s", usage);
    struct disk disk = open_disk(words[1], atoi(words[2]));
    if (busy)
        stay_busy(&disk);
    else if (count - next == 3)
        copy_file(&disk, writing, words[next + 1], strtoul(words[next + 2], NULL, 0));
    connection_close(disk.io->connection);
    connection_close(disk.admin->connection);
    return 0;
}
