/* SMB Direct (MS-SMBD): messages of SMB2 in fragments over a reliable connection, with credits, for both roles. */
#ifndef SMB_DIRECT_H
#define SMB_DIRECT_H

#include "connection.h"

enum {
    /* Receives that are kept posted, sends that may be on their way, bytes of each. */
    RECEIVES = 255,
    SENDS = 32,
    FRAGMENT = 8192,
    /* Bytes of a message in fragments, and of a transfer by the RDMA channel. */
    MESSAGE = 1 << 20,
    CHANNEL = 1 << 20,
    /* Whole messages that may wait for `smb_direct_next`. */
    WAITING = 512,
    /* For `connection_resolve` and `connection_requested`: sends, and transfers and binds beside them. */
    SEND_QUEUE = SENDS + 16,
    RECEIVE_QUEUE = RECEIVES + 1,
};

struct message {
    struct message *next;
    size_t length;
    /* Fragments it came in; the key that its last fragment invalidated, 0 for none. */
    int fragments;
    uint32_t invalidated;
    uint8_t bytes[];
};

struct smb_direct {
    struct connection *connection;
    uint8_t *receives, *sends;
    struct ibv_mr *receives_region, *sends_region;
    int negotiated;
    uint8_t negotiation[32];
    /* Messages that the peer can take, and those of ours that it has not been told of. */
    int credits, owed;
    int next_send, sends_in_flight, transfers_in_flight;
    /* Largest fragment that the peer takes; largest transfer of the server. */
    uint32_t fragment, transfer;
    uint64_t grants;
    struct message *assembled, *first, **last;
    uint32_t invalidated;
    int fragments, waiting;
    /* Why the connection is over. */
    const char *lost;
};

/* Posts receives; before the connection is established. */
struct smb_direct *smb_direct_new(struct connection *connection);
void smb_direct_free(struct smb_direct *direct);

/* Those below give -1 when the connection is lost. */

/* Sends the negotiate request, and takes the response. */
int smb_direct_negotiate(struct smb_direct *direct);
/* Takes the negotiate request, and responds. */
int smb_direct_answer(struct smb_direct *direct);
/* Sends a message; with a key, its last fragment invalidates that. */
int smb_direct_send(struct smb_direct *direct, const void *message, size_t length, uint32_t key);
/* Takes what has come, waiting for up to `milliseconds` for that or for `descriptor` to be readable. */
int smb_direct_progress(struct smb_direct *direct, int milliseconds, int descriptor);
/* The next whole message, which the caller frees; NULL if there is none yet. */
struct message *smb_direct_next(struct smb_direct *direct);
/* Posts a transfer of the RDMA channel or a bind, and waits for its completion. */
int smb_direct_transfer(struct smb_direct *direct, struct ibv_send_wr *request);

#endif
