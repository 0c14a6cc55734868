/*
 * rdma-core's provider for rxe (44): when `ibv_next_poll` finds nothing it releases the completion queue, and
 * `ibv_end_poll`, which ibv_create_cq_ex(3) wants to be called then, counts one completion more as taken and releases the
 * lock again. From then on the queue gives completions that are none.
 *
 *     cc -o next-poll next-poll.c -libverbs && ./next-poll DEVICE
 *
 * A queue pair in ERR flushes one receive: a device without the defect says `1 completion`.
 */
#include "bugs.h"

#include <stdio.h>

int main(int argc, char **argv)
{
	struct ibv_context *context = argc == 2 ? open_named(argv[1]) : NULL;
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 16 };
	struct ibv_qp_init_attr init = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr recv = { .wr_id = 7 }, *bad;
	struct ibv_poll_cq_attr poll = { 0 };
	struct ibv_cq_ex *cq;
	struct ibv_qp *qp;
	int found = 0;

	if (!context) {
		fprintf(stderr, "usage: next-poll DEVICE\n");
		return 2;
	}
	cq = ibv_create_cq_ex(context, &cq_attr);
	if (!cq)
		return 1;
	init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
	qp = ibv_create_qp(ibv_alloc_pd(context), &init);
	if (!qp)
		return 1;
	initialize(qp);
	ibv_post_recv(qp, &recv, &bad);
	ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	for (int tries = 0; tries < 1000 && found < 10; tries++) {
		if (ibv_start_poll(cq, &poll))
			continue;
		do
			found++;
		while (found < 10 && !ibv_next_poll(cq));
		ibv_end_poll(cq);
	}
	printf(found == 1 ? "1 completion\n" : "%d completions of one receive\n", found);
	return found != 1;
}
