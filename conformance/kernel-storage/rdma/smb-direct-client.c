/*
 * An SMB client over SMB Direct in user space, as a guest of the server.
 *
 *     smb-direct-client ADDRESS PORT SHARE [OPTION...] list | put FILE NAME | get NAME FILE | busy NAME
 *
 *     --channel rdma|invalidate|none   data by RDMA (the default), by windows whose keys responses invalidate, or in the messages
 *     --size BYTES                     of one READ or WRITE: 1048576 at most (the default), 65536 without the channel
 *
 * `busy` writes, reads and compares until it is ended.
 */
#include "smb2.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* READs that the server may have on their way, and retries. */
enum { READS = 16, RETRIES = 6 };
enum { INSIDE = 65536 };

static const char *USAGE = "smb-direct-client ADDRESS PORT SHARE [--channel rdma|invalidate|none] [--size BYTES] list | put FILE NAME | "
                           "get NAME FILE | busy NAME";
static int kind = CHANNEL_RDMA;
static uint32_t size = CHANNEL;
static struct ibv_mw *window;

/* The channel of a part of a region: its key, or that of a window that is bound here. */
static struct channel channel_of(struct smb2 *smb2, struct ibv_mr *region, uint8_t *at, uint32_t length, int access) {
    struct channel channel = {kind, (uintptr_t)at, region->rkey};
    if (kind != CHANNEL_RDMA_INVALIDATE)
        return channel;
    if (!window && !(window = ibv_alloc_mw(smb2->direct->connection->pd, IBV_MW_TYPE_2)))
        fail("ibv_alloc_mw: %m");
    struct ibv_send_wr bind = {.opcode = IBV_WR_BIND_MW};
    bind.bind_mw.mw = window;
    bind.bind_mw.rkey = ibv_inc_rkey(window->rkey);
    bind.bind_mw.bind_info = (struct ibv_mw_bind_info){region, (uintptr_t)at, length, access};
    if (smb_direct_transfer(smb2->direct, &bind))
        fail("binding a window: %s", smb2->direct->lost);
    channel.key = window->rkey = bind.bind_mw.rkey;
    return channel;
}

/* Writes or reads all of a file; the largest number of fragments of a response. */
static int copy(struct smb2 *smb2, const struct file *file, int writing, uint8_t *data, uint64_t length, struct ibv_mr *region) {
    int most = 0;
    for (uint64_t at = 0, part; at < length; at += part) {
        part = length - at < size ? length - at : size;
        struct channel channel =
            channel_of(smb2, region, data + at, part, writing ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE);
        if (writing) {
            smb2_write(smb2, file, at, part, channel, data + at);
        } else {
            int fragments = smb2_read(smb2, file, at, part, channel, data + at);
            most = fragments > most ? fragments : most;
        }
    }
    return most;
}

static struct ibv_mr *whole(struct smb2 *smb2, uint8_t *data, size_t length) {
    return connection_register(smb2->direct->connection, data, length,
                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND);
}

static void copy_file(struct smb2 *smb2, int writing, const char *path, const char *name) {
    struct file remote = smb2_create(smb2, name, writing);
    int file = open(path, writing ? O_RDONLY : O_RDWR | O_CREAT | O_TRUNC, 0644);
    struct stat status;
    if (file < 0 || fstat(file, &status))
        fail("%s: %m", path);
    uint64_t length = writing ? (uint64_t)status.st_size : remote.size;
    if (!writing && ftruncate(file, length))
        fail("%s: %m", path);
    int fragments = 0;
    if (length) {
        uint8_t *data = mmap(NULL, length, PROT_READ | PROT_WRITE, writing ? MAP_PRIVATE : MAP_SHARED, file, 0);
        if (data == MAP_FAILED)
            fail("mmap of %s: %m", path);
        struct ibv_mr *region = whole(smb2, data, length);
        fragments = copy(smb2, &remote, writing, data, length, region);
        ibv_dereg_mr(region);
        munmap(data, length);
    }
    close(file);
    smb2_close(smb2, &remote);
    printf("%s: %lu bytes %s", name, (unsigned long)length, writing ? "written" : "read");
    if (!writing)
        printf(", responses of up to %d fragments, %lu grants of credits alone", fragments, (unsigned long)smb2->direct->grants);
    putchar('\n');
}

static void stay_busy(struct smb2 *smb2, const char *name) {
    size_t length = 4 << 20;
    uint8_t *written = malloc(length), *got = malloc(length);
    if (!written || !got)
        fail("malloc: %m");
    struct ibv_mr *from = whole(smb2, written, length), *to = whole(smb2, got, length);
    struct file file = smb2_create(smb2, name, 1);
    for (unsigned round = 0;; round++) {
        for (size_t i = 0; i < length; i++)
            written[i] = (i * 2654435761u >> 13) + round;
        memset(got, 0, length);
        copy(smb2, &file, 1, written, length, from);
        copy(smb2, &file, 0, got, length, to);
        if (memcmp(written, got, length))
            fail("round %u: other bytes came back", round);
        printf("round %u\n", round);
    }
}

static void take_option(const char *name, const char *value) {
    static const char *kinds[] = {"none", "rdma", "invalidate"};
    if (!strcmp(name, "--size") && strtoul(value, NULL, 0) > 0) {
        size = strtoul(value, NULL, 0);
        return;
    }
    for (int i = 0; i < 3 && !strcmp(name, "--channel"); i++)
        if (!strcmp(value, kinds[i])) {
            kind = i;
            return;
        }
    fail("usage: %s", USAGE);
}

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    int next = 4;
    for (; next + 1 < count && !strncmp(words[next], "--", 2); next += 2)
        take_option(words[next], words[next + 1]);
    const char *task = next < count ? words[next] : "";
    int operands = count - next - 1, list = !strcmp(task, "list"), busy = !strcmp(task, "busy"), writing = !strcmp(task, "put");
    if (operands != (list ? 0 : busy ? 1 : 2) || !(list || busy || writing || !strcmp(task, "get")))
        fail("usage: %s", USAGE);
    struct connection *connection = connection_resolve(words[1], atoi(words[2]), SEND_QUEUE, RECEIVE_QUEUE);
    struct smb_direct *direct = smb_direct_new(connection);
    connection_connect(connection, NULL, 0, READS, RETRIES);
    if (smb_direct_negotiate(direct))
        fail("%s", direct->lost);
    uint32_t most = kind == CHANNEL_NONE ? INSIDE : direct->transfer;
    size = size < most ? size : most;
    struct smb2 *smb2 = smb2_open(direct, words[1], words[3]);
    if (list)
        smb2_list(smb2);
    else if (busy)
        stay_busy(smb2, words[next + 1]);
    else
        copy_file(smb2, writing, words[next + (writing ? 1 : 2)], words[next + (writing ? 2 : 1)]);
    if (window)
        ibv_dealloc_mw(window);
    smb_direct_free(direct);
    free(smb2);
    return 0;
}
