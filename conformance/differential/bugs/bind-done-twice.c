/*
 * The kernel's rxe (Linux 6.1) carries out BIND_MW, and the kernel's own REG_MR, as soon as it comes to them, before what was posted
 * earlier is acknowledged. When it sends that again, here because a SEND finds no receive at first, it comes to them once more
 * (`rxe_requester` after `req_retry`). The second BIND_MW names a key that the window has no longer, the second REG_MR a region that
 * is in use: `rxe_reg_fast_mr: mr->lkey = ... not free`. The requester then takes the queue pair for failed and sends nothing more,
 * while the completer waits for the acknowledgement, without a timer. Nothing ever completes, and `rdma resource show qp` has RTS.
 *
 *     cc -o bind-done-twice bind-done-twice.c -libverbs && ./bind-done-twice DEVICE GID_INDEX
 *
 * A device without the defect says `send: success, bind: success`; rxe `send: nothing, bind: nothing`.
 */
#include "bugs.h"

#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

static char memory[4096];

int main(int argc, char **argv)
{
	struct ibv_context *context = argc == 3 ? open_named(argv[1]) : NULL;
	struct ibv_qp_init_attr init = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_qp *qp;
	struct ibv_sge place;
	struct ibv_recv_wr recv = { .sg_list = &place, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr bind = { .wr_id = 1, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr send = {
		.sg_list = &place, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .next = &bind,
	}, *bad_send;
	const char *found[2] = { "nothing", "nothing" };

	if (!context) {
		fprintf(stderr, "usage: bind-done-twice DEVICE GID_INDEX\n");
		return 2;
	}
	pd = ibv_alloc_pd(context);
	init.send_cq = cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	init.recv_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	qp = ibv_create_qp(pd, &init);
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	if (!qp || !mr || !mw || connect_with_itself(qp, argv[2]))
		return 2;
	place = (struct ibv_sge){ (uintptr_t)memory, 8, mr->lkey };
	bind.bind_mw.mw = mw;
	bind.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	bind.bind_mw.bind_info = (struct ibv_mw_bind_info){ mr, (uintptr_t)memory, 64, IBV_ACCESS_REMOTE_READ };
	if (ibv_post_send(qp, &send, &bad_send))
		return 2;
	/* The SEND is answered by RNR NAKs and sent again, some thousand times. */
	usleep(100000);
	ibv_post_recv(qp, &recv, &bad_recv);
	for (int i = 0, count = 0; i < 500 && count < 2; i++) {
		struct ibv_wc wc;

		while (ibv_poll_cq(cq, 1, &wc) > 0) {
			found[wc.wr_id] = ibv_wc_status_str(wc.status);
			count++;
		}
		usleep(10000);
	}
	printf("send: %s, bind: %s\n", found[0], found[1]);
	return strcmp(found[0], "success") || strcmp(found[1], "success");
}
