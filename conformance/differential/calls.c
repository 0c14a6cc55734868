/* Calls that a device refuses, or takes although one might not think so: what they return. */
#include "differential.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void error_of(struct setup *setup, const char *what, const void *object)
{
	told(setup, what, 0, object ? 0 : errno, 0);
}

static void registration(struct setup *setup, struct random *random)
{
	static const struct {
		const char *name;
		uint32_t offset;      /* of the address, in the region's memory */
		size_t length;
		uint64_t iova_offset; /* besides */
		unsigned int access;
	} asked[] = {
		{ "reg-nothing-at-a-page", 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE },
		{ "reg-nothing-in-a-page", 4104, 0, 0, IBV_ACCESS_LOCAL_WRITE },
		{ "reg-remote-write-only", 0, 4096, 0, IBV_ACCESS_REMOTE_WRITE },
		{ "reg-remote-atomic-only", 0, 4096, 0, IBV_ACCESS_REMOTE_ATOMIC },
		{ "reg-remote-read-only", 0, 4096, 0, IBV_ACCESS_REMOTE_READ },
		{ "reg-bind-only", 0, 4096, 0, IBV_ACCESS_MW_BIND },
		{ "reg-unknown-right", 0, 4096, 0, 1 << 15 },
		{ "reg-optional-right", 0, 4096, 0, 1 << 25 },
		{ "reg-wraps-around", 0, SIZE_MAX, 0, 0 },
		{ "reg-iova-of-another-offset", 64, 4096, 8, IBV_ACCESS_LOCAL_WRITE },
		{ "reg-iova-of-another-page", 64, 4096, 1 << 20, IBV_ACCESS_LOCAL_WRITE },
		{ "reg-iova-wraps-around", 0, 8192, -4096, IBV_ACCESS_LOCAL_WRITE },
		{ "reg-relaxed", 8, 100, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING },
	};
	int i = below(random, sizeof(asked) / sizeof(*asked));
	struct end *end = &setup->ends[0];
	uint8_t *address = end->memory + asked[i].offset;
	struct ibv_mr *mr = ibv_reg_mr_iova(end->pd, address, asked[i].length,
					    asked[i].iova_offset == (uint64_t)-4096 ? (uint64_t)-4096 :
					    (uintptr_t)address + asked[i].iova_offset, asked[i].access);

	error_of(setup, asked[i].name, mr);
	if (mr)
		told(setup, "dereg", 0, ibv_dereg_mr(mr), 0);
}

static void unmapped(struct setup *setup, struct random *random)
{
	void *const where[] = { (void *)16, (void *)0x7000, (void *)0xffff800000000000 };
	int i = below(random, 3);
	struct ibv_mr *mr = ibv_reg_mr(setup->ends[0].pd, where[i], 64, IBV_ACCESS_LOCAL_WRITE);

	error_of(setup, i == 0 ? "reg-first-page" : i == 1 ? "reg-unmapped" : "reg-kernel-memory", mr);
	if (mr)
		ibv_dereg_mr(mr);
}

static void queue_pair(struct setup *setup, struct random *random)
{
	struct end *end = &setup->ends[0];
	struct ibv_device_attr device;
	struct ibv_qp_init_attr attr = {
		.send_cq = end->send_cq,
		.recv_cq = end->recv_cq,
		.cap = { 4, 4, 1, 1, 0 },
		.qp_type = IBV_QPT_RC,
	};
	const char *what;
	struct ibv_qp *qp;

	ibv_query_device(setup->context, &device);
	switch (below(random, 9)) {
	case 0: what = "qp-type-0"; attr.qp_type = 0; break;
	case 1: what = "qp-type-99"; attr.qp_type = 99; break;
	/* Not of raw packets, of which the kernel's rxe has none. */
	case 2: what = "qp-type-98"; attr.qp_type = 98; break;
	case 3: what = "qp-driver"; attr.qp_type = IBV_QPT_DRIVER; break;
	case 4: what = "qp-send-wr"; attr.cap.max_send_wr = device.max_qp_wr + 1; break;
	case 5: what = "qp-recv-wr"; attr.cap.max_recv_wr = device.max_qp_wr + 1; break;
	case 6: what = "qp-send-sge"; attr.cap.max_send_sge = device.max_sge + 1; break;
	case 7: what = "qp-nothing"; memset(&attr.cap, 0, sizeof(attr.cap)); break;
	default: what = "qp-recv-sge"; attr.cap.max_recv_sge = device.max_sge + 1; break;
	}
	qp = ibv_create_qp(end->pd, &attr);
	error_of(setup, what, qp);
	if (qp)
		told(setup, "destroy_qp", 0, ibv_destroy_qp(qp), 0);
}

