/* Messages that must get through, and requests that must fail. */
#include "differential.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Room for `length` bytes, which nothing else of the epoch uses. */
uint32_t take(struct end *end, uint32_t length, uint32_t align)
{
	uint32_t at = (end->next + align - 1) / align * align;

	if (at + length + 16 > MEMORY)
		abort();
	end->next = at + length + 16;
	return at;
}

static uint32_t some_length(struct setup *setup, struct random *random)
{
	uint32_t mtu = setup->path_mtu;
	const uint32_t lengths[] = { 0, 1, 2, 3, 5, 8, 60, 63, 256, 1000, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 7 };

	/* A datagram fits the port's MTU, which differs. */
	return lengths[below(random, setup->type == IBV_QPT_UD ? 10 : 15)];
}

/* Gathers `length` bytes from pieces, one behind the other in memory. */
static void pieces(struct end *end, struct random *random, struct request *request, uint32_t at, uint32_t length, int most)
{
	int count = 1 + below(random, most);

	request->num_sge = 0;
	for (int i = 0; i < count; i++) {
		uint32_t part = i + 1 == count ? length : below(random, length + 1);

		request->sge[request->num_sge++] = (struct ibv_sge){ (uintptr_t)end->memory + at, part, end->mr->lkey };
		at += part;
		length -= part;
	}
}

