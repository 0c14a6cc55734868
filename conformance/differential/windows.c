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

static void run(struct scene *scene, int at, const char *what, struct request *request, bool success)
{
	int bad, result;

	request->flags |= IBV_SEND_SIGNALED;
	result = post(scene, at, request, 1, &bad);
	told(scene, what, at, result, bad);
	if (!result)
		remember(scene, at, request);
	if (success)
		settle(scene, true);
}

/* The peer reads through the window; both ends are connected anew if that fails. */
static void probe(struct scene *scene, struct bound *bound, const char *what, uint64_t wr_id)
{
	struct end *end = &scene->ends[0], *peer = &scene->ends[1];
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

	run(scene, 1, what, &request, false);
	settle(scene, true);
	if (posted->status != IBV_WC_SUCCESS)
		scene_reconnect(scene);
}

static struct request bind(struct scene *scene, struct bound *bound, uint32_t rkey, uint64_t wr_id)
{
	struct end *end = &scene->ends[0];

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

static void type_1(struct scene *scene, struct random *random)
{
	struct end *end = &scene->ends[0];
	struct bound bound = { .mw = ibv_alloc_mw(end->pd, IBV_MW_TYPE_1), .offset = take(end, 64, 8) };
	struct ibv_mw_bind asked = { .wr_id = scene->epoch << 16 | 0x700, .send_flags = IBV_SEND_SIGNALED };
	struct request as_posted = { .wr_id = asked.wr_id, .flags = IBV_SEND_SIGNALED };
	int result;

	if (!bound.mw) {
		told(scene, "alloc_mw", 0, errno, 0);
		return;
	}
	asked.bind_info = bind(scene, &bound, 0, 0).bind;
	if (chance(random, 20))
		asked.bind_info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
	if (chance(random, 10))
		asked.bind_info.mr = NULL;
	result = ibv_bind_mw(end->qp, bound.mw, &asked);
	told(scene, "bind_mw", 0, result, 0);
	if (!result) {
		remember(scene, 0, &as_posted);
		settle(scene, true);
		bound.rkey = bound.mw->rkey;
		probe(scene, &bound, "through", scene->epoch << 16 | 0x701);
		if (chance(random, 50)) {
			/* Bound again, to nothing or elsewhere: the key of before means nothing any more. */
			asked.wr_id = as_posted.wr_id = scene->epoch << 16 | 0x702;
			if (chance(random, 50))
				asked.bind_info.length = 0;
			told(scene, "rebind_mw", 0, ibv_bind_mw(end->qp, bound.mw, &asked), 0);
			remember(scene, 0, &as_posted);
			settle(scene, true);
			probe(scene, &bound, "through-the-old-key", scene->epoch << 16 | 0x703);
		}
	}
	told(scene, "dereg-bound", 0, 0, 0);
	told(scene, "dealloc_mw", 0, ibv_dealloc_mw(bound.mw), 0);
}

static void type_2(struct scene *scene, struct random *random)
{
	struct end *end = &scene->ends[0];
	struct bound bound = { .mw = ibv_alloc_mw(end->pd, IBV_MW_TYPE_2), .offset = take(end, 64, 8) };
	struct request request;
	uint32_t how = below(random, 6), posted;

	if (!bound.mw) {
		told(scene, "alloc_mw", 0, errno, 0);
		return;
	}
	bound.rkey = how == 0 ? bound.mw->rkey : ibv_inc_rkey(bound.mw->rkey);
	request = bind(scene, &bound, bound.rkey, scene->epoch << 16 | 0x710);
	if (how == 1)
		request.bind.length = 0;
	if (how == 2)
		request.bind.addr = (uintptr_t)end->memory + MEMORY - 8;
	posted = end->send_count;
	run(scene, 0, how == 0 ? "bind-same-key" : how == 1 ? "bind-nothing" : how == 2 ? "bind-out-of-bounds" : "bind",
	    &request, true);
	if (end->sends[posted].status == IBV_WC_SUCCESS) {
		probe(scene, &bound, "through", scene->epoch << 16 | 0x711);
		if (how == 3) {
			/* Bound again without having been invalidated. */
			request = bind(scene, &bound, ibv_inc_rkey(bound.rkey), scene->epoch << 16 | 0x712);
			bound.mw->rkey = bound.rkey;
			run(scene, 0, "bind-bound", &request, true);
			scene_reconnect(scene);
		}
		if (how == 4) {
			memset(&request, 0, sizeof(request));
			request.opcode = IBV_WR_LOCAL_INV;
			request.wr_id = scene->epoch << 16 | 0x713;
			request.rkey = bound.rkey;
			run(scene, 0, "invalidate", &request, true);
			probe(scene, &bound, "through-what-is-invalidated", scene->epoch << 16 | 0x714);
		}
		if (how == 5) {
			/* The peer is done with it. */
			memset(&request, 0, sizeof(request));
			request.opcode = IBV_WR_SEND_WITH_INV;
			request.wr_id = scene->epoch << 16 | 0x715;
			request.rkey = bound.rkey;
			receive(scene, random, 0, 0);
			run(scene, 1, "send-invalidate", &request, true);
			probe(scene, &bound, "through-what-the-peer-has-invalidated", scene->epoch << 16 | 0x716);
		}
	} else {
		scene_reconnect(scene);
	}
	told(scene, "dealloc_mw", 0, ibv_dealloc_mw(bound.mw), 0);
}

/* Behind a SEND that nobody receives: what is told as not done must not be open, after RESET either. */
static void behind_a_failure(struct scene *scene, struct random *random)
{
	struct end *end = &scene->ends[0];
	bool second = chance(random, 50);
	struct bound bound = {
		.mw = ibv_alloc_mw(end->pd, second ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1),
		.offset = take(end, 64, 8),
	};
	struct ibv_mw_bind asked = { .wr_id = scene->epoch << 16 | 0x721, .send_flags = IBV_SEND_SIGNALED };
	struct request send = { .opcode = IBV_WR_SEND, .wr_id = scene->epoch << 16 | 0x720, .flags = IBV_SEND_SIGNALED };
	struct request request;

	if (!bound.mw || scene->ends[1].srq) {
		if (bound.mw)
			ibv_dealloc_mw(bound.mw);
		return;
	}
	run(scene, 0, "send-to-nobody", &send, false);
	bound.rkey = ibv_inc_rkey(bound.mw->rkey);
	request = bind(scene, &bound, bound.rkey, asked.wr_id);
	if (second) {
		run(scene, 0, "bind-2-behind", &request, false);
	} else {
		asked.bind_info = request.bind;
		told(scene, "bind-1-behind", 0, ibv_bind_mw(end->qp, bound.mw, &asked), 0);
		bound.rkey = bound.mw->rkey;
		remember(scene, 0, &request);
	}
	settle(scene, false);
	scene_reconnect(scene);
	probe(scene, &bound, "through-what-was-flushed", scene->epoch << 16 | 0x722);
	told(scene, "dealloc_mw", 0, ibv_dealloc_mw(bound.mw), 0);
}

void windows(struct scene *scene, struct random *random)
{
	void (*const kinds[])(struct scene *, struct random *) = { type_1, type_2, behind_a_failure };

	if (scene->type != IBV_QPT_RC)
		traffic(scene, random);
	else
		kinds[below(random, 3)](scene, random);
}
