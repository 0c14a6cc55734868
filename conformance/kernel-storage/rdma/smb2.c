#include "smb2.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint8_t *body(struct smb2 *smb2) {
    return smb2->request + SMB2_HEADER;
}

static uint8_t *begin(struct smb2 *smb2) {
    memset(smb2->request, 0, SMB2_HEADER + 512);
    return body(smb2);
}

/* Sends the request, and waits for its response, whose status may be that one. The caller frees it. */
static struct message *exchange(struct smb2 *smb2, int command, uint32_t length, uint32_t bytes, uint32_t allowed, uint32_t key) {
    uint8_t *header = smb2->request;
    int charge = bytes ? (bytes - 1) / 65536 + 1 : 1;
    memcpy(header, "\xfeSMB", 4);
    put(header + 4, SMB2_HEADER, 2);
    /* The first request has no charge. */
    put(header + AT_CHARGE, command == SMB2_NEGOTIATE ? 0 : charge, 2);
    put(header + AT_COMMAND, command, 2);
    put(header + AT_CREDITS, 64, 2);
    put(header + AT_MESSAGE, smb2->next_message, 8);
    put(header + AT_TREE, smb2->tree, 4);
    put(header + AT_SESSION, smb2->session, 8);
    uint64_t number = smb2->next_message;
    smb2->next_message += charge;
    if (smb_direct_send(smb2->direct, smb2->request, SMB2_HEADER + length, 0))
        fail("command %d: %s", command, smb2->direct->lost);
    for (;;) {
        struct message *message = smb_direct_next(smb2->direct);
        if (!message) {
            if (smb_direct_progress(smb2->direct, 120000, -1))
                fail("command %d: %s", command, smb2->direct->lost);
            continue;
        }
        uint32_t status = message->length < SMB2_HEADER + 8 ? 0 : get(message->bytes + AT_STATUS, 4);
        if (message->length < SMB2_HEADER + 8 || memcmp(message->bytes, "\xfeSMB", 4))
            fail("command %d: the response is no SMB2 message", command);
        if (status == STATUS_PENDING) {
            free(message);
            continue;
        }
        if (get(message->bytes + AT_MESSAGE, 8) != number || get(message->bytes + AT_COMMAND, 2) != (unsigned)command)
            fail("command %d: a response to another request", command);
        if (status && status != allowed)
            fail("command %d: status %#x", command, status);
        if (key && message->invalidated != key)
            fail("command %d: the response invalidated key %#x, and the window's is %#x", command, message->invalidated, key);
        return message;
    }
}

/* The bytes of a response that a body's fields place; fails when they are not inside. */
static const uint8_t *placed(const struct message *message, uint32_t offset, uint32_t length) {
    if (offset > message->length || length > message->length - offset)
        fail("a response places data outside of itself");
    return message->bytes + offset;
}

static uint32_t utf16(uint8_t *to, const char *text) {
    uint32_t length = 0;
    for (; *text; text++, length += 2)
        put(to + length, *text == '/' ? '\\' : (unsigned char)*text, 2);
    return length;
}

static void negotiate(struct smb2 *smb2) {
    uint8_t *at = begin(smb2);
    put(at, 36, 2);
    put(at + 2, 1, 2);
    put(at + 4, 1, 2);
    memset(at + 12, 0x75, 16);
    put(at + 36, 0x302, 2);
    struct message *message = exchange(smb2, SMB2_NEGOTIATE, 38, 0, 0, 0);
    placed(message, SMB2_HEADER, 64);
    const uint8_t *answer = message->bytes + SMB2_HEADER;
    printf("SMB %lx.%lx, transfers of %u bytes, fragments of %u bytes\n", (unsigned long)get(answer + 4, 2) >> 8,
           (unsigned long)get(answer + 4, 2) & 255, smb2->direct->transfer, smb2->direct->fragment);
    free(message);
}

/* NTLM's first message, and its third, of a user whom the server does not know. */
static uint32_t ntlm(uint8_t *at, int authenticate) {
    memcpy(at, "NTLMSSP", 8);
    put(at + 8, authenticate ? 3 : 1, 4);
    if (!authenticate) {
        put(at + 12, 0xa2088207, 4);
        return 40;
    }
    uint32_t end = 88;
    /* Field: length, space, offset; from offset 12 on. */
    for (int field = 0; field < 6; field++) {
        uint32_t length = field < 2 ? 24 : field == 3 ? utf16(at + end, "nobody-known") : 0;
        put(at + 12 + 8 * field, length, 2);
        put(at + 14 + 8 * field, length, 2);
        put(at + 16 + 8 * field, end, 4);
        end += length;
    }
    put(at + 60, 0xa2088205, 4);
    return end;
}

