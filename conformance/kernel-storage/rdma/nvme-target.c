/*
 * A small NVMe over RDMA target: one subsystem with one namespace, a file.
 *
 *     nvme-target PORT SUBSYSTEM FILE
 *
 * A thread serves each queue, one command at a time. What a host needs for connecting, reading, writing and flushing is there;
 * other commands end with a status.
 */
#include "connection.h"
#include "nvme.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* READs from a host that are on their way at a time; blocks of 512 bytes; transfers of 32 pages at most. */
enum { READS = 16, BLOCK = 512, TRANSFER_PAGES = 5, TRANSFER = 4096 << TRANSFER_PAGES };
enum { CONTROLLERS = 64, QUEUES = 4, SENDS = 16 };
enum { SENT = 1000, MOVED = 2000 };
/* Status codes, with the "do not retry" bit. */
enum { SUCCESS = 0, INVALID_OPCODE = 0x4001, INVALID_FIELD = 0x4002, INVALID_NAMESPACE = 0x400b, LBA_OUT_OF_RANGE = 0x4080, CONNECT_INVALID = 0x4182 };
enum { FEATURE_QUEUES = 7 };

static const char *subsystem;
static uint8_t *disk;
static uint64_t disk_length;
/* Property CC of each controller; its identifier is its place. */
static uint32_t configurations[CONTROLLERS];
static unsigned next_controller = 1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct queue {
    struct connection *connection;
    uint8_t commands[DEPTH][COMMAND], responses[SENDS][RESPONSE], *data;
    struct ibv_mr *commands_region, *responses_region, *data_region;
    unsigned controller, number, next_response, head;
    int connected, sends, moved, lost;
    /* Receives that have completed while a transfer was waited for. */
    unsigned waiting[DEPTH], first_waiting, count_waiting;
    uint64_t read, written;
};

/* Takes a completion, or what ends the connection. */
static void progress(struct queue *queue) {
    struct ibv_wc completion;
    int count = connection_poll(queue->connection, &completion, -1, -1);
    if (count < 0 || (count && completion.status) || (!count && queue->connection->ended))
        queue->lost = 1;
    else if (count && completion.wr_id == SENT)
        queue->sends--;
    else if (count && completion.wr_id == MOVED)
        queue->moved = 1;
    else if (count && completion.byte_len == COMMAND)
        queue->waiting[(queue->first_waiting + queue->count_waiting++) % DEPTH] = completion.wr_id;
    else if (count)
        queue->lost = 1;
}

/* Moves the command's data from or to the host. */
static int move(struct queue *queue, const uint8_t *command, uint32_t length, enum ibv_wr_opcode opcode) {
    struct ibv_sge place = {(uintptr_t)queue->data, length, queue->data_region->lkey};
    struct ibv_send_wr transfer = {
        .wr_id = MOVED, .sg_list = &place, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
    };
    transfer.wr.rdma.remote_addr = get(command + 24, 8);
    transfer.wr.rdma.rkey = get(command + 35, 4);
    if ((command[39] & 0xf0) != SGL_KEYED || get(command + 32, 3) < length || length > TRANSFER)
        return INVALID_FIELD;
    queue->moved = 0;
    connection_post(queue->connection, &transfer);
    while (!queue->moved && !queue->lost)
        progress(queue);
    return SUCCESS;
}

static void respond(struct queue *queue, const uint8_t *command, unsigned status, uint64_t result) {
    while (queue->sends == SENDS && !queue->lost)
        progress(queue);
    if (queue->lost)
        return;
    uint8_t *at = queue->responses[queue->next_response++ % SENDS];
    queue->head = (queue->head + 1) % DEPTH;
    put(at, result, 8);
    put(at + 8, queue->head, 2);
    put(at + 10, queue->number, 2);
    memcpy(at + 12, command + 2, 2);
    put(at + 14, status << 1, 2);
    struct ibv_sge place = {(uintptr_t)at, RESPONSE, queue->responses_region->lkey};
    struct ibv_send_wr send = {
        .wr_id = SENT, .sg_list = &place, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
    };
    if (command[39] == (SGL_KEYED | SGL_INVALIDATE)) {
        send.opcode = IBV_WR_SEND_WITH_INV;
        send.invalidate_rkey = get(command + 35, 4);
    }
    connection_post(queue->connection, &send);
    queue->sends++;
}