void remember(struct setup *setup, int at, const struct request *request)
{
	struct posted *posted = &setup->ends[at].sends[setup->ends[at].send_count++];

	memset(posted, 0, sizeof(*posted));
	posted->wr_id = request->wr_id;
	posted->signaled = setup->sq_sig_all || (request->flags & IBV_SEND_SIGNALED);
	posted->consumes = request->opcode == IBV_WR_SEND || request->opcode == IBV_WR_SEND_WITH_IMM ||
			   request->opcode == IBV_WR_SEND_WITH_INV || request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

void told(struct setup *setup, const char *what, int at, int result, int bad)
{
	char name[128];

	snprintf(name, sizeof(name), "%s %s%d", setup->key, what, at);
	if (result)
		tell(setup->out, name, "%s at %d", strerrorname_np(result), bad);
	else
		tell(setup->out, name, "0");
}

static enum ibv_wr_opcode some_opcode(struct setup *setup, struct random *random)
{
	static const enum ibv_wr_opcode opcodes[] = {
		IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
		IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP,
	};

	return opcodes[below(random, setup->type == IBV_QPT_RC ? 7 : setup->type == IBV_QPT_UC ? 4 : 2)];
}

/* Posts a receive of up to `length` bytes. */
void receive(struct setup *setup, struct random *random, int at, uint32_t length)
{
	struct end *end = &setup->ends[at];
	uint32_t room = length + (setup->type == IBV_QPT_UD ? 40 : 0) + below(random, 3) * 8;
	struct request pieces_of = { 0 };
	struct posted *posted;
	struct ibv_recv_wr wr = { 0 }, *bad = NULL;
	uint32_t offset;
	int result;

	if (end->recv_count >= MOST_REQUESTS)
		return;
	offset = take(end, room, 1 << below(random, 4));
	pieces(end, random, &pieces_of, offset, room, MOST_SGE);
	wr.wr_id = 0x8000 | setup->epoch << 16 | at << 12 | end->recv_count;
	wr.sg_list = pieces_of.sge;
	wr.num_sge = pieces_of.num_sge;
	result = post_recvs(setup, at, &wr, &bad);
	if (result) {
		told(setup, "recv", at, result, 0);
		return;
	}
	posted = &end->recvs[end->recv_count++];
	memset(posted, 0, sizeof(*posted));
	posted->wr_id = wr.wr_id;
	posted->signaled = true;
	posted->offset = offset;
}

/* A request that succeeds. */
static void valid(struct setup *setup, struct random *random, int at, int index, struct request *request)
{
	struct end *end = &setup->ends[at], *peer = &setup->ends[1 - at];
	uint32_t length = some_length(setup, random), local, remote;
	bool atomic;

	memset(request, 0, sizeof(*request));
	request->wr_id = setup->epoch << 16 | at << 12 | index;
	request->opcode = some_opcode(setup, random);
	atomic = request->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || request->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
	if (atomic)
		length = 8;
	local = take(end, length, atomic ? 8 : 1 << below(random, 4));
	remote = take(peer, length, 8);
	/* rdma-core's rxe counts the first of a list as often as there are elements (known-bugs-elsewhere.md). */
	pieces(end, random, request, local, length, setup->extended_post ? 1 : MOST_SGE);
	if (atomic) {
		request->num_sge = 1;
		request->sge[0].addr = (uintptr_t)end->memory + local;
		request->sge[0].length = 8;
		remote = 8 * below(random, ATOMICS / 8);
		request->compare_add = random_next(random);
		request->swap = random_next(random);
		if (chance(random, 50))
			memcpy(&request->compare_add, peer->memory + remote, 8);
	}
	request->remote_addr = (uintptr_t)peer->memory + remote;
	request->rkey = peer->mr->rkey;
	request->imm = random_next(random);
	if (setup->type == IBV_QPT_UD)
		request->compare_add = 0;
	request->flags = chance(random, 70) ? IBV_SEND_SIGNALED : 0;
	if (chance(random, 20))
		request->flags |= IBV_SEND_FENCE;
	if (chance(random, 20))
		request->flags |= IBV_SEND_SOLICITED;
	if (length <= setup->max_inline && request->opcode != IBV_WR_RDMA_READ && !atomic && chance(random, 40))
		request->flags |= IBV_SEND_INLINE;
}

static uint32_t length_of(const struct request *request)
{
	uint32_t length = 0;

	for (int i = 0; i < request->num_sge; i++)
		length += request->sge[i].length;
	return length;
}

/* Lists of requests from both ends at once; on UC and UD a last message by which the others have arrived. */
void traffic(struct setup *setup, struct random *random)
{
	struct request requests[2][MOST_REQUESTS];
	int count[2];

	for (int at = 0; at < 2; at++) {
		count[at] = setup->type == IBV_QPT_RC ? below(random, 12) : below(random, 6);
		for (int i = 0; i < count[at]; i++) {
			valid(setup, random, at, i, &requests[at][i]);
			if (i + 1 == count[at])
				requests[at][i].flags |= IBV_SEND_SIGNALED;
			/* What came before the last message of UC has come when that has. */
			if (i + 1 == count[at] && setup->type == IBV_QPT_UC)
				requests[at][i].opcode = IBV_WR_SEND_WITH_IMM;
		}
	}
	for (int at = 0; at < 2; at++) {
		for (int i = 0; i < count[1 - at]; i++) {
			enum ibv_wr_opcode opcode = requests[1 - at][i].opcode;

			if (opcode != IBV_WR_RDMA_WRITE && opcode != IBV_WR_RDMA_READ &&
			    opcode != IBV_WR_ATOMIC_FETCH_AND_ADD && opcode != IBV_WR_ATOMIC_CMP_AND_SWP)
				receive(setup, random, at, length_of(&requests[1 - at][i]));
		}
	}
	for (int at = 0; at < 2; at++) {
		int from = 0;

		while (from < count[at]) {
			int some = 1 + below(random, count[at] - from), bad, result;

			result = post(setup, at, requests[at] + from, some, &bad);
			told(setup, "post", at, result, bad);
			for (int i = from; !result && i < from + some; i++)
				remember(setup, at, &requests[at][i]);
			from += some;
		}
	}
	settle(setup, true);
}

/* How a request of an established RC connection is wrong. */
enum mistake {
	WRONG_RKEY, OUT_OF_BOUNDS, BEFORE_THE_START, MISALIGNED, TOO_LONG, NO_RECEIVE, WRONG_LKEY, LOCAL_OUT_OF_BOUNDS,
	OTHER_PD_LOCAL, OTHER_PD_REMOTE, READ_ONLY_LOCAL, NO_REMOTE_RIGHT, QP_RIGHTS, INVALIDATE_NOTHING, INVALIDATE_MR,
	SEND_INVALIDATE_NOTHING, MISTAKES,
};

static const char *const MISTAKE[] = {
	"wrong-rkey", "out-of-bounds", "before-the-start", "misaligned", "too-long", "no-receive", "wrong-lkey",
	"local-out-of-bounds", "other-pd-local", "other-pd-remote", "read-only-local", "no-remote-right", "qp-rights",
	"invalidate-nothing", "invalidate-mr", "send-invalidate-nothing",
};

static const enum ibv_wr_opcode ONE_SIDED[] = {
	IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP,
};

/* One request that fails, and some behind it; then both ends anew. */
void failure(struct setup *setup, struct random *random)
{
	enum mistake mistake = below(random, MISTAKES);
	struct end *end = &setup->ends[0], *peer = &setup->ends[1];
	struct request requests[4];
	struct ibv_pd *other = NULL;
	struct ibv_mr *mr = NULL;
	const char *key = setup->key;
	int count = 1 + below(random, 4), bad, result;
	uint32_t local, remote, length = 8, access = peer->access;
	char name[128];

	if (setup->type != IBV_QPT_RC) {
		traffic(setup, random);
		return;
	}
	/* What an SRQ holds is not flushed: the next epoch would find it. */
	if (peer->srq && (mistake == TOO_LONG || mistake == NO_RECEIVE || mistake == SEND_INVALIDATE_NOTHING))
		mistake = WRONG_RKEY;
	snprintf(name, sizeof(name), "%s %s", key, MISTAKE[mistake]);
	setup->key = name;
	for (int i = 0; i < count; i++) {
		valid(setup, random, 0, i, &requests[i]);
		requests[i].opcode = IBV_WR_RDMA_WRITE;
		requests[i].flags = IBV_SEND_SIGNALED;
	}
	requests[0].opcode = ONE_SIDED[below(random, 4)];
	local = take(end, length, 8);
	remote = take(peer, length, 8);
	requests[0].num_sge = 1;
	requests[0].sge[0] = (struct ibv_sge){ (uintptr_t)end->memory + local, length, end->mr->lkey };
	requests[0].remote_addr = (uintptr_t)peer->memory + remote;
	switch (mistake) {
	case WRONG_RKEY:
		requests[0].rkey ^= 1 + below(random, 255);
		break;
	case OUT_OF_BOUNDS:
		/* In part, or as a whole; an atomic is aligned: which of two mistakes counts is up to the device. */
		requests[0].remote_addr = (uintptr_t)peer->memory + MEMORY;
		if (!chance(random, 50) && (requests[0].opcode == IBV_WR_RDMA_WRITE || requests[0].opcode == IBV_WR_RDMA_READ))
			requests[0].remote_addr -= 4;
		break;
	case BEFORE_THE_START:
		requests[0].remote_addr = (uintptr_t)peer->memory - 8;
		break;
	case MISALIGNED:
		requests[0].opcode = ONE_SIDED[2 + below(random, 2)];
		requests[0].remote_addr += 4;
		break;
	case TOO_LONG:
		requests[0].opcode = IBV_WR_SEND;
		requests[0].sge[0].length = 4000;
		requests[0].sge[0].addr = (uintptr_t)end->memory + take(end, 4000, 8);
		receive(setup, random, 1, 100);
		break;
	case NO_RECEIVE:
		requests[0].opcode = chance(random, 50) ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM;
		break;
	case WRONG_LKEY:
		requests[0].sge[0].lkey ^= 1 + below(random, 255);
		break;
	case LOCAL_OUT_OF_BOUNDS:
		requests[0].sge[0].addr = (uintptr_t)end->memory + MEMORY - 4;
		break;
	case OTHER_PD_LOCAL:
	case OTHER_PD_REMOTE: {
		struct end *owner = mistake == OTHER_PD_LOCAL ? end : peer;

		other = ibv_alloc_pd(setup->context);
		mr = ibv_reg_mr(other, owner->memory, MEMORY, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
		if (mistake == OTHER_PD_LOCAL)
			requests[0].sge[0].lkey = mr->lkey;
		else
			requests[0].rkey = mr->rkey;
		break;
	}
	case READ_ONLY_LOCAL:
		mr = ibv_reg_mr(end->pd, end->memory, MEMORY, 0);
		requests[0].opcode = ONE_SIDED[1 + below(random, 3)];
		requests[0].sge[0].lkey = mr->lkey;
		break;
	case NO_REMOTE_RIGHT:
		mr = ibv_reg_mr(peer->pd, peer->memory, MEMORY, IBV_ACCESS_LOCAL_WRITE);
		requests[0].rkey = mr->rkey;
		break;
	case QP_RIGHTS:
		peer->access = IBV_ACCESS_LOCAL_WRITE;
		setup_reconnect(setup);
		break;
	case INVALIDATE_NOTHING:
		requests[0].opcode = IBV_WR_LOCAL_INV;
		requests[0].num_sge = 0;
		/* No region has so large an index. */
		requests[0].rkey = 0x00fff001;
		break;
	case INVALIDATE_MR:
		mr = ibv_reg_mr(end->pd, end->memory, MEMORY, IBV_ACCESS_LOCAL_WRITE);
		requests[0].opcode = IBV_WR_LOCAL_INV;
		requests[0].num_sge = 0;
		requests[0].rkey = mr->rkey;
		break;
	case SEND_INVALIDATE_NOTHING:
	default:
		/* The kernel's rxe would leave those behind unanswered. */
		count = 1;
		requests[0].opcode = IBV_WR_SEND_WITH_INV;
		requests[0].rkey = 0x00fff001;
		receive(setup, random, 1, 100);
		break;
	}
	snprintf(name + strlen(name), sizeof(name) - strlen(name), " op%d", requests[0].opcode);
	for (int i = 0; i < count; i++) {
		/* Posted one by one: what the API refuses is no matter of those behind. */
		result = post(setup, 0, &requests[i], 1, &bad);
		told(setup, i ? "behind" : "post", 0, result, bad);
		if (!result)
			remember(setup, 0, &requests[i]);
		if (result && i == 0)
			break;
	}
	/* A message that fails, or is flushed, may have been stored in part. */
	for (int i = 0; i < count; i++) {
		spoil(peer, requests[i].remote_addr, length_of(&requests[i]));
		for (int j = 0; j < requests[i].num_sge; j++)
			spoil(end, requests[i].sge[j].addr, requests[i].sge[j].length);
	}
	for (int i = 0; i < peer->recv_count; i++)
		spoil(peer, (uintptr_t)peer->memory + peer->recvs[i].offset, 200);
	settle(setup, false);
	peer->access = access;
	setup_reconnect(setup);
	if (mr)
		told(setup, "dereg", 0, ibv_dereg_mr(mr), 0);
	if (other)
		told(setup, "dealloc", 0, ibv_dealloc_pd(other), 0);
	setup->key = key;
}
