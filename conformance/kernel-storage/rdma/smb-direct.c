#include "smb-direct.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Offsets in the header of a data transfer, which is followed by padding to 24 bytes. */
enum { CREDITS_REQUESTED = 0, CREDITS_GRANTED = 2, FLAGS = 4, REMAINING = 8, DATA_OFFSET = 12, DATA_LENGTH = 16, HEADER = 20, DATA = 24 };
enum { RESPONSE_REQUESTED = 1 };
enum { VERSION = 0x100, REQUEST = 20, RESPONSE = 32 };
/* wr_id: receives have their buffer's number. */
enum { SENT = 1000, TRANSFERRED = 2000 };
/* Seconds without progress. */
enum { SILENCE = 120 };

static void post_receive(struct smb_direct *direct, int number) {
    connection_receive(direct->connection, number, direct->receives + (size_t)number * FRAGMENT, FRAGMENT, direct->receives_region->lkey);
    direct->owed++;
}

struct smb_direct *smb_direct_new(struct connection *connection) {
    struct smb_direct *direct = calloc(1, sizeof *direct);
    if (!direct || !(direct->receives = calloc(RECEIVES, FRAGMENT)) || !(direct->sends = calloc(SENDS, FRAGMENT)))
        fail("calloc: %m");
    direct->connection = connection;
    direct->last = &direct->first;
    direct->receives_region = connection_register(connection, direct->receives, (size_t)RECEIVES * FRAGMENT, IBV_ACCESS_LOCAL_WRITE);
    direct->sends_region = connection_register(connection, direct->sends, (size_t)SENDS * FRAGMENT, 0);
    for (int number = 0; number < RECEIVES; number++)
        post_receive(direct, number);
    return direct;
}

void smb_direct_free(struct smb_direct *direct) {
    for (struct message *message; (message = smb_direct_next(direct));)
        free(message);
    rdma_disconnect(direct->connection->id);
    ibv_dereg_mr(direct->receives_region);
    ibv_dereg_mr(direct->sends_region);
    connection_close(direct->connection);
    free(direct->receives);
    free(direct->sends);
    free(direct->assembled);
    free(direct);
}

static int lost(struct smb_direct *direct, const char *why) {
    if (!direct->lost)
        direct->lost = why;
    return -1;
}

/* Sends what the next buffer holds. */
static void post_send(struct smb_direct *direct, uint32_t length, uint32_t key) {
    uint8_t *at = direct->sends + (size_t)direct->next_send * FRAGMENT;
    struct ibv_sge place = {(uintptr_t)at, length, direct->sends_region->lkey};
    struct ibv_send_wr send = {
        .wr_id = SENT,
        .sg_list = &place,
        .num_sge = 1,
        .opcode = key ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND,
        .send_flags = IBV_SEND_SIGNALED,
        .invalidate_rkey = key,
    };
    connection_post(direct->connection, &send);
    direct->next_send = (direct->next_send + 1) % SENDS;
    direct->sends_in_flight++;
}

/* Sends a fragment, or without data a grant of credits alone. The caller has a credit and a buffer. */
static void send_fragment(struct smb_direct *direct, const uint8_t *data, uint32_t length, uint32_t remaining, uint32_t key) {
    uint8_t *at = direct->sends + (size_t)direct->next_send * FRAGMENT;
    memset(at, 0, DATA);
    put(at + CREDITS_REQUESTED, RECEIVES, 2);
    put(at + CREDITS_GRANTED, direct->owed, 2);
    put(at + REMAINING, remaining, 4);
    put(at + DATA_LENGTH, length, 4);
    if (length) {
        put(at + DATA_OFFSET, DATA, 4);
        memcpy(at + DATA, data, length);
    }
    direct->owed = 0;
    direct->credits--;
    post_send(direct, length ? DATA + length : HEADER, key);
}

static int can_grant(struct smb_direct *direct) {
    return direct->credits > 0 && direct->sends_in_flight < SENDS && direct->owed > 0;
}

static int take_data(struct smb_direct *direct, const uint8_t *fragment, uint32_t size) {
    if (size < HEADER)
        return lost(direct, "a data transfer is shorter than its header");
    direct->credits += get(fragment + CREDITS_GRANTED, 2);
    uint32_t remaining = get(fragment + REMAINING, 4), offset = get(fragment + DATA_OFFSET, 4), length = get(fragment + DATA_LENGTH, 4);
    if (length) {
        struct message *message = direct->assembled;
        size_t had = message ? message->length : 0;
        if (offset < HEADER || offset > size || length > size - offset)
            return lost(direct, "the data of a transfer is not inside of it");
        if (had + length > MESSAGE || remaining > MESSAGE - had - length)
            return lost(direct, "a message is too long");
        message = realloc(message, sizeof *message + had + length + remaining);
        if (!message)
            fail("realloc: %m");
        memcpy(message->bytes + had, fragment + offset, length);
        message->length = had + length;
        direct->assembled = message;
        direct->fragments++;
        if (!remaining) {
            message->next = NULL;
            message->fragments = direct->fragments;
            message->invalidated = direct->invalidated;
            *direct->last = message;
            direct->last = &message->next;
            direct->assembled = NULL;
            direct->fragments = 0;
            direct->invalidated = 0;
            if (++direct->waiting > WAITING)
                return lost(direct, "the peer sends more messages than anybody may have waiting");
        }
    }
    return get(fragment + FLAGS, 2) & RESPONSE_REQUESTED;
}

