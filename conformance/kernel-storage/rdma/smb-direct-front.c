/*
 * A server front for SMB Direct: accepts connections, and hands their messages to an SMB server's TCP port.
 *
 *     smb-direct-front PORT SERVER SERVER_PORT
 *
 * The server knows nothing of RDMA. READ and WRITE by the RDMA channel are made into such with their data inside, and the data is
 * moved by RDMA WRITE and RDMA READ here. That changes messages, so sessions must not be signed or sealed; such messages pass
 * as they are. A thread serves each connection.
 */
#include "smb2.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DESCRIPTORS = 8, OUTSTANDING = 512, READS = 16 };
/* Bytes from the server that may wait. */
enum { TCP_BUFFER = 64 << 20 };
/* A WRITE's data comes behind this, a READ's response is this without data. */
enum { WRITE_HEADER = SMB2_HEADER + WRITE_BODY, READ_HEADER = SMB2_HEADER + READ_BODY, READ_RESPONSE = SMB2_HEADER + 16 };
enum { FLAG_RESPONSE = 1 };

/* A request by the RDMA channel whose response has not come. */
struct request {
    uint64_t message;
    int command, kind, descriptors;
    uint8_t descriptor[DESCRIPTORS][DESCRIPTOR];
};

struct session {
    struct smb_direct *direct;
    int tcp;
    /* Of the server's, unread; frames have a length of 4 bytes before them. */
    uint8_t *stream;
    size_t stream_length;
    /* Where the channel's data is on its way, behind room for a header. */
    uint8_t *buffer;
    struct ibv_mr *buffer_region;
    struct request requests[OUTSTANDING];
    int outstanding;
    uint64_t read, written;
    const char *ended;
};

static const char *server;
static int server_port;

static int end(struct session *session, const char *why) {
    if (!session->ended)
        session->ended = why;
    return -1;
}

