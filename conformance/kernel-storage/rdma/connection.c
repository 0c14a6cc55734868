#include "connection.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Milliseconds to resolve; seconds without a completion, which an emulated peer beside a load may need. */
enum { RESOLVE_TIMEOUT = 5000, SILENCE = 120 };

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("failed: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(1);
}

void put(void *to, uint64_t value, int bytes) {
    value = htole64(value);
    memcpy(to, &value, bytes);
}

uint64_t get(const void *from, int bytes) {
    uint64_t value = 0;
    memcpy(&value, from, bytes);
    return le64toh(value);
}

/* Waits for an event of rdma_cm, which has to be this one. */
static struct rdma_cm_event *expect(struct connection *connection, enum rdma_cm_event_type wanted) {
    struct rdma_cm_event *event;
    if (rdma_get_cm_event(connection->events, &event))
        fail("rdma_get_cm_event: %m");
    if (event->event != wanted) {
        const uint8_t *data = event->param.conn.private_data;
        for (int i = 0; data && i < event->param.conn.private_data_len && i < 8; i++)
            fprintf(stderr, "%s%02x", i ? " " : "private data: ", data[i]);
        fail("%s, status %d, in the place of %s", rdma_event_str(event->event), event->status, rdma_event_str(wanted));
    }
    return event;
}

static void acknowledge(struct connection *connection, enum rdma_cm_event_type wanted) {
    rdma_ack_cm_event(expect(connection, wanted));
}

static struct connection *new_connection(void) {
    struct connection *connection = calloc(1, sizeof *connection);
    if (!connection || !(connection->events = rdma_create_event_channel()))
        fail("rdma_create_event_channel: %m");
    return connection;
}

static void make_queue_pair(struct connection *connection, int sends, int receives) {
    struct ibv_context *context = connection->id->verbs;
    connection->pd = ibv_alloc_pd(context);
    connection->channel = ibv_create_comp_channel(context);
    if (!connection->pd || !connection->channel)
        fail("ibv_alloc_pd, ibv_create_comp_channel: %m");
    connection->cq = ibv_create_cq(context, sends + receives, NULL, connection->channel, 0);
    if (!connection->cq)
        fail("ibv_create_cq: %m");
    fcntl(connection->channel->fd, F_SETFL, O_NONBLOCK);
    struct ibv_qp_init_attr attributes = {
        .send_cq = connection->cq,
        .recv_cq = connection->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = sends, .max_recv_wr = receives, .max_send_sge = 1, .max_recv_sge = 1},
    };
    if (rdma_create_qp(connection->id, connection->pd, &attributes))
        fail("rdma_create_qp: %m");
}

struct connection *connection_resolve(const char *address, int port, int sends, int receives) {
    struct connection *connection = new_connection();
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, address, &to.sin_addr) != 1)
        fail("%s is no IPv4 address", address);
    if (rdma_create_id(connection->events, &connection->id, NULL, RDMA_PS_TCP))
        fail("rdma_create_id: %m");
    if (rdma_resolve_addr(connection->id, NULL, (struct sockaddr *)&to, RESOLVE_TIMEOUT))
        fail("rdma_resolve_addr: %m");
    acknowledge(connection, RDMA_CM_EVENT_ADDR_RESOLVED);
    if (rdma_resolve_route(connection->id, RESOLVE_TIMEOUT))
        fail("rdma_resolve_route: %m");
    acknowledge(connection, RDMA_CM_EVENT_ROUTE_RESOLVED);
    make_queue_pair(connection, sends, receives);
    return connection;
}

/* Lets `connection_poll` look for events without waiting. */
static void established(struct connection *connection) {
    acknowledge(connection, RDMA_CM_EVENT_ESTABLISHED);
    fcntl(connection->events->fd, F_SETFL, O_NONBLOCK);
}

void connection_connect(struct connection *connection, const void *private_data, int length, int reads, int retries) {
    struct rdma_conn_param parameters = {
        .private_data = private_data,
        .private_data_len = length,
        .responder_resources = reads,
        .initiator_depth = reads,
        .retry_count = retries,
        .rnr_retry_count = 7,
        .flow_control = 1,
    };
    if (rdma_connect(connection->id, &parameters))
        fail("rdma_connect: %m");
    established(connection);
}

struct connection *connection_listen(int port) {
    struct connection *listener = new_connection();
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (rdma_create_id(listener->events, &listener->id, NULL, RDMA_PS_TCP) ||
        rdma_bind_addr(listener->id, (struct sockaddr *)&at) || rdma_listen(listener->id, 8))
        fail("port %d: %m", port);
    return listener;
}

