/* Ends by exit(3) from a signal handler that interrupts rdma_connect, with the request sent. */
#include "trapped_sends.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

static struct rdma_event_channel *channel;

/* Sends, and ends the program. */
static void send_and_exit(int signal, siginfo_t *info, void *context)
{
    static int is_sent;
    (void)signal;
    (void)info;
    if (is_sent++ || !send_instead(context))
        _exit(2);
    exit(0);
}

static void expect(enum rdma_cm_event_type type)
{
    struct rdma_cm_event *event;
    check(!rdma_get_cm_event(channel, &event) && event->event == type, rdma_event_str(type));
    check(!rdma_ack_cm_event(event), "rdma_ack_cm_event");
}

int main(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(7999)};
    struct rdma_conn_param param = {0};
    struct rdma_cm_id *listener, *id;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check((channel = rdma_create_event_channel()) != NULL, "rdma_create_event_channel");
    check(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
    check(!rdma_bind_addr(listener, (void *)&address) && !rdma_listen(listener, 1), "rdma_listen");
    check(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
    check(!rdma_resolve_addr(id, NULL, (void *)&address, 2000), "rdma_resolve_addr");
    expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    check(!rdma_resolve_route(id, 2000), "rdma_resolve_route");
    expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    trap_sends(send_and_exit);
    rdma_connect(id, &param);
    fputs("rdma_connect has sent nothing\n", stderr);
    _exit(3);
}