/* Reads what the server has sent. */
static int take_stream(struct session *session) {
    for (;;) {
        if (session->stream_length == TCP_BUFFER)
            return 0;
        ssize_t got = recv(session->tcp, session->stream + session->stream_length, TCP_BUFFER - session->stream_length, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        if (got <= 0)
            return end(session, "the server closed its connection");
        session->stream_length += got;
    }
}

/* Writes to the server, and reads from it as long as it takes nothing. */
static int write_all(struct session *session, const uint8_t *from, size_t length) {
    while (length) {
        ssize_t sent = send(session->tcp, from, length, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) {
            from += sent;
            length -= sent;
            continue;
        }
        if (errno != EAGAIN && errno != EINTR)
            return end(session, "the server closed its connection");
        struct pollfd wanted = {.fd = session->tcp, .events = POLLOUT | (session->stream_length < TCP_BUFFER ? POLLIN : 0)};
        if (poll(&wanted, 1, -1) > 0 && wanted.revents & POLLIN && take_stream(session))
            return -1;
    }
    return 0;
}

static int to_server(struct session *session, const uint8_t *message, size_t length) {
    uint8_t frame[4] = {0, length >> 16, length >> 8, length};
    return write_all(session, frame, sizeof frame) || write_all(session, message, length) ? -1 : 0;
}

/* Moves data between the buffer and the client's memory, as descriptors say. */
static int move(struct session *session, struct request *request, uint8_t *at, uint32_t length, enum ibv_wr_opcode opcode) {
    for (int i = 0; i < request->descriptors && length; i++) {
        uint32_t room = get(request->descriptor[i] + 12, 4), part = length < room ? length : room;
        struct ibv_sge place = {(uintptr_t)at, part, session->buffer_region->lkey};
        struct ibv_send_wr transfer = {.sg_list = &place, .num_sge = 1, .opcode = opcode};
        transfer.wr.rdma.remote_addr = get(request->descriptor[i], 8);
        transfer.wr.rdma.rkey = get(request->descriptor[i] + 8, 4);
        if (part && smb_direct_transfer(session->direct, &transfer))
            return end(session, session->direct->lost);
        at += part;
        length -= part;
    }
    return length ? end(session, "a client's descriptors have less room than data") : 0;
}

/* Whether the message is a single request without a signature. */
static int plain(const uint8_t *message, size_t length) {
    return length >= READ_HEADER && !memcmp(message, "\xfeSMB", 4) && !get(message + AT_NEXT, 4) &&
           !(get(message + AT_FLAGS, 4) & FLAG_SIGNED);
}

/* Keeps the descriptors of a request; NULL when they are nonsense. */
static struct request *remember(struct session *session, const struct message *message, int command, int kind) {
    const uint8_t *body = message->bytes + SMB2_HEADER;
    int field = command == SMB2_READ ? READ_DESCRIPTORS : WRITE_DESCRIPTORS;
    size_t offset = get(body + field, 2), length = get(body + field + 2, 2);
    if (offset < READ_HEADER || offset + length > message->length || !length || length % DESCRIPTOR ||
        length / DESCRIPTOR > DESCRIPTORS || session->outstanding == OUTSTANDING)
        return NULL;
    struct request *request = &session->requests[session->outstanding++];
    request->message = get(message->bytes + AT_MESSAGE, 8);
    request->command = command;
    request->kind = kind;
    request->descriptors = length / DESCRIPTOR;
    memcpy(request->descriptor, message->bytes + offset, length);
    return request;
}

static int read_request(struct session *session, struct message *message, int kind) {
    uint8_t *body = message->bytes + SMB2_HEADER;
    if (get(body + READ_LENGTH, 4) > CHANNEL || !remember(session, message, SMB2_READ, kind))
        return end(session, "a client's READ has no sensible descriptors");
    put(body + READ_CHANNEL, CHANNEL_NONE, 4);
    put(body + READ_DESCRIPTORS, 0, 4);
    /* The variable part has a byte at least. */
    message->bytes[READ_HEADER] = 0;
    return to_server(session, message->bytes, READ_HEADER + 1);
}

static int write_request(struct session *session, struct message *message, int kind) {
    uint8_t *body = message->bytes + SMB2_HEADER;
    uint32_t length = get(body + WRITE_REMAINING, 4);
    struct request *request = length <= CHANNEL ? remember(session, message, SMB2_WRITE, kind) : NULL;
    if (!request)
        return end(session, "a client's WRITE has no sensible descriptors");
    put(body + WRITE_DATA, WRITE_HEADER, 2);
    put(body + WRITE_LENGTH, length, 4);
    put(body + WRITE_CHANNEL, CHANNEL_NONE, 4);
    put(body + WRITE_REMAINING, 0, 4);
    put(body + WRITE_DESCRIPTORS, 0, 4);
    memcpy(session->buffer, message->bytes, WRITE_HEADER);
    if (move(session, request, session->buffer + WRITE_HEADER, length, IBV_WR_RDMA_READ))
        return -1;
    session->written += length;
    return to_server(session, session->buffer, WRITE_HEADER + length);
}

static int from_client(struct session *session, struct message *message) {
    uint8_t *bytes = message->bytes;
    if (plain(bytes, message->length)) {
        int command = get(bytes + AT_COMMAND, 2);
        int kind = command == SMB2_READ    ? get(bytes + SMB2_HEADER + READ_CHANNEL, 4)
                   : command == SMB2_WRITE ? get(bytes + SMB2_HEADER + WRITE_CHANNEL, 4)
                                           : CHANNEL_NONE;
        if (kind == CHANNEL_RDMA || kind == CHANNEL_RDMA_INVALIDATE)
            return command == SMB2_READ ? read_request(session, message, kind) : write_request(session, message, kind);
    }
    return to_server(session, bytes, message->length);
}

static struct request *find(struct session *session, const uint8_t *bytes, size_t length) {
    if (length < READ_RESPONSE || memcmp(bytes, "\xfeSMB", 4) || !(get(bytes + AT_FLAGS, 4) & FLAG_RESPONSE) ||
        get(bytes + AT_STATUS, 4) == STATUS_PENDING)
        return NULL;
    for (int i = 0; i < session->outstanding; i++)
        if (session->requests[i].message == get(bytes + AT_MESSAGE, 8))
            return &session->requests[i];
    return NULL;
}

/* Puts a READ's data where its descriptors say; the length of what is left of the response. */
static ssize_t deliver(struct session *session, struct request *request, uint8_t *bytes, size_t length) {
    uint8_t *body = bytes + SMB2_HEADER;
    size_t offset = body[2], data = get(body + 4, 4);
    if (offset > length || data > length - offset || data > CHANNEL)
        return end(session, "the server's READ response is cut");
    memcpy(session->buffer, bytes + offset, data);
    if (move(session, request, session->buffer, data, IBV_WR_RDMA_WRITE))
        return -1;
    session->read += data;
    body[2] = READ_RESPONSE;
    put(body + 4, 0, 4);
    put(body + 8, data, 4);
    return READ_RESPONSE;
}

static int from_server(struct session *session, uint8_t *bytes, size_t length) {
    struct request *request = find(session, bytes, length);
    uint32_t key = 0;
    if (request) {
        uint32_t status = get(bytes + AT_STATUS, 4);
        if (request->command == SMB2_READ && (!status || status == STATUS_BUFFER_OVERFLOW)) {
            ssize_t left = deliver(session, request, bytes, length);
            if (left < 0)
                return -1;
            length = left;
        }
        if (request->kind == CHANNEL_RDMA_INVALIDATE)
            key = get(request->descriptor[0] + 8, 4);
        *request = session->requests[--session->outstanding];
    }
    return smb_direct_send(session->direct, bytes, length, key) ? end(session, session->direct->lost) : 0;
}

static int take_frames(struct session *session) {
    size_t at = 0;
    while (session->stream_length - at >= 4) {
        const uint8_t *frame = session->stream + at;
        size_t length = (size_t)frame[1] << 16 | frame[2] << 8 | frame[3];
        if (session->stream_length - at - 4 < length)
            break;
        if (from_server(session, session->stream + at + 4, length))
            return -1;
        at += 4 + length;
    }
    memmove(session->stream, session->stream + at, session->stream_length -= at);
    return 0;
}

static int call_server(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(server_port)};
    int tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (inet_pton(AF_INET, server, &to.sin_addr) != 1 || tcp < 0 || connect(tcp, (struct sockaddr *)&to, sizeof to)) {
        printf("%s port %d: %m\n", server, server_port);
        close(tcp);
        return -1;
    }
    setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return tcp;
}

