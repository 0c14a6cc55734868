/* Memory windows: bound, used by the peer, bound again, invalidated, and bound behind what fails. */
#include "differential.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct bound {
	struct ibv_mw *mw;
	uint32_t rkey;        /* what a peer would use */
	uint32_t offset;
};

static void run(struct setup *setup, int at, const char *what, struct request *request, bool success)
{
	int bad, result;

	request->flags |= IBV_SEND_SIGNALED;
	result = post(setup, at, request, 1, &bad);
	told(setup, what, at, result, bad);
	if (!result)
		remember(setup, at, request);
	if (success)
		settle(setup, true);
}

/* The peer reads through the window; both ends are connected anew if that fails. */
static void probe(struct setup *setup, struct bound *bound, const char *what, uint64_t wr_id)
{
	struct end *end = &setup->ends[0], *peer = &setup->ends[1];
	uint32_t local = take(peer, 16, 8);
	struct request request = {
		.opcode = IBV_WR_RDMA_READ,
		.wr_id = wr_id,
		.num_sge = 1,
		.sge = { { (uintptr_t)peer->memory + local, 16, peer->mr->lkey } },
		.remote_addr = (uintptr_t)end->memory + bound->offset,
		.rkey = bound->rkey,
	};
	struct posted *posted = &peer->sends[peer->send_count];

	run(setup, 1, what, &request, false);
	settle(setup, true);
	if (posted->status != IBV_WC_SUCCESS)
		setup_reconnect(setup);
}

static struct request bind(struct setup *setup, struct bound *bound, uint32_t rkey, uint64_t wr_id)
{
	struct end *end = &setup->ends[0];

	return (struct request){
		.opcode = IBV_WR_BIND_MW,
		.wr_id = wr_id,
		.flags = IBV_SEND_SIGNALED,
		.mw = bound->mw,
		.rkey = rkey,
		.bind = {
			.mr = end->mr,
			.addr = (uintptr_t)end->memory + bound->offset,
			.length = 64,
			.mw_access_flags = IBV_ACCESS_REMOTE_READ,
		},
	};
}

static void type_1(struct setup *setup, struct random *random)
{
	struct end *end = &setup->ends[0];
	struct bound bound = { .mw = ibv_alloc_mw(end->pd, IBV_MW_TYPE_1), .offset = take(end, 64, 8) };
	struct ibv_mw_bind asked = { .wr_id = setup->epoch << 16 | 0x700, .send_flags = IBV_SEND_SIGNALED };
	struct request as_posted = { .wr_id = asked.wr_id, .flags = IBV_SEND_SIGNALED };
	int result;

	if (!bound.mw) {
		told(setup, "alloc_mw", 0, errno, 0);
		return;
	}
	asked.bind_info = bind(setup, &bound, 0, 0).bind;
	if (chance(random, 20))
		asked.bind_info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
	if (chance(random, 10))
		asked.bind_info.mr = NULL;
	result = ibv_bind_mw(end->qp, bound.mw, &asked);
	told(setup, "bind_mw", 0, result, 0);
	if (!result) {
		remember(setup, 0, &as_posted);
		settle(setup, true);
		bound.rkey = bound.mw->rkey;
		probe(setup, &bound, "through", setup->epoch << 16 | 0x701);
		if (chance(random, 50)) {
			/* Bound again, to nothing or elsewhere: the key of before means nothing any more. */
			asked.wr_id = as_posted.wr_id = setup->epoch << 16 | 0x702;
			if (chance(random, 50))
				asked.bind_info.length = 0;
			told(setup, "rebind_mw", 0, ibv_bind_mw(end->qp, bound.mw, &asked), 0);
			remember(setup, 0, &as_posted);
			settle(setup, true);
			probe(setup, &bound, "through-the-old-key", setup->epoch << 16 | 0x703);
		}
	}
	told(setup, "dereg-bound", 0, 0, 0);
	told(setup, "dealloc_mw", 0, ibv_dealloc_mw(bound.mw), 0);
}

