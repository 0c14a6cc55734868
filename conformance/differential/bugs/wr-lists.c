/*
 * rdma-core's provider for rxe (44), by `ibv_wr_*`: a list of two elements of different lengths is sent with twice the length
 * of the first, and inline data without IBV_SEND_INLINE in `wr_flags`, which ibv_wr_post(3) does not ask for, are not sent.
 *
 *     cc -o wr-lists wr-lists.c -libverbs && ./wr-lists DEVICE GID_INDEX
 *
 * A device without the defects says `list: 30 bytes, inline: 5 bytes`.
 */
#include "bugs.h"

#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

static char memory[4096];

/* Bytes of the message that arrives, -1 if none does. */
static int received(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	for (int i = 0; i < 500; i++) {
		if (ibv_poll_cq(cq, 1, &wc) > 0) {
			if (wc.status != IBV_WC_SUCCESS)
				return -1;
			if (wc.opcode & IBV_WC_RECV)
				return wc.byte_len;
			continue;
		}
		usleep(10000);
	}
	return -1;
}

int main(int argc, char **argv)
{
	struct ibv_context *context = argc == 3 ? open_named(argv[1]) : NULL;
	struct ibv_qp_init_attr_ex init = {
		.cap = { 4, 4, 2, 1, 64 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_recv_wr recv = { .num_sge = 1 }, *bad;
	struct ibv_sge room, list[2];
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	struct ibv_qp_ex *ex;
	int of_list, of_inline;

	if (!context) {
		fprintf(stderr, "usage: wr-lists DEVICE GID_INDEX\n");
		return 2;
	}
	init.pd = ibv_alloc_pd(context);
	init.send_cq = init.recv_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	qp = ibv_create_qp_ex(context, &init);
	mr = ibv_reg_mr(init.pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	if (!qp || !mr)
		return 1;
	if (connect_with_itself(qp, argv[2]))
		return 1;
	room = (struct ibv_sge){ (uintptr_t)memory + 2048, 1024, mr->lkey };
	recv.sg_list = &room;
	ibv_post_recv(qp, &recv, &bad);
	ibv_post_recv(qp, &recv, &bad);
	ex = ibv_qp_to_qp_ex(qp);
	list[0] = (struct ibv_sge){ (uintptr_t)memory, 10, mr->lkey };
	list[1] = (struct ibv_sge){ (uintptr_t)memory + 100, 20, mr->lkey };
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, 2, list);
	ibv_wr_complete(ex);
	of_list = received(init.recv_cq);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, memory, 5);
	ibv_wr_complete(ex);
	of_inline = received(init.recv_cq);
	printf("list: %d bytes, inline: %d bytes\n", of_list, of_inline);
	return of_list != 30 || of_inline != 5;
}
