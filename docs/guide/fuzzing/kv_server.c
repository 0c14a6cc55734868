/* The server of kv.h over rdma_cm, one connection after the other: kv_server [PORT [CONNECTIONS]] */
#include "kv.h"

#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>

#define SLOTS 16

/* Waits for a request; 0 when the client has gone. */
static int next(struct rdma_cm_id *id, struct ibv_wc *wc)
{
	struct pollfd fds[] = { { id->recv_cq_channel->fd, POLLIN }, { id->channel->fd, POLLIN } };
	struct rdma_cm_event *event;
	struct ibv_cq *cq;
	void *context;

	for (;;) {
		if (ibv_poll_cq(id->recv_cq, 1, wc) > 0)
			return wc->status == IBV_WC_SUCCESS;
		ibv_req_notify_cq(id->recv_cq, 0);
		if (ibv_poll_cq(id->recv_cq, 1, wc) > 0)
			return wc->status == IBV_WC_SUCCESS;
		poll(fds, 2, -1);
		if (fds[0].revents && !ibv_get_cq_event(id->recv_cq_channel, &cq, &context))
			ibv_ack_cq_events(cq, 1);
		if (fds[1].revents && !rdma_get_cm_event(id->channel, &event)) {
			int is_gone = event->event == RDMA_CM_EVENT_DISCONNECTED;

			rdma_ack_cm_event(event);
			if (is_gone)
				return 0;
		}
	}
}

static void serve(struct kv *kv, struct rdma_cm_id *id)
{
	static uint8_t slots[SLOTS][KV_SLOT], reply[KV_SLOT];
	struct ibv_mr *in = rdma_reg_msgs(id, slots, sizeof(slots)), *out = rdma_reg_msgs(id, reply, sizeof(reply));
	struct ibv_wc wc;

	for (uintptr_t i = 0; i < SLOTS; i++)
		rdma_post_recv(id, (void *)i, slots[i], KV_SLOT, in);
	if (!rdma_accept(id, NULL)) {
		while (next(id, &wc)) {
			kv_handle(kv, slots[wc.wr_id], wc.byte_len, reply);
			rdma_post_recv(id, (void *)(uintptr_t)wc.wr_id, slots[wc.wr_id], KV_SLOT, in);
			if (rdma_post_send(id, NULL, reply, KV_SLOT, out, IBV_SEND_SIGNALED))
				break;
			if (rdma_get_send_comp(id, &wc) != 1 || wc.status != IBV_WC_SUCCESS)
				break;
		}
		rdma_disconnect(id);
	}
	rdma_dereg_mr(in);
	rdma_dereg_mr(out);
	rdma_destroy_ep(id);
}

int main(int argc, char **argv)
{
	char *port = argc > 1 ? argv[1] : "7471";
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *address;
	struct ibv_qp_init_attr qp = {
		.cap = { .max_send_wr = 4, .max_recv_wr = SLOTS, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *listener, *id;
	/* 0: until it is killed. */
	int connections = argc > 2 ? atoi(argv[2]) : 0;
	struct kv *kv = kv_new();

	if (rdma_getaddrinfo(NULL, port, &hints, &address) || rdma_create_ep(&listener, address, NULL, &qp) ||
	    rdma_listen(listener, 1)) {
		perror("kv_server");
		return 1;
	}
	printf("listening on port %s\n", port);
	fflush(stdout);
	while (!rdma_get_request(listener, &id)) {
		serve(kv, id);
		if (connections && !--connections)
			break;
	}
	kv_free(kv);
	return 0;
}
