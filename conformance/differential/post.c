/* Posting by either API, and waiting for what comes of it. */
#include "differential.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <time.h>

static void fill(struct setup *setup, int at, const struct request *request, struct ibv_send_wr *wr)
{
	memset(wr, 0, sizeof(*wr));
	wr->wr_id = request->wr_id;
	wr->opcode = request->opcode;
	wr->send_flags = request->flags;
	wr->sg_list = (struct ibv_sge *)request->sge;
	wr->num_sge = request->num_sge;
	if (request->opcode == IBV_WR_SEND_WITH_INV || request->opcode == IBV_WR_LOCAL_INV)
		wr->invalidate_rkey = request->rkey;
	else
		wr->imm_data = htonl(request->imm);
	if (request->opcode == IBV_WR_BIND_MW) {
		wr->bind_mw.mw = request->mw;
		wr->bind_mw.rkey = request->rkey;
		wr->bind_mw.bind_info = request->bind;
	} else if (setup->type == IBV_QPT_UD) {
		wr->wr.ud.ah = setup->ends[at].ah;
		wr->wr.ud.remote_qpn = setup->ends[1 - at].qp->qp_num;
		wr->wr.ud.remote_qkey = request->compare_add ? request->compare_add : Q_KEY;
	} else if (request->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || request->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr->wr.atomic.remote_addr = request->remote_addr;
		wr->wr.atomic.rkey = request->rkey;
		wr->wr.atomic.compare_add = request->compare_add;
		wr->wr.atomic.swap = request->swap;
	} else {
		wr->wr.rdma.remote_addr = request->remote_addr;
		wr->wr.rdma.rkey = request->rkey;
	}
}

static void build(struct setup *setup, int at, struct ibv_qp_ex *qp, const struct request *request)
{
	qp->wr_id = request->wr_id;
	/* IBV_SEND_INLINE as well, without which rdma-core's rxe sends something else (known-bugs-elsewhere.md). */
	qp->wr_flags = request->flags;
	switch (request->opcode) {
	case IBV_WR_SEND:
		ibv_wr_send(qp);
		break;
	case IBV_WR_SEND_WITH_IMM:
		ibv_wr_send_imm(qp, htonl(request->imm));
		break;
	case IBV_WR_SEND_WITH_INV:
		ibv_wr_send_inv(qp, request->rkey);
		break;
	case IBV_WR_RDMA_WRITE:
		ibv_wr_rdma_write(qp, request->rkey, request->remote_addr);
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		ibv_wr_rdma_write_imm(qp, request->rkey, request->remote_addr, htonl(request->imm));
		break;
	case IBV_WR_RDMA_READ:
		ibv_wr_rdma_read(qp, request->rkey, request->remote_addr);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		ibv_wr_atomic_cmp_swp(qp, request->rkey, request->remote_addr, request->compare_add, request->swap);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		ibv_wr_atomic_fetch_add(qp, request->rkey, request->remote_addr, request->compare_add);
		break;
	case IBV_WR_LOCAL_INV:
		ibv_wr_local_inv(qp, request->rkey);
		return;
	case IBV_WR_BIND_MW:
		ibv_wr_bind_mw(qp, request->mw, request->rkey, &request->bind);
		return;
	default:
		return;
	}
	if (setup->type == IBV_QPT_UD)
		ibv_wr_set_ud_addr(qp, setup->ends[at].ah, setup->ends[1 - at].qp->qp_num,
				   request->compare_add ? request->compare_add : Q_KEY);
	if (request->flags & IBV_SEND_INLINE) {
		ibv_wr_set_inline_data(qp, (void *)(uintptr_t)request->sge[0].addr, request->sge[0].length);
	} else {
		ibv_wr_set_sge_list(qp, request->num_sge, request->sge);
	}
}

/* What was asked for, so that a difference can be understood. */
static void describe(struct setup *setup, const struct request *request)
{
	char key[128], sges[64] = "";

	for (int i = 0; i < request->num_sge; i++)
		snprintf(sges + strlen(sges), sizeof(sges) - strlen(sges), " %u", request->sge[i].length);
	snprintf(key, sizeof(key), "%s asks%llx", setup->key, (unsigned long long)request->wr_id);
	tell(setup->out, key, "op%d flags %x sges%s", request->opcode, request->flags, sges);
}

