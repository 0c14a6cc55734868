/* A key-value store with an overflow on purpose: an example of docs/guide/fuzzing.md. */
#include "kv.h"

#include <stdlib.h>
#include <string.h>

#define KEYS 16

struct entry {
	uint8_t key_len;
	uint8_t value_len;
	char key[16];
	char value[64];
};

struct kv {
	struct entry *entries[KEYS];
};

struct kv *kv_new(void)
{
	return calloc(1, sizeof(struct kv));
}

void kv_free(struct kv *kv)
{
	for (int i = 0; i < KEYS; i++)
		free(kv->entries[i]);
	free(kv);
}

/* The entry of the key, or a free one; NULL if there is neither. */
static struct entry **find(struct kv *kv, const uint8_t *key, size_t key_len)
{
	struct entry **vacant = NULL;

	for (int i = 0; i < KEYS; i++) {
		struct entry **at = &kv->entries[i];

		if (*at && (*at)->key_len == key_len && !memcmp((*at)->key, key, key_len))
			return at;
		if (!*at && !vacant)
			vacant = at;
	}
	return vacant;
}

void kv_handle(struct kv *kv, const uint8_t *request, size_t len, uint8_t *reply)
{
	memset(reply, 0, KV_SLOT);
	reply[0] = 'E';
	if (len < 4)
		return;
	size_t key_len = request[1], value_len = request[2] << 8 | request[3];
	const uint8_t *key = request + 4, *value = key + key_len;

	if (key_len > sizeof(((struct entry *)0)->key) || 4 + key_len + value_len > len)
		return;
	struct entry **at = find(kv, key, key_len);

	if (!at)
		return;
	switch (request[0]) {
	case 'P':
		if (!*at)
			*at = calloc(1, sizeof(**at));
		if (!*at)
			return;
		(*at)->key_len = key_len;
		memcpy((*at)->key, key, key_len);
		/* The planted mistake: a value has room for 64 bytes, and nobody looks whether it is longer. */
		memcpy((*at)->value, value, value_len);
		(*at)->value_len = value_len;
		reply[0] = 'O';
		break;
	case 'G':
		if (!*at)
			return;
		reply[0] = 'O';
		reply[3] = (*at)->value_len;
		memcpy(reply + 4, (*at)->value, (*at)->value_len);
		break;
	case 'D':
		free(*at);
		*at = NULL;
		reply[0] = 'O';
		break;
	}
}
