/* Two connected queue pairs: made, connected, taken through RESET, and destroyed. */
#include "differential.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

static const unsigned int ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				IBV_ACCESS_REMOTE_ATOMIC;

static bool made(struct scene *scene, const char *what, int at, const void *object)
{
	char key[128];

	snprintf(key, sizeof(key), "%s make %s%d", scene->key, what, at);
	tell(scene->out, key, "%s", object ? "made" : strerrorname_np(errno));
	return object != NULL;
}

static bool make_cq(struct scene *scene, bool extended, struct ibv_cq **cq, struct ibv_cq_ex **ex, int at)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 128,
		.wc_flags = IBV_WC_STANDARD_FLAGS,
	};

	if (!extended) {
		*cq = ibv_create_cq(scene->context, 128, NULL, NULL, 0);
		return made(scene, "cq", at, *cq);
	}
	*ex = ibv_create_cq_ex(scene->context, &attr);
	*cq = *ex ? ibv_cq_ex_to_cq(*ex) : NULL;
	return made(scene, "cq_ex", at, *cq);
}

static bool make_qp(struct scene *scene, struct end *end, int at)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = end->send_cq,
		.recv_cq = end->recv_cq,
		.srq = end->srq,
		.cap = { MOST_REQUESTS + 4, MOST_REQUESTS + 4, MOST_SGE, MOST_SGE, 64 },
		.qp_type = scene->type,
		.sq_sig_all = scene->sq_sig_all,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = end->pd,
	};

	if (scene->extended_post) {
		attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		attr.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
		if (scene->type != IBV_QPT_UD)
			attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
		if (scene->type == IBV_QPT_RC)
			attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
					       IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV |
					       IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV;
	}
	end->qp = ibv_create_qp_ex(scene->context, &attr);
	return made(scene, "qp", at, end->qp);
}

static bool make_end(struct scene *scene, struct random *random, int at)
{
	struct end *end = &scene->ends[at];
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 64, .max_sge = MOST_SGE } };
	bool extended = chance(random, 30), shared = chance(random, 30), with_srq = chance(random, 25);
	size_t size = MEMORY;

	end->memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	end->undefined = calloc(1, size);
	if (end->memory == MAP_FAILED || !end->undefined)
		return false;
	end->next = MEMORY;
	end->access = ALL;
	end->pd = ibv_alloc_pd(scene->context);
	if (!made(scene, "pd", at, end->pd) || !make_cq(scene, extended, &end->send_cq, &end->send_cq_ex, 2 * at))
		return false;
	if (shared) {
		end->recv_cq = end->send_cq;
		end->recv_cq_ex = end->send_cq_ex;
	} else if (!make_cq(scene, extended, &end->recv_cq, &end->recv_cq_ex, 2 * at + 1)) {
		return false;
	}
	if (with_srq) {
		end->srq = ibv_create_srq(end->pd, &srq);
		if (!made(scene, "srq", at, end->srq))
			return false;
	}
	end->mr = ibv_reg_mr(end->pd, end->memory, size, ALL | IBV_ACCESS_MW_BIND);
	return made(scene, "mr", at, end->mr) && make_qp(scene, end, at);
}

bool scene_open(struct scene *scene, struct random *random)
{
	static const enum ibv_mtu mtus[] = { IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096 };
	int kind = below(random, 10);

	scene->type = kind < 7 ? IBV_QPT_RC : kind < 8 ? IBV_QPT_UC : IBV_QPT_UD;
	scene->extended_post = chance(random, 40);
	scene->sq_sig_all = chance(random, 15);
	scene->mtu = mtus[below(random, 5)];
	scene->path_mtu = 128 << scene->mtu;
	scene->rd_atomic = 1 + below(random, MOST_RD_ATOMIC);
	scene->rnr_retry = below(random, 2);
	scene->psn = chance(random, 50) ? 0xfffff0 + below(random, 16) : below(random, 1 << 24);
	scene->max_inline = 64;
	for (int at = 0; at < 2; at++)
		if (!make_end(scene, random, at))
			return false;
	refill(scene, random);
	scene_connect(scene);
	return true;
}

int to_init(struct scene *scene, struct end *end)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = end->access,
		.qkey = Q_KEY,
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	return ibv_modify_qp(end->qp, &attr, mask | (scene->type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

int to_rtr(struct scene *scene, struct end *end, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = scene->mtu,
		.dest_qp_num = peer,
		.rq_psn = scene->psn,
		.max_dest_rd_atomic = scene->rd_atomic,
		.min_rnr_timer = 1,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .dgid = scene->gid, .sgid_index = scene->gid_index, .hop_limit = 64 },
		},
	};
	int mask = IBV_QP_STATE;

	if (scene->type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (scene->type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	return ibv_modify_qp(end->qp, &attr, mask);
}

int to_rts(struct scene *scene, struct end *end)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = scene->psn,
		/* Long, for a machine that is emulated and busy: nothing is lost. */
		.timeout = 18,
		.retry_cnt = 7,
		.rnr_retry = scene->rnr_retry,
		.max_rd_atomic = scene->rd_atomic,
	};
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;

	if (scene->type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	return ibv_modify_qp(end->qp, &attr, mask);
}

void scene_connect(struct scene *scene)
{
	char key[128];

	for (int at = 0; at < 2; at++) {
		struct end *end = &scene->ends[at];
		int init = to_init(scene, end), rtr = to_rtr(scene, end, scene->ends[1 - at].qp->qp_num);

		snprintf(key, sizeof(key), "%s connect%d", scene->key, at);
		tell(scene->out, key, "%d %d %d", init, rtr, to_rts(scene, end));
		if (scene->type == IBV_QPT_UD && !end->ah) {
			struct ibv_ah_attr attr = {
				.is_global = 1,
				.port_num = 1,
				.grh = { .dgid = scene->gid, .sgid_index = scene->gid_index, .hop_limit = 64 },
			};

			end->ah = ibv_create_ah(end->pd, &attr);
			made(scene, "ah", at, end->ah);
		}
	}
}

/* Both through RESET; what is still in their queues is forgotten. */
void scene_reconnect(struct scene *scene)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	char key[128];

	for (int at = 0; at < 2; at++) {
		snprintf(key, sizeof(key), "%s reset%d", scene->key, at);
		tell(scene->out, key, "%d", ibv_modify_qp(scene->ends[at].qp, &attr, IBV_QP_STATE));
		scene->ends[at].send_count = scene->ends[at].recv_count = 0;
	}
	scene_connect(scene);
}

void scene_close(struct scene *scene)
{
	char key[128];

	for (int at = 0; at < 2; at++) {
		struct end *end = &scene->ends[at];
		int qp = end->qp ? ibv_destroy_qp(end->qp) : 0, srq = end->srq ? ibv_destroy_srq(end->srq) : 0;
		int ah = end->ah ? ibv_destroy_ah(end->ah) : 0, mr = end->mr ? ibv_dereg_mr(end->mr) : 0;
		int recv = end->recv_cq && end->recv_cq != end->send_cq ? ibv_destroy_cq(end->recv_cq) : 0;
		int send = end->send_cq ? ibv_destroy_cq(end->send_cq) : 0;

		snprintf(key, sizeof(key), "%s close%d", scene->key, at);
		tell(scene->out, key, "%d %d %d %d %d %d %d", qp, srq, ah, mr, recv, send,
		     end->pd ? ibv_dealloc_pd(end->pd) : 0);
		if (end->memory && end->memory != MAP_FAILED)
			munmap(end->memory, MEMORY);
		free(end->undefined);
	}
}