static void type_2(struct setup *setup, struct random *random)
{
	struct end *end = &setup->ends[0];
	struct bound bound = { .mw = ibv_alloc_mw(end->pd, IBV_MW_TYPE_2), .offset = take(end, 64, 8) };
	struct request request;
	uint32_t how = below(random, 6), posted;

	if (!bound.mw) {
		told(setup, "alloc_mw", 0, errno, 0);
		return;
	}
	bound.rkey = how == 0 ? bound.mw->rkey : ibv_inc_rkey(bound.mw->rkey);
	request = bind(setup, &bound, bound.rkey, setup->epoch << 16 | 0x710);
	if (how == 1)
		request.bind.length = 0;
	if (how == 2)
		request.bind.addr = (uintptr_t)end->memory + MEMORY - 8;
	posted = end->send_count;
	run(setup, 0, how == 0 ? "bind-same-key" : how == 1 ? "bind-nothing" : how == 2 ? "bind-out-of-bounds" : "bind",
	    &request, true);
	if (end->sends[posted].status == IBV_WC_SUCCESS) {
		probe(setup, &bound, "through", setup->epoch << 16 | 0x711);
		if (how == 3) {
			/* Bound again without having been invalidated. */
			request = bind(setup, &bound, ibv_inc_rkey(bound.rkey), setup->epoch << 16 | 0x712);
			bound.mw->rkey = bound.rkey;
			run(setup, 0, "bind-bound", &request, true);
			setup_reconnect(setup);
		}
		if (how == 4) {
			memset(&request, 0, sizeof(request));
			request.opcode = IBV_WR_LOCAL_INV;
			request.wr_id = setup->epoch << 16 | 0x713;
			request.rkey = bound.rkey;
			run(setup, 0, "invalidate", &request, true);
			probe(setup, &bound, "through-what-is-invalidated", setup->epoch << 16 | 0x714);
		}
		if (how == 5) {
			/* The peer is done with it. */
			memset(&request, 0, sizeof(request));
			request.opcode = IBV_WR_SEND_WITH_INV;
			request.wr_id = setup->epoch << 16 | 0x715;
			request.rkey = bound.rkey;
			receive(setup, random, 0, 0);
			run(setup, 1, "send-invalidate", &request, true);
			probe(setup, &bound, "through-what-the-peer-has-invalidated", setup->epoch << 16 | 0x716);
		}
	} else {
		setup_reconnect(setup);
	}
	told(setup, "dealloc_mw", 0, ibv_dealloc_mw(bound.mw), 0);
}

/* Behind a SEND that nobody receives: what is told as not done must not be open, after RESET either. */
static void behind_a_failure(struct setup *setup, struct random *random)
{
	struct end *end = &setup->ends[0];
	bool second = chance(random, 50);
	struct bound bound = {
		.mw = ibv_alloc_mw(end->pd, second ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1),
		.offset = take(end, 64, 8),
	};
	struct ibv_mw_bind asked = { .wr_id = setup->epoch << 16 | 0x721, .send_flags = IBV_SEND_SIGNALED };
	struct request send = { .opcode = IBV_WR_SEND, .wr_id = setup->epoch << 16 | 0x720, .flags = IBV_SEND_SIGNALED };
	struct request request;

	if (!bound.mw || setup->ends[1].srq) {
		if (bound.mw)
			ibv_dealloc_mw(bound.mw);
		return;
	}
	run(setup, 0, "send-to-nobody", &send, false);
	bound.rkey = ibv_inc_rkey(bound.mw->rkey);
	request = bind(setup, &bound, bound.rkey, asked.wr_id);
	if (second) {
		run(setup, 0, "bind-2-behind", &request, false);
	} else {
		asked.bind_info = request.bind;
		told(setup, "bind-1-behind", 0, ibv_bind_mw(end->qp, bound.mw, &asked), 0);
		bound.rkey = bound.mw->rkey;
		remember(setup, 0, &request);
	}
	settle(setup, false);
	setup_reconnect(setup);
	probe(setup, &bound, "through-what-was-flushed", setup->epoch << 16 | 0x722);
	told(setup, "dealloc_mw", 0, ibv_dealloc_mw(bound.mw), 0);
}

void windows(struct setup *setup, struct random *random)
{
	void (*const kinds[])(struct setup *, struct random *) = { type_1, type_2, behind_a_failure };

	if (setup->type != IBV_QPT_RC)
		traffic(setup, random);
	else
		kinds[below(random, 3)](setup, random);
}