static void completion_queue(struct setup *setup, struct random *random)
{
	struct ibv_device_attr device;
	int which = below(random, 4), entries;
	struct ibv_cq *cq;

	ibv_query_device(setup->context, &device);
	entries = which == 0 ? 0 : which == 1 ? -1 : which == 2 ? device.max_cqe + 1 : 1;
	cq = ibv_create_cq(setup->context, entries, NULL, NULL, which == 3 ? 99 : 0);
	error_of(setup, which == 0 ? "cq-0" : which == 1 ? "cq-negative" : which == 2 ? "cq-too-long" : "cq-vector", cq);
	if (cq) {
		told(setup, "resize-0", 0, ibv_resize_cq(cq, 0), 0);
		told(setup, "destroy_cq", 0, ibv_destroy_cq(cq), 0);
	}
}

static void shared_queue(struct setup *setup, struct random *random)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 2 } };
	struct ibv_srq_attr attr = { .max_wr = 16, .srq_limit = 4 };
	int which = below(random, 6);
	struct ibv_srq *srq;

	if (which == 0)
		init.attr.max_wr = 0;
	if (which == 1)
		init.attr.max_sge = 1000;
	srq = ibv_create_srq(setup->ends[0].pd, &init);
	error_of(setup, which == 0 ? "srq-0" : which == 1 ? "srq-sge" : "srq", srq);
	if (!srq)
		return;
	if (which == 2)
		told(setup, "srq-limit", 0, ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	if (which == 3) {
		attr.srq_limit = 1000;
		told(setup, "srq-limit-too-high", 0, ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	}
	if (which == 4)
		told(setup, "srq-resize", 0, ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), 0);
	if (which == 5)
		told(setup, "srq-mask", 0, ibv_modify_srq(srq, &attr, 1 << 5), 0);
	told(setup, "destroy_srq", 0, ibv_destroy_srq(srq), 0);
}

/* Attributes of a new queue pair, in INIT. */
static void transition(struct setup *setup, struct random *random)
{
	static const char *const names[] = {
		"modify-rtr-mtu", "modify-rtr-rnr-timer", "modify-rtr-rd-atomic", "modify-rtr-empty-gid-row",
		"modify-rtr-port", "modify-rtr-without-av", "modify-rtr-unknown-bit", "modify-rtr-too-much",
		"modify-no-transition", "modify-no-state", "modify-rtr-no-grh", "modify-cur-state", "modify-rate-limit",
	};
	struct end *end = &setup->ends[0], other = *end;
	struct ibv_qp_init_attr init = {
		.send_cq = end->send_cq,
		.recv_cq = end->recv_cq,
		.cap = { 4, 4, 1, 1, 0 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.min_rnr_timer = 1,
		.max_dest_rd_atomic = 1,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .dgid = setup->gid, .sgid_index = setup->gid_index, .hop_limit = 64 },
		},
	};
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	int which = below(random, sizeof(names) / sizeof(*names));
	enum ibv_qp_type type = setup->type;

	other.qp = ibv_create_qp(end->pd, &init);
	if (!other.qp) {
		error_of(setup, "create_qp", NULL);
		return;
	}
	setup->type = IBV_QPT_RC;
	told(setup, "to-init", 0, to_init(setup, &other), 0);
	setup->type = type;
	switch (which) {
	case 0: attr.path_mtu = 9; break;
	case 1: attr.min_rnr_timer = 32; break;
	case 2: attr.max_dest_rd_atomic = 255; break;
	case 3: attr.ah_attr.grh.sgid_index = 200; break;
	case 4: attr.ah_attr.port_num = 2; break;
	case 5: mask &= ~IBV_QP_AV; break;
	case 6: mask |= 1 << (21 + below(random, 9)); break;
	case 7: mask |= IBV_QP_SQ_PSN; break;
	case 8: attr.qp_state = IBV_QPS_RTS; break;
	case 9: attr.qp_state = 77; break;
	case 10: attr.ah_attr.is_global = 0; break;
	case 11: attr.cur_qp_state = IBV_QPS_RTS; mask = IBV_QP_STATE | IBV_QP_CUR_STATE; break;
	default: mask |= IBV_QP_RATE_LIMIT; break;
	}
	told(setup, names[which], 0, ibv_modify_qp(other.qp, &attr, mask), 0);
	told(setup, "destroy_qp", 0, ibv_destroy_qp(other.qp), 0);
}