static void set_up_session(struct smb2 *smb2) {
    for (int authenticate = 0; authenticate < 2; authenticate++) {
        uint8_t *at = begin(smb2);
        uint32_t length = ntlm(at + 24, authenticate);
        put(at, 25, 2);
        at[3] = 1;
        put(at + 12, SMB2_HEADER + 24, 2);
        put(at + 14, length, 2);
        struct message *message = exchange(smb2, SMB2_SESSION_SETUP, 24 + length, 0, authenticate ? 0 : STATUS_MORE_PROCESSING, 0);
        smb2->session = get(message->bytes + AT_SESSION, 8);
        if (authenticate && !(get(message->bytes + SMB2_HEADER + 2, 2) & 1))
            fail("the session is no guest's: it would have to be signed");
        free(message);
    }
}

static void connect_tree(struct smb2 *smb2, const char *server, const char *share) {
    char path[256];
    snprintf(path, sizeof path, "//%s/%s", server, share);
    uint8_t *at = begin(smb2);
    uint32_t length = utf16(at + 8, path);
    put(at, 9, 2);
    put(at + 4, SMB2_HEADER + 8, 2);
    put(at + 6, length, 2);
    struct message *message = exchange(smb2, SMB2_TREE_CONNECT, 8 + length, 0, 0, 0);
    smb2->tree = get(message->bytes + AT_TREE, 4);
    free(message);
}

struct smb2 *smb2_open(struct smb_direct *direct, const char *server, const char *share) {
    struct smb2 *smb2 = calloc(1, sizeof *smb2);
    if (!smb2)
        fail("calloc: %m");
    smb2->direct = direct;
    negotiate(smb2);
    set_up_session(smb2);
    connect_tree(smb2, server, share);
    return smb2;
}

struct file smb2_create(struct smb2 *smb2, const char *path, int anew) {
    enum { READ_FILE = 0x120089, READ_WRITE_FILE = 0x12019f, SHARE_ALL = 7, OPEN = 1, OVERWRITE_IF = 5, DIRECTORY = 1, NO_DIRECTORY = 0x40 };
    int root = !*path;
    uint8_t *at = begin(smb2);
    uint32_t length = utf16(at + 56, path);
    put(at, 57, 2);
    put(at + 4, 2, 4);
    put(at + 24, anew ? READ_WRITE_FILE : READ_FILE, 4);
    put(at + 28, root ? 0 : 0x80, 4);
    put(at + 32, SHARE_ALL, 4);
    put(at + 36, anew ? OVERWRITE_IF : OPEN, 4);
    put(at + 40, root ? DIRECTORY : NO_DIRECTORY, 4);
    put(at + 44, SMB2_HEADER + 56, 2);
    put(at + 46, length, 2);
    /* There is a byte of the variable part even without a name. */
    struct message *message = exchange(smb2, SMB2_CREATE, 56 + (length ? length : 1), 0, 0, 0);
    struct file file = {.size = get(placed(message, SMB2_HEADER + 48, 40), 8)};
    memcpy(file.id, message->bytes + SMB2_HEADER + 64, sizeof file.id);
    free(message);
    return file;
}

void smb2_close(struct smb2 *smb2, const struct file *file) {
    uint8_t *at = begin(smb2);
    put(at, 24, 2);
    memcpy(at + 8, file->id, sizeof file->id);
    free(exchange(smb2, SMB2_CLOSE, 24, 0, 0, 0));
}

/* Prints one buffer of FileIdFullDirectoryInformation. */
static void print_entries(const struct message *message) {
    enum { NAME = 80 };
    uint32_t offset = get(message->bytes + SMB2_HEADER + 2, 2), left = get(message->bytes + SMB2_HEADER + 4, 4), next;
    const uint8_t *entry = placed(message, offset, left);
    for (;; entry += next, left -= next) {
        if (left < NAME || get(entry + 60, 4) > left - NAME)
            fail("a directory's entry is cut");
        printf("%12lu ", (unsigned long)get(entry + 40, 8));
        for (uint32_t i = 0; i < get(entry + 60, 4); i += 2)
            putchar(entry[NAME + i + 1] ? '?' : entry[NAME + i]);
        putchar('\n');
        next = get(entry, 4);
        if (!next)
            return;
        if (next > left)
            fail("a directory's entry is cut");
    }
}