/* Posts a list; returns what the API returned, and in `bad` which request was refused, -1 for none. */
int post(struct setup *setup, int at, struct request *requests, int count, int *bad)
{
	struct ibv_send_wr list[MOST_REQUESTS], *refused = NULL;
	struct ibv_qp *qp = setup->ends[at].qp;
	int result;

	*bad = -1;
	for (int i = 0; i < count; i++)
		describe(setup, &requests[i]);
	if (setup->extended_post) {
		struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);

		ibv_wr_start(ex);
		for (int i = 0; i < count; i++)
			build(setup, at, ex, &requests[i]);
		return ibv_wr_complete(ex);
	}
	for (int i = 0; i < count; i++) {
		fill(setup, at, &requests[i], &list[i]);
		list[i].next = i + 1 < count ? &list[i + 1] : NULL;
	}
	result = ibv_post_send(qp, list, &refused);
	if (result)
		*bad = refused ? refused - list : -1;
	/* Providers may return a negative number. */
	return result < 0 ? -result : result;
}

int post_recvs(struct setup *setup, int at, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct end *end = &setup->ends[at];
	int result = end->srq ? ibv_post_srq_recv(end->srq, wr, bad) : ibv_post_recv(end->qp, wr, bad);

	return result < 0 ? -result : result;
}

static const char *opcode_name(enum ibv_wc_opcode opcode)
{
	switch (opcode) {
	case IBV_WC_SEND: return "SEND";
	case IBV_WC_RDMA_WRITE: return "RDMA_WRITE";
	case IBV_WC_RDMA_READ: return "RDMA_READ";
	case IBV_WC_COMP_SWAP: return "COMP_SWAP";
	case IBV_WC_FETCH_ADD: return "FETCH_ADD";
	case IBV_WC_BIND_MW: return "BIND_MW";
	case IBV_WC_LOCAL_INV: return "LOCAL_INV";
	case IBV_WC_RECV: return "RECV";
	case IBV_WC_RECV_RDMA_WITH_IMM: return "RECV_RDMA_WITH_IMM";
	default: return "another opcode";
	}
}

/* Says of bytes that they may be anything. */
void spoil(struct end *end, uint64_t address, uint32_t length)
{
	uint64_t offset = address - (uintptr_t)end->memory;

	if (offset < MEMORY && offset + length <= MEMORY)
		memset(end->undefined + offset, 1, length);
}

/* Both ends' memory anew, for the next epoch. */
void refill(struct setup *setup, struct random *random)
{
	for (int at = 0; at < 2; at++) {
		struct end *end = &setup->ends[at];

		for (uint32_t i = 0; i < end->next; i += 8) {
			uint64_t word = random_next(random);

			memcpy(end->memory + i, &word, 8);
		}
		memset(end->undefined, 0, MEMORY);
		end->next = ATOMICS;
	}
}

/* Finds the request that has completed, and tells. Of a failure, only the status means something. */
static void completed(struct setup *setup, const struct ibv_wc *wc)
{
	char key[128];

	for (int at = 0; at < 2; at++) {
		struct end *end = &setup->ends[at], *peer = &setup->ends[1 - at];

		if (end->qp->qp_num != wc->qp_num)
			continue;
		for (int receives = 0; receives < 2; receives++) {
			struct posted *list = receives ? end->recvs : end->sends;
			int count = receives ? end->recv_count : end->send_count, behind = 0;

			for (int i = 0; i < count; i++) {
				struct posted *found = &list[i];

				if (found->wr_id != wc->wr_id) {
					behind += !found->completed && found->signaled;
					continue;
				}
				snprintf(key, sizeof(key), "%s wr%llx", setup->key, (unsigned long long)wc->wr_id);
				if (found->completed)
					tell(setup->out, key, "completed again");
				found->completed = true;
				found->status = wc->status;
				if (wc->status != IBV_WC_SUCCESS) {
					tell(setup->out, key, "%s%s", status_name(wc->status), behind ? " out of order" : "");
				} else if (receives) {
					/* ibv_poll_cq(3): that there is a GRH is said on UD only. */
					unsigned int known = IBV_WC_WITH_IMM | IBV_WC_WITH_INV |
							     (setup->type == IBV_QPT_UD ? IBV_WC_GRH : 0);

					/* The header in front of a datagram has addresses. */
					if (setup->type == IBV_QPT_UD)
						spoil(end, (uintptr_t)end->memory + found->offset, 40);
					tell(setup->out, key, "%s %s bytes %u flags %x imm %x src %d%s",
					     status_name(wc->status), opcode_name(wc->opcode), wc->byte_len,
					     wc->wc_flags & known,
					     wc->wc_flags & IBV_WC_WITH_IMM ? ntohl(wc->imm_data) : 0,
					     setup->type == IBV_QPT_UD && wc->src_qp == peer->qp->qp_num,
					     behind ? " out of order" : "");
				} else {
					tell(setup->out, key, "%s %s%s", status_name(wc->status), opcode_name(wc->opcode),
					     behind ? " out of order" : "");
				}
				return;
			}
		}
	}
	snprintf(key, sizeof(key), "%s stray", setup->key);
	tell(setup->out, key, "%llx %s", (unsigned long long)wc->wr_id, status_name(wc->status));
}

