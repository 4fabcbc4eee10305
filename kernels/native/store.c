/* New keys and values to their places in a paged cache, whose layout is told in attention.c and attention32.c. */

#include <float.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 16, MANY = 64 };

typedef uint16_t bf16;

/* Each function takes a job and the number of threads, and returns 0: see calls.py. */

typedef struct {
    const bf16 *new_keys, *new_values; /* [tokens, kv_heads, dim], a token every stride */
    bf16 *keys, *values;
    const int64_t *slots;
    int64_t key_stride, value_stride, tokens, kv_heads, dim, block_size;
} Job;

typedef struct {
    const float *new_keys, *new_values;
    float *keys, *values;
    const int64_t *slots;
    int64_t key_stride, value_stride, tokens, kv_heads, dim, block_size;
} Job32;

/* New keys and values to their slots. Values that are no numbers
 * are stored as numbers: see store_kv.py. */
int store(const Job *job, int threads) {
    const int64_t *slots = job->slots, kv_heads = job->kv_heads, dim = job->dim, block_size = job->block_size;
    /* By heads, as two tokens share a word of the values. */
#pragma omp parallel for num_threads(threads) if (threads > 1 && job->tokens >= MANY)
    for (int64_t head = 0; head < kv_heads; head++)
        for (int64_t t = 0; t < job->tokens; t++) {
            const int64_t block = slots[t] / block_size, offset = slots[t] % block_size, lane = offset % LANES;
            const int64_t panel = ((block * kv_heads + head) * block_size + offset - lane) * dim;
            const bf16 *key = job->new_keys + t * job->key_stride + head * dim;
            const bf16 *value = job->new_values + t * job->value_stride + head * dim;
            bf16 *to_key = job->keys + panel + 2 * lane, *to_value = job->values + panel + lane / 2 * 2 * dim + lane % 2;
            for (int64_t d = 0; d < dim; d += 2) memcpy(to_key + d * LANES, key + d, 2 * sizeof(bf16));
            for (int64_t d = 0; d < dim; d++) {
                const bf16 x = value[d], size = x & 0x7fff;
                to_value[2 * d] = size > 0x7f80 ? 0 : size == 0x7f80 ? x - 1 : x;
            }
        }
    return 0;
}

/* As store, of float32. */
int store32(const Job32 *job, int threads) {
    const int64_t *slots = job->slots, kv_heads = job->kv_heads, dim = job->dim, block_size = job->block_size;
#pragma omp parallel for num_threads(threads) if (threads > 1 && job->tokens >= MANY)
    for (int64_t t = 0; t < job->tokens; t++)
        for (int64_t head = 0; head < kv_heads; head++) {
            const int64_t block = slots[t] / block_size, offset = slots[t] % block_size, lane = offset % LANES;
            const int64_t panel = ((block * kv_heads + head) * block_size + offset - lane) * dim;
            const float *key = job->new_keys + t * job->key_stride + head * dim;
            const float *value = job->new_values + t * job->value_stride + head * dim;
            float *to_key = job->keys + panel + lane, *to_value = job->values + panel + lane * dim;
            for (int64_t d = 0; d < dim; d++) {
                const float x = value[d];
                to_key[d * LANES] = key[d];
                to_value[d] = x != x ? 0 : x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
            }
        }
    return 0;
}