static void post_refused(struct setup *setup, struct random *random)
{
	struct end *end = &setup->ends[0];
	struct ibv_sge sges[MOST_SGE + 30];
	struct ibv_recv_wr recv = { .sg_list = sges, .num_sge = 33 }, *bad_recv;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .sg_list = sges, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_qp_init_attr init = {
		.send_cq = end->send_cq,
		.recv_cq = end->recv_cq,
		.cap = { 4, 4, 1, 1, 16 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(end->pd, &init);
	int result;

	if (!qp) {
		error_of(setup, "create_qp", NULL);
		return;
	}
	for (int i = 0; i < MOST_SGE + 30; i++)
		sges[i] = (struct ibv_sge){ (uintptr_t)end->memory, 2000, end->mr->lkey };
	switch (below(random, 4)) {
	case 0:
		result = ibv_post_recv(qp, &recv, &bad_recv);
		told(setup, "post-recv-sges", 0, abs(result), 0);
		break;
	case 1:
		send.num_sge = 33;
		result = ibv_post_send(qp, &send, &bad);
		told(setup, "post-send-sges", 0, abs(result), 0);
		break;
	case 2:
		send.num_sge = 1;
		send.send_flags |= IBV_SEND_INLINE;
		result = ibv_post_send(qp, &send, &bad);
		told(setup, "post-inline", 0, abs(result), 0);
		break;
	default:
		recv.num_sge = 1;
		result = ibv_post_recv(qp, &recv, &bad_recv);
		told(setup, "post-recv-in-reset", 0, abs(result), 0);
		break;
	}
	told(setup, "destroy_qp", 0, ibv_destroy_qp(qp), 0);
}

static void in_use(struct setup *setup, struct random *random)
{
	struct end *end = &setup->ends[0];

	switch (below(random, 3)) {
	case 0: told(setup, "dealloc-pd-in-use", 0, ibv_dealloc_pd(end->pd), 0); break;
	case 1: told(setup, "destroy-cq-in-use", 0, ibv_destroy_cq(end->send_cq), 0); break;
	default:
		if (end->srq)
			told(setup, "destroy-srq-in-use", 0, ibv_destroy_srq(end->srq), 0);
		break;
	}
}

static void address(struct setup *setup, struct random *random)
{
	struct ibv_ah_attr attr = {
		.is_global = 1,
		.port_num = 1,
		.grh = { .dgid = setup->gid, .sgid_index = setup->gid_index, .hop_limit = 64 },
	};
	int which = below(random, 4);
	struct ibv_ah *ah;

	if (which == 0)
		attr.is_global = 0;
	if (which == 1)
		attr.port_num = 2;
	if (which == 2)
		attr.grh.sgid_index = 200;
	ah = ibv_create_ah(setup->ends[0].pd, &attr);
	error_of(setup, which == 0 ? "ah-no-grh" : which == 1 ? "ah-port" : which == 2 ? "ah-empty-gid-row" : "ah", ah);
	if (ah)
		told(setup, "destroy_ah", 0, ibv_destroy_ah(ah), 0);
}

static void queries(struct setup *setup, struct random *random)
{
	struct ibv_port_attr port;
	union ibv_gid gid;
	__be16 pkey;
	struct ibv_gid_entry entry;

	switch (below(random, 5)) {
	case 0: told(setup, "query-port-0", 0, ibv_query_port(setup->context, 0, &port), 0); break;
	case 1: told(setup, "query-port-2", 0, ibv_query_port(setup->context, 2, &port), 0); break;
	case 2: told(setup, "query-gid-port-2", 0, ibv_query_gid(setup->context, 2, 0, &gid) ? 1 : 0, 0); break;
	case 3: told(setup, "query-pkey-1000", 0, ibv_query_pkey(setup->context, 1, 1000, &pkey) ? 1 : 0, 0); break;
	default: told(setup, "query-gid-ex-empty", 0, ibv_query_gid_ex(setup->context, 1, 200, &entry, 0), 0); break;
	}
}

void calls(struct setup *setup, struct random *random)
{
	void (*const kinds[])(struct setup *, struct random *) = {
		registration, unmapped, queue_pair, completion_queue, shared_queue, transition, post_refused, in_use, address,
		queries, registration, transition,
	};
	int count = 2 + below(random, 5);
	const char *key = setup->key;
	char name[128];

	for (int i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "%s c%d", key, i);
		setup->key = name;
		kinds[below(random, sizeof(kinds) / sizeof(*kinds))](setup, random);
	}
	setup->key = key;
}
