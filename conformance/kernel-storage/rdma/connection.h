/* A reliable connection made by rdma_cm, with one CQ whose completions are waited for without spinning. */
#ifndef CONNECTION_H
#define CONNECTION_H

#include <rdma/rdma_cma.h>
#include <stddef.h>
#include <stdint.h>

struct connection {
    struct rdma_event_channel *events;
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    /* Set when the peer has disconnected, or rdma_cm reports another end of the connection. */
    int ended;
};

/* Prints a message to stderr and exits with status 1. */
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Little-endian fields of up to 8 bytes. */
void put(void *to, uint64_t value, int bytes);
uint64_t get(const void *from, int bytes);

/* Resolves an IPv4 address and makes the queue pair. Receives can be posted before `connection_connect`. */
struct connection *connection_resolve(const char *address, int port, int sends, int receives);
/* Connects. Prints the peer's private data when it rejects. */
void connection_connect(struct connection *connection, const void *private_data, int length, int reads, int retries);

/* A listener of every address. */
struct connection *connection_listen(int port);
/* Waits for a request and makes its queue pair; `peer` gets the request's parameters, and `private_data` up to `length` bytes. */
struct connection *connection_requested(struct connection *listener, int sends, int receives, struct rdma_conn_param *peer,
                                        void *private_data, int length);
/* Accepts, and waits until the connection is established. */
void connection_accept(struct connection *connection, const void *private_data, int length, int reads, int depth);

struct ibv_mr *connection_register(struct connection *connection, void *at, size_t length, int access);
void connection_receive(struct connection *connection, uint64_t id, void *at, uint32_t length, uint32_t lkey);
void connection_post(struct connection *connection, struct ibv_send_wr *request);

/*
 * Takes one completion; 0 when there is none. Waits for up to `milliseconds` (negative: for ever), for `descriptor` to be readable
 * too unless it is negative.
 */
int connection_poll(struct connection *connection, struct ibv_wc *completion, int milliseconds, int descriptor);
/* Takes one completion; fails after two minutes without one, when it is an error, and when the connection ends. `doing` is for the
 * message. */
struct ibv_wc connection_wait(struct connection *connection, const char *doing);

/* Disconnects and frees everything but registered memory. */
void connection_close(struct connection *connection);

#endif