static int take(struct smb_direct *direct, struct ibv_wc *completion) {
    if (completion->status)
        return lost(direct, ibv_wc_status_str(completion->status));
    if (completion->wr_id == SENT) {
        direct->sends_in_flight--;
        return 0;
    }
    if (completion->wr_id == TRANSFERRED) {
        direct->transfers_in_flight--;
        return 0;
    }
    const uint8_t *at = direct->receives + completion->wr_id * FRAGMENT;
    if (completion->wc_flags & IBV_WC_WITH_INV)
        direct->invalidated = completion->invalidated_rkey;
    int asked = 0;
    if (direct->negotiated) {
        asked = take_data(direct, at, completion->byte_len);
        if (asked < 0)
            return -1;
    } else {
        direct->negotiated = completion->byte_len;
        memcpy(direct->negotiation, at, completion->byte_len < RESPONSE ? completion->byte_len : RESPONSE);
    }
    post_receive(direct, completion->wr_id);
    /* A long message takes more receives than there are: the peer has to be told of new ones before its end. */
    if (direct->fragment && (asked || direct->owed > RECEIVES / 2) && can_grant(direct)) {
        send_fragment(direct, NULL, 0, 0, 0);
        direct->grants++;
    }
    return 0;
}

int smb_direct_progress(struct smb_direct *direct, int milliseconds, int descriptor) {
    struct ibv_wc completion;
    if (direct->lost)
        return -1;
    for (int wait = milliseconds; connection_poll(direct->connection, &completion, wait, descriptor) > 0; wait = 0)
        if (take(direct, &completion) < 0)
            return -1;
    return direct->connection->ended ? lost(direct, "the peer disconnected") : 0;
}

/* Makes progress until the condition holds. */
#define UNTIL(direct, condition, doing)                               \
    for (time_t end = time(NULL) + SILENCE; !(condition);) {          \
        if (smb_direct_progress(direct, 1000, -1) < 0 && !(condition)) \
            return -1;                                                \
        if (time(NULL) > end)                                         \
            return lost(direct, "nothing comes while " doing);        \
    }

int smb_direct_negotiate(struct smb_direct *direct) {
    uint8_t *at = direct->sends;
    put(at, VERSION, 2);
    put(at + 2, VERSION, 2);
    put(at + 6, RECEIVES, 2);
    put(at + 8, FRAGMENT, 4);
    put(at + 12, FRAGMENT, 4);
    put(at + 16, MESSAGE, 4);
    post_send(direct, REQUEST, 0);
    UNTIL(direct, direct->negotiated, "negotiating SMB Direct");
    const uint8_t *answer = direct->negotiation;
    if (direct->negotiated != RESPONSE || get(answer + 4, 2) != VERSION || get(answer + 12, 4))
        return lost(direct, "the server refuses to negotiate SMB Direct");
    direct->credits = get(answer + 10, 2);
    direct->transfer = get(answer + 16, 4) < CHANNEL ? get(answer + 16, 4) : CHANNEL;
    direct->fragment = get(answer + 24, 4) < FRAGMENT ? get(answer + 24, 4) : FRAGMENT;
    /* The response had a credit of its own. */
    direct->owed = RECEIVES;
    return direct->fragment > DATA ? 0 : lost(direct, "the server takes no data");
}

int smb_direct_answer(struct smb_direct *direct) {
    UNTIL(direct, direct->negotiated, "waiting for SMB Direct's negotiation");
    const uint8_t *request = direct->negotiation;
    uint32_t wanted = get(request + 6, 2), receives = get(request + 12, 4);
    if (direct->negotiated != REQUEST || get(request, 2) > VERSION || get(request + 2, 2) < VERSION || receives <= DATA)
        return lost(direct, "no request to negotiate SMB Direct 1.0");
    direct->fragment = receives < FRAGMENT ? receives : FRAGMENT;
    direct->transfer = CHANNEL;
    int granted = wanted && wanted < RECEIVES ? (int)wanted : RECEIVES;
    direct->owed = RECEIVES - granted;
    uint8_t *at = direct->sends;
    memset(at, 0, RESPONSE);
    for (int field = 0; field < 6; field += 2)
        put(at + field, VERSION, 2);
    put(at + 8, RECEIVES, 2);
    put(at + 10, granted, 2);
    put(at + 16, CHANNEL, 4);
    /* A client may refuse to be sent more than it receives. */
    put(at + 20, direct->fragment, 4);
    put(at + 24, FRAGMENT, 4);
    put(at + 28, MESSAGE, 4);
    post_send(direct, RESPONSE, 0);
    return 0;
}

int smb_direct_send(struct smb_direct *direct, const void *message, size_t length, uint32_t key) {
    const uint8_t *data = message;
    for (size_t at = 0, part; at < length; at += part) {
        part = length - at < direct->fragment - DATA ? length - at : direct->fragment - DATA;
        /* The last credit is for a fragment that grants some. */
        UNTIL(direct, (direct->credits > 1 || (direct->credits && direct->owed)) && direct->sends_in_flight < SENDS - 1,
              "waiting for credits");
        send_fragment(direct, data + at, part, length - at - part, at + part == length ? key : 0);
    }
    return 0;
}

struct message *smb_direct_next(struct smb_direct *direct) {
    struct message *message = direct->first;
    if (message) {
        direct->waiting--;
        if (!(direct->first = message->next))
            direct->last = &direct->first;
    }
    return message;
}

int smb_direct_transfer(struct smb_direct *direct, struct ibv_send_wr *request) {
    request->wr_id = TRANSFERRED;
    request->send_flags = IBV_SEND_SIGNALED;
    connection_post(direct->connection, request);
    direct->transfers_in_flight++;
    UNTIL(direct, !direct->transfers_in_flight, "transferring by the RDMA channel");
    return 0;
}
