/* Two connected queue pairs: made, connected, taken through RESET, and destroyed. */
#include "differential.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

static const unsigned int ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				IBV_ACCESS_REMOTE_ATOMIC;

static bool made(struct setup *setup, const char *what, int at, const void *object)
{
	char key[128];

	snprintf(key, sizeof(key), "%s make %s%d", setup->key, what, at);
	tell(setup->out, key, "%s", object ? "made" : strerrorname_np(errno));
	return object != NULL;
}

static bool make_cq(struct setup *setup, bool extended, struct ibv_cq **cq, struct ibv_cq_ex **ex, int at)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 128,
		.wc_flags = IBV_WC_STANDARD_FLAGS,
	};

	if (!extended) {
		*cq = ibv_create_cq(setup->context, 128, NULL, NULL, 0);
		return made(setup, "cq", at, *cq);
	}
	*ex = ibv_create_cq_ex(setup->context, &attr);
	*cq = *ex ? ibv_cq_ex_to_cq(*ex) : NULL;
	return made(setup, "cq_ex", at, *cq);
}

static bool make_qp(struct setup *setup, struct end *end, int at)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = end->send_cq,
		.recv_cq = end->recv_cq,
		.srq = end->srq,
		.cap = { MOST_REQUESTS + 4, MOST_REQUESTS + 4, MOST_SGE, MOST_SGE, 64 },
		.qp_type = setup->type,
		.sq_sig_all = setup->sq_sig_all,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = end->pd,
	};

	if (setup->extended_post) {
		attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		attr.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
		if (setup->type != IBV_QPT_UD)
			attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
		if (setup->type == IBV_QPT_RC)
			attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
					       IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV |
					       IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV;
	}
	end->qp = ibv_create_qp_ex(setup->context, &attr);
	return made(setup, "qp", at, end->qp);
}

static bool make_end(struct setup *setup, struct random *random, int at)
{
	struct end *end = &setup->ends[at];
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 64, .max_sge = MOST_SGE } };
	bool extended = chance(random, 30), shared = chance(random, 30), with_srq = chance(random, 25);
	size_t size = MEMORY;

	end->memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	end->undefined = calloc(1, size);
	if (end->memory == MAP_FAILED || !end->undefined)
		return false;
	end->next = MEMORY;
	end->access = ALL;
	end->pd = ibv_alloc_pd(setup->context);
	if (!made(setup, "pd", at, end->pd) || !make_cq(setup, extended, &end->send_cq, &end->send_cq_ex, 2 * at))
		return false;
	if (shared) {
		end->recv_cq = end->send_cq;
		end->recv_cq_ex = end->send_cq_ex;
	} else if (!make_cq(setup, extended, &end->recv_cq, &end->recv_cq_ex, 2 * at + 1)) {
		return false;
	}
	if (with_srq) {
		end->srq = ibv_create_srq(end->pd, &srq);
		if (!made(setup, "srq", at, end->srq))
			return false;
	}
	end->mr = ibv_reg_mr(end->pd, end->memory, size, ALL | IBV_ACCESS_MW_BIND);
	return made(setup, "mr", at, end->mr) && make_qp(setup, end, at);
}

bool setup_open(struct setup *setup, struct random *random)
{
	static const enum ibv_mtu mtus[] = { IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096 };
	int kind = below(random, 10);

	setup->type = kind < 7 ? IBV_QPT_RC : kind < 8 ? IBV_QPT_UC : IBV_QPT_UD;
	setup->extended_post = chance(random, 40);
	setup->sq_sig_all = chance(random, 15);
	setup->mtu = mtus[below(random, 5)];
	setup->path_mtu = 128 << setup->mtu;
	setup->rd_atomic = 1 + below(random, MOST_RD_ATOMIC);
	setup->rnr_retry = below(random, 2);
	setup->psn = chance(random, 50) ? 0xfffff0 + below(random, 16) : below(random, 1 << 24);
	setup->max_inline = 64;
	for (int at = 0; at < 2; at++)
		if (!make_end(setup, random, at))
			return false;
	refill(setup, random);
	setup_connect(setup);
	return true;
}

int to_init(struct setup *setup, struct end *end)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = end->access,
		.qkey = Q_KEY,
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	return ibv_modify_qp(end->qp, &attr, mask | (setup->type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

int to_rtr(struct setup *setup, struct end *end, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = setup->mtu,
		.dest_qp_num = peer,
		.rq_psn = setup->psn,
		.max_dest_rd_atomic = setup->rd_atomic,
		.min_rnr_timer = 1,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .dgid = setup->gid, .sgid_index = setup->gid_index, .hop_limit = 64 },
		},
	};
	int mask = IBV_QP_STATE;

	if (setup->type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (setup->type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	return ibv_modify_qp(end->qp, &attr, mask);
}

int to_rts(struct setup *setup, struct end *end)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = setup->psn,
		/* Long, for a machine that is emulated and busy: nothing is lost. */
		.timeout = 18,
		.retry_cnt = 7,
		.rnr_retry = setup->rnr_retry,
		.max_rd_atomic = setup->rd_atomic,
	};
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;

	if (setup->type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	return ibv_modify_qp(end->qp, &attr, mask);
}

void setup_connect(struct setup *setup)
{
	char key[128];

	for (int at = 0; at < 2; at++) {
		struct end *end = &setup->ends[at];
		int init = to_init(setup, end), rtr = to_rtr(setup, end, setup->ends[1 - at].qp->qp_num);

		snprintf(key, sizeof(key), "%s connect%d", setup->key, at);
		tell(setup->out, key, "%d %d %d", init, rtr, to_rts(setup, end));
		if (setup->type == IBV_QPT_UD && !end->ah) {
			struct ibv_ah_attr attr = {
				.is_global = 1,
				.port_num = 1,
				.grh = { .dgid = setup->gid, .sgid_index = setup->gid_index, .hop_limit = 64 },
			};

			end->ah = ibv_create_ah(end->pd, &attr);
			made(setup, "ah", at, end->ah);
		}
	}
}

/* Both through RESET; what is still in their queues is forgotten. */
void setup_reconnect(struct setup *setup)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	char key[128];

	for (int at = 0; at < 2; at++) {
		snprintf(key, sizeof(key), "%s reset%d", setup->key, at);
		tell(setup->out, key, "%d", ibv_modify_qp(setup->ends[at].qp, &attr, IBV_QP_STATE));
		setup->ends[at].send_count = setup->ends[at].recv_count = 0;
	}
	setup_connect(setup);
}

void setup_close(struct setup *setup)
{
	char key[128];

	for (int at = 0; at < 2; at++) {
		struct end *end = &setup->ends[at];
		int qp = end->qp ? ibv_destroy_qp(end->qp) : 0, srq = end->srq ? ibv_destroy_srq(end->srq) : 0;
		int ah = end->ah ? ibv_destroy_ah(end->ah) : 0, mr = end->mr ? ibv_dereg_mr(end->mr) : 0;
		int recv = end->recv_cq && end->recv_cq != end->send_cq ? ibv_destroy_cq(end->recv_cq) : 0;
		int send = end->send_cq ? ibv_destroy_cq(end->send_cq) : 0;

		snprintf(key, sizeof(key), "%s close%d", setup->key, at);
		tell(setup->out, key, "%d %d %d %d %d %d %d", qp, srq, ah, mr, recv, send,
		     end->pd ? ibv_dealloc_pd(end->pd) : 0);
		if (end->memory && end->memory != MAP_FAILED)
			munmap(end->memory, MEMORY);
		free(end->undefined);
	}
}