void smb2_list(struct smb2 *smb2) {
    enum { ID_FULL_DIRECTORY_INFORMATION = 38, ROOM = 65536 };
    struct file root = smb2_create(smb2, "", 0);
    for (int end = 0; !end;) {
        uint8_t *at = begin(smb2);
        put(at, 33, 2);
        at[2] = ID_FULL_DIRECTORY_INFORMATION;
        memcpy(at + 8, root.id, sizeof root.id);
        put(at + 24, SMB2_HEADER + 32, 2);
        put(at + 26, utf16(at + 32, "*"), 2);
        put(at + 28, ROOM, 4);
        struct message *message = exchange(smb2, SMB2_QUERY_DIRECTORY, 34, ROOM, STATUS_NO_MORE_FILES, 0);
        end = get(message->bytes + AT_STATUS, 4) == STATUS_NO_MORE_FILES;
        if (!end)
            print_entries(message);
        free(message);
    }
    smb2_close(smb2, &root);
}

static void describe(uint8_t *at, struct channel channel, uint32_t length) {
    put(at, channel.address, 8);
    put(at + 8, channel.key, 4);
    put(at + 12, length, 4);
}

int smb2_read(struct smb2 *smb2, const struct file *file, uint64_t at, uint32_t length, struct channel channel, uint8_t *into) {
    uint8_t *to = begin(smb2);
    put(to, 49, 2);
    put(to + READ_LENGTH, length, 4);
    put(to + 8, at, 8);
    memcpy(to + 16, file->id, sizeof file->id);
    put(to + READ_CHANNEL, channel.kind, 4);
    if (channel.kind) {
        put(to + READ_DESCRIPTORS, SMB2_HEADER + READ_BODY, 2);
        put(to + READ_DESCRIPTORS_LENGTH, DESCRIPTOR, 2);
        describe(to + READ_BODY, channel, length);
    }
    struct message *message = exchange(smb2, SMB2_READ, READ_BODY + (channel.kind ? DESCRIPTOR : 1), length, 0,
                                       channel.kind == CHANNEL_RDMA_INVALIDATE ? channel.key : 0);
    const uint8_t *answer = placed(message, SMB2_HEADER, 16);
    uint32_t inside = get(answer + 4, 4), beside = get(answer + 8, 4);
    if ((channel.kind ? beside : inside) != length)
        fail("READ of %u bytes: %u in the message, %u by the channel", length, inside, beside);
    if (!channel.kind)
        memcpy(into, placed(message, answer[2], length), length);
    int fragments = message->fragments;
    free(message);
    return fragments;
}

void smb2_write(struct smb2 *smb2, const struct file *file, uint64_t at, uint32_t length, struct channel channel, const uint8_t *from) {
    uint8_t *to = begin(smb2);
    put(to, 49, 2);
    put(to + 8, at, 8);
    memcpy(to + 16, file->id, sizeof file->id);
    put(to + WRITE_CHANNEL, channel.kind, 4);
    if (channel.kind) {
        put(to + WRITE_REMAINING, length, 4);
        put(to + WRITE_DESCRIPTORS, SMB2_HEADER + WRITE_BODY, 2);
        put(to + WRITE_DESCRIPTORS_LENGTH, DESCRIPTOR, 2);
        describe(to + WRITE_BODY, channel, length);
    } else {
        put(to + WRITE_DATA, SMB2_HEADER + WRITE_BODY, 2);
        put(to + WRITE_LENGTH, length, 4);
        memcpy(to + WRITE_BODY, from, length);
    }
    struct message *message = exchange(smb2, SMB2_WRITE, WRITE_BODY + (channel.kind ? DESCRIPTOR : length), length, 0,
                                       channel.kind == CHANNEL_RDMA_INVALIDATE ? channel.key : 0);
    if (get(placed(message, SMB2_HEADER + 4, 4), 4) != length)
        fail("WRITE of %u bytes: %lu were written", length, (unsigned long)get(message->bytes + SMB2_HEADER + 4, 4));
    free(message);
}
