/* A well-behaved client of kv_server: kv_client HOST [PORT [REQUESTS]] */
#include "kv.h"

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	static uint8_t request[KV_SLOT], reply[KV_SLOT];
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *address;
	struct ibv_qp_init_attr qp = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	int requests = argc > 3 ? atoi(argv[3]) : 10;
	struct rdma_cm_id *id;
	struct ibv_wc wc;

	if (argc < 2 || rdma_getaddrinfo(argv[1], argc > 2 ? argv[2] : "7471", &hints, &address) ||
	    rdma_create_ep(&id, address, NULL, &qp)) {
		perror("kv_client");
		return 1;
	}
	struct ibv_mr *out = rdma_reg_msgs(id, request, sizeof(request)), *in = rdma_reg_msgs(id, reply, sizeof(reply));

	if (rdma_post_recv(id, NULL, reply, KV_SLOT, in) || rdma_connect(id, NULL)) {
		perror("kv_client: connect");
		return 1;
	}
	for (int i = 0; i < requests; i++) {
		/* A server that is gone says nothing: the signal ends this program. */
		alarm(60);
		const char *key = i % 3 ? "alpha" : "beta";
		uint8_t value_len = i % 4 ? 20 : 0;

		memset(request, 'v', sizeof(request));
		request[0] = i % 4 ? 'P' : 'G';
		request[1] = strlen(key);
		request[2] = 0;
		request[3] = value_len;
		memcpy(request + 4, key, strlen(key));
		if (rdma_post_send(id, NULL, request, KV_SLOT, out, 0) || rdma_get_send_comp(id, &wc) != 1 ||
		    wc.status || rdma_get_recv_comp(id, &wc) != 1 || wc.status) {
			fprintf(stderr, "kv_client: no answer to request %d: %s\n", i, ibv_wc_status_str(wc.status));
			return 1;
		}
		if (rdma_post_recv(id, NULL, reply, KV_SLOT, in))
			return 1;
	}
	rdma_disconnect(id);
	return 0;
}
