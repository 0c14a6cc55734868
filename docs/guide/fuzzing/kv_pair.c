/* A target of libFuzzer and AFL++ for the server of kv.h: client and server are two queue pairs of one process, over a device
 * without threads and with virtual time (URXE_DETERMINISTIC). The same input does the same, down to PSNs and keys.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address kv_pair.c kv.c -libverbs -o kv_pair
 *     urxe run --deterministic 1 -- ./kv_pair -dict=kv.dict -max_len=128 */
#include "kv.h"

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEED(what) \
	do { \
		if (!(what)) { \
			perror(#what); \
			exit(2); \
		} \
	} while (0)

struct end {
	uint8_t sent[KV_SLOT], received[KV_SLOT];
	struct ibv_mr *out, *in;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static struct end client, server;

static void post_recv(struct end *end)
{
	struct ibv_sge sge = { (uintptr_t)end->received, sizeof(end->received), end->in->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	NEED(!ibv_post_recv(end->qp, &wr, &bad));
}

static void post_send(struct end *end, size_t length)
{
	struct ibv_sge sge = { (uintptr_t)end->sent, (uint32_t)length, end->out->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	NEED(!ibv_post_send(end->qp, &wr, &bad));
}

/* The next completion of an end that is of this kind; the others are successes. */
static struct ibv_wc completion(struct end *end, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc;

	do {
		while (!ibv_poll_cq(end->cq, 1, &wc))
			;
		NEED(wc.status == IBV_WC_SUCCESS);
	} while (wc.opcode != opcode);
	return wc;
}

static void make(struct end *end, struct ibv_pd *pd)
{
	NEED(end->in = ibv_reg_mr(pd, end->received, sizeof(end->received), IBV_ACCESS_LOCAL_WRITE));
	NEED(end->out = ibv_reg_mr(pd, end->sent, sizeof(end->sent), 0));
	NEED(end->cq = ibv_create_cq(pd->context, 16, NULL, NULL, 0));
	struct ibv_qp_init_attr init = {
		.send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	NEED(end->qp = ibv_create_qp(pd, &init));
}

static void join(struct end *end, const struct end *other, const union ibv_gid *gid)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = other->qp->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .sgid_index = 1, .hop_limit = 64 } },
	};
	NEED(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	NEED(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	NEED(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
	post_recv(end);
}

/* With the first input, not before: the fork server of AFL++ forks until then, and a device is its process' alone. */
static void set_up(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_pd *pd;
	union ibv_gid gid;

	NEED(devices && devices[0]);
	NEED(context = ibv_open_device(devices[0]));
	NEED(pd = ibv_alloc_pd(context));
	NEED(!ibv_query_gid(context, 1, 1, &gid));
	make(&client, pd);
	make(&server, pd);
	join(&client, &server, &gid);
	join(&server, &client, &gid);
	if (getenv("KV_VERBOSE"))
		fprintf(stderr, "numbers %u %u %u %u\n", client.qp->qp_num, server.qp->qp_num, client.in->lkey, server.out->lkey);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size > KV_SLOT)
		return 0;
	if (!server.qp)
		set_up();
	struct kv *kv = kv_new();

	memcpy(client.sent, data, size);
	post_send(&client, size);
	struct ibv_wc wc = completion(&server, IBV_WC_RECV);
	kv_handle(kv, server.received, wc.byte_len, server.sent);
	post_recv(&server);
	post_send(&server, KV_SLOT);
	completion(&client, IBV_WC_RECV);
	post_recv(&client);
	completion(&server, IBV_WC_SEND);
	kv_free(kv);
	return 0;
}