static void *serve(void *argument) {
    struct session *session = argument;
    if (smb_direct_answer(session->direct))
        end(session, session->direct->lost);
    while (!session->ended) {
        struct message *message;
        if (smb_direct_progress(session->direct, session->direct->first ? 0 : -1, session->tcp))
            end(session, session->direct->lost);
        while (!session->ended && (message = smb_direct_next(session->direct))) {
            from_client(session, message);
            free(message);
        }
        if (!session->ended && !take_stream(session))
            take_frames(session);
    }
    printf("end of a connection: %s; %lu bytes read and %lu written by the RDMA channel\n", session->ended,
           (unsigned long)session->read, (unsigned long)session->written);
    close(session->tcp);
    ibv_dereg_mr(session->buffer_region);
    smb_direct_free(session->direct);
    free(session->stream);
    free(session->buffer);
    free(session);
    return NULL;
}

int main(int count, char **words) {
    if (count != 4)
        fail("usage: smb-direct-front PORT SERVER SERVER_PORT");
    setvbuf(stdout, NULL, _IOLBF, 0);
    server = words[2];
    server_port = atoi(words[3]);
    struct connection *listener = connection_listen(atoi(words[1]));
    printf("listening\n");
    for (;;) {
        struct rdma_conn_param peer;
        struct connection *connection = connection_requested(listener, SEND_QUEUE, RECEIVE_QUEUE, &peer, NULL, 0);
        struct session *session = calloc(1, sizeof *session);
        pthread_t thread;
        if (!session || !(session->stream = malloc(TCP_BUFFER)) || !(session->buffer = calloc(1, WRITE_HEADER + CHANNEL)))
            fail("malloc: %m");
        session->direct = smb_direct_new(connection);
        session->buffer_region = connection_register(connection, session->buffer, WRITE_HEADER + CHANNEL, IBV_ACCESS_LOCAL_WRITE);
        session->tcp = call_server();
        if (session->tcp < 0) {
            rdma_reject(connection->id, NULL, 0);
            smb_direct_free(session->direct);
            continue;
        }
        connection_accept(connection, NULL, 0, peer.responder_resources < READS ? peer.responder_resources : READS,
                          peer.initiator_depth < READS ? peer.initiator_depth : READS);
        printf("connected: the client reads %d and is read %d at a time\n", peer.responder_resources, peer.initiator_depth);
        if (pthread_create(&thread, NULL, serve, session))
            fail("pthread_create: %m");
        pthread_detach(thread);
    }
}