static unsigned fabrics_connect(struct queue *queue, const uint8_t *command, uint64_t *result) {
    unsigned status = move(queue, command, CONNECT_DATA, IBV_WR_RDMA_READ);
    unsigned wanted = get(queue->data + 16, 2);
    if (status || queue->lost)
        return status;
    if (strncmp((char *)queue->data + 256, subsystem, 256) || queue->connected || get(command + 42, 2) != queue->number)
        return CONNECT_INVALID;
    pthread_mutex_lock(&lock);
    if (queue->number == 0 && wanted == 0xffff) {
        wanted = next_controller++ % CONTROLLERS;
        configurations[wanted] = 0;
    }
    pthread_mutex_unlock(&lock);
    if (wanted >= CONTROLLERS)
        return CONNECT_INVALID;
    queue->controller = *result = wanted;
    queue->connected = 1;
    return SUCCESS;
}

static unsigned fabrics(struct queue *queue, const uint8_t *command, uint64_t *result) {
    uint32_t offset = get(command + 44, 4);
    if (command[4] == FABRICS_CONNECT)
        return fabrics_connect(queue, command, result);
    uint32_t *configuration = &configurations[queue->controller];
    if (!queue->connected)
        return CONNECT_INVALID;
    if (command[4] == FABRICS_PROPERTY_SET && offset == PROPERTY_CC) {
        *configuration = get(command + 48, 4);
        return SUCCESS;
    }
    if (command[4] != FABRICS_PROPERTY_GET)
        return INVALID_FIELD;
    if (offset == PROPERTY_CAP) /* entries, contiguous queues, 10 s until ready, NVM commands */
        *result = (DEPTH - 1) | 1 << 16 | 20 << 24 | 1ull << 37;
    else if (offset == PROPERTY_VS)
        *result = 0x10201;
    else if (offset == PROPERTY_CC)
        *result = *configuration;
    else if (offset == PROPERTY_CSTS) /* ready as soon as enabled, shut down as soon as told */
        *result = (*configuration & 1) | (*configuration >> 14 & 3 ? 2 << 2 : 0);
    else
        return INVALID_FIELD;
    return SUCCESS;
}

static void text(uint8_t *at, const char *value, size_t room) {
    memset(at, ' ', room);
    memcpy(at, value, strlen(value) < room ? strlen(value) : room);
}

static void describe_controller(const struct queue *queue, uint8_t *at) {
    text(at + 4, "1", 20);
    text(at + 24, "urxe nvme-target", 40);
    text(at + 64, "1", 8);
    at[77] = TRANSFER_PAGES;
    put(at + 78, queue->controller, 2);
    put(at + 80, 0x10201, 4);
    at[111] = 1;              /* an I/O controller */
    at[259] = 3;              /* asynchronous events, 0-based */
    put(at + 320, 10, 2);     /* keep-alive in steps of 1 s */
    at[512] = 0x66;           /* commands of 64 bytes */
    at[513] = 0x44;           /* completions of 16 */
    put(at + 514, DEPTH, 2);  /* commands of a queue */
    put(at + 516, 1, 4);      /* namespaces */
    put(at + 536, 1 | 1 << 2, 4); /* SGLs, with keys; no data inside of capsules */
    snprintf((char *)at + 768, 256, "%s", subsystem);
    put(at + 1792, COMMAND / 16, 4);
    put(at + 1796, RESPONSE / 16, 4);
    at[1803] = 1; /* SGL descriptors of a command */
}

static unsigned identify(struct queue *queue, const uint8_t *command) {
    uint8_t *at = queue->data;
    memset(at, 0, IDENTIFY_DATA);
    if (command[40] == IDENTIFY_CONTROLLER) {
        describe_controller(queue, at);
    } else if (command[40] == IDENTIFY_ACTIVE_NAMESPACES) {
        put(at, get(command + 4, 4) == 0, 4);
    } else if (command[40] == IDENTIFY_NAMESPACE && get(command + 4, 4) == 1) {
        for (int field = 0; field < 24; field += 8)
            put(at + field, disk_length / BLOCK, 8);
        memset(at + 104, 0x75, 16); /* NGUID */
        at[128 + 2] = 9;            /* blocks of 2^9 bytes */
    } else {
        return command[40] == IDENTIFY_NAMESPACE ? INVALID_NAMESPACE : INVALID_FIELD;
    }
    return move(queue, command, IDENTIFY_DATA, IBV_WR_RDMA_WRITE);
}

static unsigned read_write(struct queue *queue, const uint8_t *command) {
    uint64_t first = get(command + 40, 8), blocks = get(command + 48, 2) + 1, length = blocks * BLOCK;
    if (get(command + 4, 4) != 1)
        return INVALID_NAMESPACE;
    if (first > disk_length / BLOCK || blocks > disk_length / BLOCK - first)
        return LBA_OUT_OF_RANGE;
    if (length > TRANSFER)
        return INVALID_FIELD;
    uint8_t *at = disk + first * BLOCK;
    if (command[0] == NVME_READ) {
        memcpy(queue->data, at, length);
        queue->read += length;
        return move(queue, command, length, IBV_WR_RDMA_WRITE);
    }
    unsigned status = move(queue, command, length, IBV_WR_RDMA_READ);
    if (!status && !queue->lost) {
        memcpy(at, queue->data, length);
        queue->written += length;
    }
    return status;
}