struct connection *connection_requested(struct connection *listener, int sends, int receives, struct rdma_conn_param *peer,
                                        void *private_data, int length) {
    struct rdma_cm_event *event;
    for (;;) {
        if (rdma_get_cm_event(listener->events, &event))
            fail("rdma_get_cm_event: %m");
        if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
            break;
        rdma_ack_cm_event(event);
    }
    struct connection *connection = new_connection();
    connection->id = event->id;
    *peer = event->param.conn;
    if (peer->private_data)
        memcpy(private_data, peer->private_data, length < peer->private_data_len ? length : peer->private_data_len);
    peer->private_data = NULL;
    rdma_ack_cm_event(event);
    /* Its events come by a channel of its own: one process may serve each connection. */
    if (rdma_migrate_id(connection->id, connection->events))
        fail("rdma_migrate_id: %m");
    make_queue_pair(connection, sends, receives);
    return connection;
}

void connection_accept(struct connection *connection, const void *private_data, int length, int reads, int depth) {
    struct rdma_conn_param parameters = {
        .private_data = private_data,
        .private_data_len = length,
        .responder_resources = reads,
        .initiator_depth = depth,
        .rnr_retry_count = 7,
        .flow_control = 1,
    };
    if (rdma_accept(connection->id, &parameters))
        fail("rdma_accept: %m");
    established(connection);
}

struct ibv_mr *connection_register(struct connection *connection, void *at, size_t length, int access) {
    struct ibv_mr *region = ibv_reg_mr(connection->pd, at, length, access);
    if (!region)
        fail("ibv_reg_mr of %zu bytes: %m", length);
    return region;
}

void connection_receive(struct connection *connection, uint64_t id, void *at, uint32_t length, uint32_t lkey) {
    struct ibv_sge place = {(uintptr_t)at, length, lkey};
    struct ibv_recv_wr request = {.wr_id = id, .sg_list = &place, .num_sge = 1}, *bad;
    int error = ibv_post_recv(connection->id->qp, &request, &bad);
    if (error)
        fail("ibv_post_recv: %s", strerror(error));
}

void connection_post(struct connection *connection, struct ibv_send_wr *request) {
    struct ibv_send_wr *bad;
    int error = ibv_post_send(connection->id->qp, request, &bad);
    if (error)
        fail("ibv_post_send: %s", strerror(error));
}

static void take_events(struct connection *connection) {
    struct rdma_cm_event *event;
    while (!rdma_get_cm_event(connection->events, &event)) {
        if (event->event == RDMA_CM_EVENT_DISCONNECTED || event->event == RDMA_CM_EVENT_DEVICE_REMOVAL)
            connection->ended = 1;
        rdma_ack_cm_event(event);
    }
}

int connection_poll(struct connection *connection, struct ibv_wc *completion, int milliseconds, int descriptor) {
    int count = ibv_poll_cq(connection->cq, 1, completion);
    if (count || !milliseconds)
        return count;
    /* Completions between the last look and this request notify nobody. */
    if (ibv_req_notify_cq(connection->cq, 0))
        fail("ibv_req_notify_cq: %m");
    count = ibv_poll_cq(connection->cq, 1, completion);
    if (count)
        return count;
    struct pollfd wanted[] = {
        {.fd = connection->channel->fd, .events = POLLIN},
        {.fd = connection->events->fd, .events = POLLIN},
        {.fd = descriptor, .events = POLLIN},
    };
    if (poll(wanted, 3, milliseconds) < 0 && errno != EINTR)
        fail("poll: %m");
    struct ibv_cq *cq;
    void *context;
    if (wanted[0].revents && !ibv_get_cq_event(connection->channel, &cq, &context))
        ibv_ack_cq_events(cq, 1);
    if (wanted[1].revents)
        take_events(connection);
    return ibv_poll_cq(connection->cq, 1, completion);
}

struct ibv_wc connection_wait(struct connection *connection, const char *doing) {
    struct ibv_wc completion;
    time_t deadline = time(NULL) + SILENCE;
    while (time(NULL) < deadline) {
        int count = connection_poll(connection, &completion, 1000, -1);
        if (count < 0)
            fail("ibv_poll_cq while %s", doing);
        if (count && completion.status)
            fail("%s, vendor_err %#x, while %s", ibv_wc_status_str(completion.status), completion.vendor_err, doing);
        if (count)
            return completion;
        if (connection->ended)
            fail("the peer disconnected while %s", doing);
    }
    fail("no completion in %d s while %s", SILENCE, doing);
}

void connection_close(struct connection *connection) {
    rdma_disconnect(connection->id);
    rdma_destroy_qp(connection->id);
    ibv_destroy_cq(connection->cq);
    ibv_destroy_comp_channel(connection->channel);
    ibv_dealloc_pd(connection->pd);
    rdma_destroy_id(connection->id);
    rdma_destroy_event_channel(connection->events);
    free(connection);
}
