/*
 * Runs random programs of verbs on one device, and prints what comes of them.
 *
 *     differential DEVICE GID_INDEX FIRST_SEED SEEDS
 *
 * Each seed has a process of its own; its lines are between `seed N` and `end N STATUS`.
 */
#include "differential.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_THREADS = 3, LIMIT = 600 };

static struct ibv_context *open_named(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	if (list)
		ibv_free_device_list(list);
	return context;
}

/* A pair of ends from its making to its end. */
static void *play(void *argument)
{
	static const struct {
		const char *name;
		void (*epoch)(struct setup *, struct random *);
		uint32_t weight;
	} kinds[] = { { "traffic", traffic, 5 }, { "failure", failure, 3 }, { "windows", windows, 2 }, { "calls", calls, 2 } };
	struct setup *setup = argument;
	struct random random = stream(setup->seed, setup->number << 16);
	char key[64];
	int epochs = 3 + below(&random, 5);

	snprintf(key, sizeof(key), "s%u", setup->number);
	setup->key = key;
	if (setup_open(setup, &random)) {
		for (setup->epoch = 1; setup->epoch <= epochs && !setup->lost; setup->epoch++) {
			int kind = 0;

			random = stream(setup->seed, setup->number << 16 | setup->epoch);
			for (uint32_t chosen = below(&random, 12); chosen >= kinds[kind].weight; kind++)
				chosen -= kinds[kind].weight;
			snprintf(key, sizeof(key), "s%u e%d %s%s", setup->number, setup->epoch, kinds[kind].name,
				 setup->type == IBV_QPT_RC ? "-rc" : setup->type == IBV_QPT_UC ? "-uc" : "-ud");
			kinds[kind].epoch(setup, &random);
			setup->key = key;
			refill(setup, &random);
		}
	}
	snprintf(key, sizeof(key), "s%u", setup->number);
	setup_close(setup);
	return NULL;
}

static int run_seed(const char *device, int gid_index, uint64_t seed)
{
	struct random random = stream(seed, 0);
	int threads = chance(&random, 25) ? 2 + below(&random, MOST_THREADS - 1) : 1;
	static struct setup setups[MOST_THREADS];
	pthread_t running[MOST_THREADS];
	char *text[MOST_THREADS];
	size_t size[MOST_THREADS];
	struct ibv_context *context = open_named(device);
	union ibv_gid gid;

	if (!context || ibv_query_gid(context, 1, gid_index, &gid)) {
		fprintf(stderr, "differential: %s cannot be opened\n", device);
		return 1;
	}
	for (int i = 0; i < threads; i++) {
		setups[i].context = context;
		setups[i].gid_index = gid_index;
		setups[i].gid = gid;
		setups[i].seed = seed;
		setups[i].number = i;
		setups[i].out = open_memstream(&text[i], &size[i]);
		if (pthread_create(&running[i], NULL, play, &setups[i]))
			return 1;
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(running[i], NULL);
		fclose(setups[i].out);
		fputs(text[i], stdout);
		free(text[i]);
	}
	printf("close_device\t%d\n", ibv_close_device(context));
	return 0;
}

int main(int argc, char **argv)
{
	uint64_t first, count;

	if (argc != 5) {
		fprintf(stderr, "usage: differential DEVICE GID_INDEX FIRST_SEED SEEDS\n");
		return 2;
	}
	first = strtoull(argv[3], NULL, 10);
	count = strtoull(argv[4], NULL, 10);
	for (uint64_t seed = first; seed < first + count; seed++) {
		int status;
		pid_t child;

		printf("seed %llu\n", (unsigned long long)seed);
		fflush(stdout);
		child = fork();
		if (child == 0) {
			alarm(LIMIT);
			status = run_seed(argv[1], atoi(argv[2]), seed);
			fflush(stdout);
			exit(status);
		}
		if (child < 0 || waitpid(child, &status, 0) < 0)
			return 1;
		printf("end %llu\t%d\n", (unsigned long long)seed, status);
	}
	return 0;
}