static void execute(struct queue *queue, const uint8_t *command) {
    uint64_t result = 0;
    unsigned status = INVALID_OPCODE;
    if (command[0] == NVME_FABRICS) {
        status = fabrics(queue, command, &result);
    } else if (!queue->connected) {
        status = CONNECT_INVALID;
    } else if (queue->number) {
        if (command[0] == NVME_READ || command[0] == NVME_WRITE)
            status = read_write(queue, command);
        else if (command[0] == NVME_FLUSH)
            status = msync(disk, disk_length, MS_ASYNC) ? INVALID_FIELD : SUCCESS;
    } else if (command[0] == NVME_IDENTIFY) {
        status = identify(queue, command);
    } else if (command[0] == NVME_SET_FEATURES) {
        status = SUCCESS;
        if (command[40] == FEATURE_QUEUES)
            result = (QUEUES - 1) | (QUEUES - 1) << 16;
    } else if (command[0] == NVME_KEEP_ALIVE) {
        status = SUCCESS;
    } else if (command[0] == NVME_ASYNC_EVENT) {
        /* Nothing ever happens to the namespace: no response. */
        return;
    }
    if (!queue->lost)
        respond(queue, command, status, result);
}

static void *serve(void *argument) {
    struct queue *queue = argument;
    uint8_t command[COMMAND];
    while (!queue->lost) {
        if (!queue->count_waiting) {
            progress(queue);
            continue;
        }
        unsigned slot = queue->waiting[queue->first_waiting];
        queue->first_waiting = (queue->first_waiting + 1) % DEPTH;
        queue->count_waiting--;
        memcpy(command, queue->commands[slot], COMMAND);
        connection_receive(queue->connection, slot, queue->commands[slot], COMMAND, queue->commands_region->lkey);
        execute(queue, command);
    }
    printf("end of queue %u of controller %u: %lu bytes read, %lu written\n", queue->number, queue->controller,
           (unsigned long)queue->read, (unsigned long)queue->written);
    ibv_dereg_mr(queue->commands_region);
    ibv_dereg_mr(queue->responses_region);
    ibv_dereg_mr(queue->data_region);
    connection_close(queue->connection);
    free(queue->data);
    free(queue);
    return NULL;
}

static void accept_queue(struct connection *listener) {
    struct rdma_conn_param peer;
    uint8_t request[32] = {0}, answer[32] = {0};
    struct connection *connection = connection_requested(listener, 2 * SENDS, DEPTH, &peer, request, sizeof request);
    struct queue *queue = calloc(1, sizeof *queue);
    pthread_t thread;
    if (!queue || !(queue->data = malloc(TRANSFER)))
        fail("malloc: %m");
    queue->connection = connection;
    queue->number = get(request + 2, 2);
    queue->commands_region = connection_register(connection, queue->commands, sizeof queue->commands, IBV_ACCESS_LOCAL_WRITE);
    queue->responses_region = connection_register(connection, queue->responses, sizeof queue->responses, 0);
    queue->data_region = connection_register(connection, queue->data, TRANSFER, IBV_ACCESS_LOCAL_WRITE);
    for (int slot = 0; slot < DEPTH; slot++)
        connection_receive(connection, slot, queue->commands[slot], COMMAND, queue->commands_region->lkey);
    put(answer + 2, DEPTH, 2);
    connection_accept(connection, answer, sizeof answer, peer.responder_resources < READS ? peer.responder_resources : READS,
                      peer.initiator_depth < READS ? peer.initiator_depth : READS);
    printf("queue %u: the host asks for %lu commands\n", queue->number, (unsigned long)get(request + 6, 2));
    if (pthread_create(&thread, NULL, serve, queue))
        fail("pthread_create: %m");
    pthread_detach(thread);
}

int main(int count, char **words) {
    struct stat status;
    if (count != 4)
        fail("usage: nvme-target PORT SUBSYSTEM FILE");
    setvbuf(stdout, NULL, _IOLBF, 0);
    subsystem = words[2];
    int file = open(words[3], O_RDWR);
    if (file < 0 || fstat(file, &status) || status.st_size < BLOCK)
        fail("%s: %m", words[3]);
    disk_length = status.st_size;
    disk = mmap(NULL, disk_length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (disk == MAP_FAILED)
        fail("mmap of %s: %m", words[3]);
    struct connection *listener = connection_listen(atoi(words[1]));
    printf("listening\n");
    for (;;)
        accept_queue(listener);
}
