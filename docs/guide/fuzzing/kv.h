/* A key-value store with an overflow on purpose: an example of docs/guide/fuzzing.md. */
#ifndef KV_H
#define KV_H

#include <stddef.h>
#include <stdint.h>

/* Every message fills a slot. */
#define KV_SLOT 128

struct kv;

struct kv *kv_new(void);
void kv_free(struct kv *kv);

/* Handles a request of `len` bytes at `request`: op ('P'ut, 'G'et or 'D'elete), length of the key, length of the value (two
 * bytes, big endian), key, value. Writes a reply of KV_SLOT bytes. */
void kv_handle(struct kv *kv, const uint8_t *request, size_t len, uint8_t *reply);

#endif
