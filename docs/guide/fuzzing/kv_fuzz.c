/* A target of libFuzzer and AFL++ for the server of kv.h: its queue pair and its peer in one process.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address -I../../../packaging/include kv_fuzz.c kv.c -libverbs -o kv_fuzz
 *     urxe run -- ./kv_fuzz -dict=kv.dict -max_len=128 */
#include "kv.h"

#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <urxe_fuzz.h>

#define NEED(what) \
	do { \
		if (!(what)) { \
			perror(#what); \
			exit(2); \
		} \
	} while (0)

static uint8_t slot[KV_SLOT], reply[KV_SLOT];
static struct urxe_fuzz peer;
static struct ibv_mr *in, *out;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

static void post_recv(void)
{
	struct ibv_sge sge = { (uintptr_t)slot, sizeof(slot), in->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	NEED(!ibv_post_recv(qp, &wr, &bad));
}

/* Waits for a completion. What the program sends meanwhile is acknowledged. */
static struct ibv_wc completion(void)
{
	uint8_t packet[URXE_FUZZ_MAX];
	struct ibv_wc wc;

	while (!ibv_poll_cq(cq, 1, &wc))
		urxe_fuzz_receive(&peer, packet, sizeof(packet));
	return wc;
}

static int gid_index(struct ibv_context *context, const char *address)
{
	uint8_t wanted[16] = { [10] = 0xFF, 0xFF };
	union ibv_gid gid;

	inet_pton(AF_INET, address, wanted + 12);
	for (int i = 0; !ibv_query_gid(context, 1, i, &gid); i++)
		if (!memcmp(gid.raw, wanted, 16))
			return i;
	NEED(!"an address of the device");
	return 0;
}

/* With the first input, not before: the fork server of AFL++ forks until then, and a device is its process' alone. */
static void set_up(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_pd *pd;

	NEED(devices && devices[0]);
	NEED(context = ibv_open_device(devices[0]));
	ibv_free_device_list(devices);
	NEED(pd = ibv_alloc_pd(context));
	NEED(in = ibv_reg_mr(pd, slot, sizeof(slot), IBV_ACCESS_LOCAL_WRITE));
	NEED(out = ibv_reg_mr(pd, reply, sizeof(reply), 0));
	NEED(cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	NEED(qp = ibv_create_qp(pd, &init));
	NEED(!urxe_fuzz_open(&peer, "127.0.0.2", "127.0.0.1"));
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn, .rq_psn = peer.psn,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .sgid_index = (uint8_t)gid_index(context, "127.0.0.1"), .hop_limit = 64 } },
	};
	memcpy(attr.ah_attr.grh.dgid.raw, peer.gid, 16);
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			    IBV_QP_MAX_QP_RD_ATOMIC));
	urxe_fuzz_connect(&peer, qp->qp_num, peer.psn);
	post_recv();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size > sizeof(slot))
		return 0;
	if (!qp)
		set_up();
	struct ibv_sge sge = { (uintptr_t)reply, sizeof(reply), out->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct kv *kv = kv_new();

	NEED(!urxe_fuzz_send(&peer, data, size));
	struct ibv_wc wc = completion();
	NEED(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
	kv_handle(kv, slot, wc.byte_len, reply);
	post_recv();
	NEED(!ibv_post_send(qp, &wr, &bad));
	NEED(completion().status == IBV_WC_SUCCESS);
	kv_free(kv);
	return 0;
}