static void poll_one(struct setup *setup, struct ibv_cq *cq, struct ibv_cq_ex *ex)
{
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_wc wc;

	if (!ex) {
		while (ibv_poll_cq(cq, 1, &wc) > 0)
			completed(setup, &wc);
		return;
	}
	/* One at a time: rdma-core's rxe loses completions after an `ibv_next_poll` that finds none (known-bugs-elsewhere.md). */
	while (!ibv_start_poll(ex, &attr)) {
		memset(&wc, 0, sizeof(wc));
		wc.wr_id = ex->wr_id;
		wc.status = ex->status;
		wc.qp_num = ibv_wc_read_qp_num(ex);
		if (wc.status == IBV_WC_SUCCESS) {
			wc.opcode = ibv_wc_read_opcode(ex);
			wc.byte_len = ibv_wc_read_byte_len(ex);
			wc.wc_flags = ibv_wc_read_wc_flags(ex);
			wc.src_qp = ibv_wc_read_src_qp(ex);
			if (wc.wc_flags & IBV_WC_WITH_IMM)
				wc.imm_data = ibv_wc_read_imm_data(ex);
		}
		completed(setup, &wc);
		ibv_end_poll(ex);
	}
}

void poll_cqs(struct setup *setup)
{
	for (int at = 0; at < 2; at++) {
		struct end *end = &setup->ends[at];

		poll_one(setup, end->send_cq, end->send_cq_ex);
		if (end->recv_cq != end->send_cq)
			poll_one(setup, end->recv_cq, end->recv_cq_ex);
	}
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

static bool sends_done(const struct end *end)
{
	/* The last of a list is signaled, and they complete in order. */
	for (int i = 0; i < end->send_count; i++)
		if (end->sends[i].signaled && !end->sends[i].completed)
			return false;
	return true;
}

/* How many messages of the peer have used up a receive. */
static int consumed(const struct end *peer)
{
	int count = 0;

	for (int i = 0; i < peer->send_count; i++) {
		const struct posted *sent = &peer->sends[i];

		/* An unsignaled request has completed with success when it has not completed. */
		if (sent->consumes && (!sent->completed || sent->status == IBV_WC_SUCCESS))
			count++;
	}
	return count;
}

static int received(const struct end *end)
{
	int count = 0;

	for (int i = 0; i < end->recv_count; i++)
		count += end->recvs[i].completed;
	return count;
}

static bool wait_for(struct setup *setup, bool (*done)(struct setup *, int), int at, const char *what)
{
	double deadline = now() + DEADLINE;

	while (!setup->lost) {
		char name[128];

		poll_cqs(setup);
		if (done(setup, at))
			return true;
		if (now() > deadline) {
			snprintf(name, sizeof(name), "%s wait%d", setup->key, at);
			tell(setup->out, name, "in vain for %s", what);
			setup->lost = true;
			return false;
		}
		sched_yield();
	}
	return false;
}

static bool sent_all(struct setup *setup, int at)
{
	return sends_done(&setup->ends[at]);
}

static bool received_all(struct setup *setup, int at)
{
	return received(&setup->ends[at]) >= consumed(&setup->ends[1 - at]);
}

static bool flushed_all(struct setup *setup, int at)
{
	return received(&setup->ends[at]) == setup->ends[at].recv_count;
}

/*
 * Waits until everything that was posted has completed. Where that is not meant to be with success, both ends are put into
 * ERR, so that their receives complete as well; an SRQ keeps them.
 */
void settle(struct setup *setup, bool success)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	char name[128];

	for (int at = 0; at < 2; at++)
		wait_for(setup, sent_all, at, "sends");
	for (int at = 0; at < 2; at++) {
		if (success) {
			wait_for(setup, received_all, at, "receives");
			continue;
		}
		ibv_modify_qp(setup->ends[at].qp, &attr, IBV_QP_STATE);
		if (!setup->ends[at].srq)
			wait_for(setup, flushed_all, at, "flushed receives");
	}
	for (int at = 0; at < 2; at++) {
		struct end *end = &setup->ends[at];

		snprintf(name, sizeof(name), "%s memory%d", setup->key, at);
		tell(setup->out, name, "%016llx", (unsigned long long)hash(end->memory, end->undefined, end->next));
		end->send_count = end->recv_count = 0;
	}
}
