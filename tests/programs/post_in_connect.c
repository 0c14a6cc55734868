/* Posts and polls in a signal handler that interrupts rdma_connect, with the request sent, again and again. */
#include "trapped_sends.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

enum {
    ROUNDS = 100,
    /* A poll in vain looks at all sockets now and then. */
    POLLS = 100,
};

static struct sockaddr_in address = {.sin_family = AF_INET};
static struct rdma_event_channel *channel;
/* Two ends of a connection, whose queue pairs the handler posts to. */
static struct rdma_cm_id *client, *server;
static struct ibv_mr *memory;
static volatile uint64_t number, posted, sent, received;
static volatile sig_atomic_t is_connecting;

/* Takes a completion, if there is one. */
static int take(struct ibv_cq *cq, struct ibv_wc *wc)
{
    int taken = ibv_poll_cq(cq, 1, wc);
    if (taken < 0 || (taken && wc->status != IBV_WC_SUCCESS))
        _exit(4);
    return taken;
}

/* Posts a message, and a receive for it. */
static void post(void)
{
    uint64_t next = posted;
    struct ibv_sge to = {(uintptr_t)&number, sizeof number, memory->lkey};
    struct ibv_sge from = {(uintptr_t)&next, sizeof next, 0};
    struct ibv_recv_wr receive = {.wr_id = next, .sg_list = &to, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr message = {.wr_id = next, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_message;
    message.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
    if (ibv_post_recv(server->qp, &receive, &bad_receive) || ibv_post_send(client->qp, &message, &bad_message))
        _exit(3);
    posted = next + 1;
}

/* Sends. The first time in a rdma_connect, posts and polls as well: the request has come by then, and a poll that took it would wait for the
 * lock of rdma_connect. */
static void send_and_post(int signal, siginfo_t *info, void *context)
{
    int error = errno;
    (void)signal;
    (void)info;
    send_instead(context);
    if (is_connecting) {
        struct ibv_wc wc;
        is_connecting = 0;
        post();
        for (int i = 0; i < POLLS; i++)
            if (take(client->send_cq, &wc))
                sent++;
    }
    errno = error;
}

/* Polls until all that was posted has come. */
static void take_all(void)
{
    struct ibv_wc wc;
    while (sent != posted || received != posted) {
        if (take(client->send_cq, &wc))
            sent++;
        if (take(server->recv_cq, &wc)) {
            check(wc.wr_id == received && number == received, "another message");
            received++;
        }
    }
}

static struct rdma_cm_id *expect(enum rdma_cm_event_type type)
{
    struct rdma_cm_event *event;
    struct rdma_cm_id *id;
    check(!rdma_get_cm_event(channel, &event) && event->event == type, rdma_event_str(type));
    id = event->id;
    check(!rdma_ack_cm_event(event), "rdma_ack_cm_event");
    return id;
}

/* Makes an id that can connect to the listener. */
static struct rdma_cm_id *resolved(void)
{
    struct rdma_cm_id *id;
    check(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
    check(!rdma_resolve_addr(id, NULL, (void *)&address, 2000), "rdma_resolve_addr");
    expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    check(!rdma_resolve_route(id, 2000), "rdma_resolve_route");
    expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    return id;
}

static void create_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, sizeof number}};
    check(!rdma_create_qp(id, NULL, &init), "rdma_create_qp");
}

int main(void)
{
    struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
    struct rdma_cm_id *listener;
    address.sin_port = htons(7998);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check((channel = rdma_create_event_channel()) != NULL, "rdma_create_event_channel");
    check(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
    check(!rdma_bind_addr(listener, (void *)&address) && !rdma_listen(listener, 4), "rdma_listen");
    client = resolved();
    create_qp(client);
    check(!rdma_connect(client, &param), "rdma_connect");
    server = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    create_qp(server);
    memory = ibv_reg_mr(server->qp->pd, (void *)&number, sizeof number, IBV_ACCESS_LOCAL_WRITE);
    check(memory != NULL, "ibv_reg_mr");
    check(!rdma_accept(server, &param), "rdma_accept");
    expect(RDMA_CM_EVENT_ESTABLISHED);
    expect(RDMA_CM_EVENT_ESTABLISHED);
    trap_sends(send_and_post);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct rdma_cm_id *id = resolved(), *request;
        is_connecting = 1;
        check(!rdma_connect(id, &param), "rdma_connect");
        check(posted == round + 1, "rdma_connect has sent nothing");
        take_all();
        request = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        check(!rdma_reject(request, NULL, 0) && !rdma_destroy_id(request), "rdma_reject");
        expect(RDMA_CM_EVENT_REJECTED);
        check(!rdma_destroy_id(id), "rdma_destroy_id");
    }
    return 0;
}
