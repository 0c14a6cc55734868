/* Random programs of verbs, decided by a seed, and what comes of them as text that two devices can be compared by. */
#ifndef DIFFERENTIAL_H
#define DIFFERENTIAL_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum {
	MEMORY = 1 << 19,     /* bytes of an end's region: an epoch needs less */
	ATOMICS = 512,        /* of these, at the start, words for atomics of the peer */
	MOST_REQUESTS = 24,   /* of one kind, of one end, in one epoch */
	MOST_SGE = 3,
	MOST_RD_ATOMIC = 8,
	DEADLINE = 120,       /* seconds to wait for a completion: a machine may be busy, and emulated */
	Q_KEY = 0x1234567,
};

/* splitmix64: each step has a stream of its own, so that what one device answers decides nothing of what follows. */
struct random {
	uint64_t state;
};
uint64_t random_next(struct random *random);
uint32_t below(struct random *random, uint32_t limit);
bool chance(struct random *random, uint32_t percent);
struct random stream(uint64_t seed, uint64_t step);

/* What comes of a call or a request: a line of a key and a value, the key the same on every device. */
__attribute__((format(printf, 3, 4))) void tell(FILE *out, const char *key, const char *value, ...);
const char *status_name(enum ibv_wc_status status);
uint64_t hash(const uint8_t *bytes, const uint8_t *undefined, size_t length);

/* A work request that was posted. */
struct posted {
	uint64_t wr_id;
	bool signaled;
	bool consumes;        /* uses up a receive of the peer */
	bool completed;
	enum ibv_wc_status status;
	uint32_t offset;      /* of a receive: where its data go */
};

struct end {
	struct ibv_pd *pd;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_cq_ex *send_cq_ex, *recv_cq_ex; /* the same, where they are extended */
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct ibv_ah *ah;    /* to the peer, on UD */
	uint8_t *memory;
	uint8_t *undefined;   /* by byte: what a failure leaves there is up to the device */
	uint32_t next;        /* where the next request's memory begins */
	uint32_t access;      /* of the queue pair */
	struct posted sends[MOST_REQUESTS], recvs[MOST_REQUESTS];
	int send_count, recv_count;
};

/* Two queue pairs of one device, connected with each other. */
struct setup {
	FILE *out;
	struct ibv_context *context;
	int gid_index;
	union ibv_gid gid;
	uint64_t seed;
	uint32_t number;      /* among the setups of a seed */
	enum ibv_qp_type type;
	bool extended_post;   /* ibv_wr_* */
	bool sq_sig_all;
	uint32_t max_inline;
	enum ibv_mtu mtu;
	uint32_t path_mtu;
	const char *key;      /* of what the epoch does */
	uint8_t rd_atomic;
	uint8_t rnr_retry;
	uint32_t psn;
	struct end ends[2];
	int epoch;
	bool lost;            /* it has waited in vain: nothing more is to be learnt */
};

/* A send request, before it is posted by either API. */
struct request {
	enum ibv_wr_opcode opcode;
	uint64_t wr_id;
	unsigned int flags;
	struct ibv_sge sge[MOST_SGE];
	int num_sge;
	uint64_t remote_addr;
	uint32_t rkey;        /* also what is to be invalidated */
	uint64_t compare_add, swap;
	uint32_t imm;         /* in host order */
	struct ibv_mw *mw;
	struct ibv_mw_bind_info bind;
};

/* setup.c */
bool setup_open(struct setup *setup, struct random *random);
void setup_close(struct setup *setup);
void setup_connect(struct setup *setup);
void setup_reconnect(struct setup *setup);
int to_init(struct setup *setup, struct end *end);
int to_rtr(struct setup *setup, struct end *end, uint32_t peer);
int to_rts(struct setup *setup, struct end *end);

/* post.c */
int post(struct setup *setup, int at, struct request *requests, int count, int *bad);
int post_recvs(struct setup *setup, int at, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
void settle(struct setup *setup, bool success);
void spoil(struct end *end, uint64_t address, uint32_t length);
void refill(struct setup *setup, struct random *random);
void poll_cqs(struct setup *setup);

/* traffic.c, windows.c, calls.c: one epoch each */
void traffic(struct setup *setup, struct random *random);
void failure(struct setup *setup, struct random *random);
void windows(struct setup *setup, struct random *random);
void calls(struct setup *setup, struct random *random);

void receive(struct setup *setup, struct random *random, int at, uint32_t length);
uint32_t take(struct end *end, uint32_t length, uint32_t align);
void remember(struct setup *setup, int at, const struct request *request);
void told(struct setup *setup, const char *what, int at, int result, int bad);

#endif
