/* New keys and values to their places in a paged cache, whose layout is told in attention.c and attention32.c. */

#include <float.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 16, MANY = 64 };

typedef uint16_t bf16;

/* New keys and values [tokens, kv_heads, head_dim], a token every `stride`, to their slots. Values that are no numbers
 * are stored as numbers: see store_kv.py. */
void store(const bf16 *new_keys, const bf16 *new_values, bf16 *keys, bf16 *values, const int64_t *slots,
           int64_t key_stride, int64_t value_stride, int64_t tokens, int64_t kv_heads, int64_t dim, int64_t block_size,
           int threads) {
    /* By heads, as two tokens share a word of the values. */
#pragma omp parallel for num_threads(threads) if (threads > 1 && tokens >= MANY)
    for (int64_t head = 0; head < kv_heads; head++)
        for (int64_t t = 0; t < tokens; t++) {
            const int64_t block = slots[t] / block_size, offset = slots[t] % block_size, lane = offset % LANES;
            const int64_t panel = ((block * kv_heads + head) * block_size + offset - lane) * dim;
            const bf16 *key = new_keys + t * key_stride + head * dim;
            const bf16 *value = new_values + t * value_stride + head * dim;
            bf16 *to_key = keys + panel + 2 * lane, *to_value = values + panel + lane / 2 * 2 * dim + lane % 2;
            for (int64_t d = 0; d < dim; d += 2) memcpy(to_key + d * LANES, key + d, 2 * sizeof(bf16));
            for (int64_t d = 0; d < dim; d++) {
                const bf16 x = value[d], size = x & 0x7fff;
                to_value[2 * d] = size > 0x7f80 ? 0 : size == 0x7f80 ? x - 1 : x;
            }
        }
}

/* As store, of float32. */
void store32(const float *new_keys, const float *new_values, float *keys, float *values, const int64_t *slots,
             int64_t key_stride, int64_t value_stride, int64_t tokens, int64_t kv_heads, int64_t dim,
             int64_t block_size, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && tokens >= MANY)
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t head = 0; head < kv_heads; head++) {
            const int64_t block = slots[t] / block_size, offset = slots[t] % block_size, lane = offset % LANES;
            const int64_t panel = ((block * kv_heads + head) * block_size + offset - lane) * dim;
            const float *key = new_keys + t * key_stride + head * dim;
            const float *value = new_values + t * value_stride + head * dim;
            float *to_key = keys + panel + lane, *to_value = values + panel + lane * dim;
            for (int64_t d = 0; d < dim; d++) {
                const float x = value[d];
                to_key[d * LANES] = key[d];
                to_value[d] = x != x ? 0 : x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
            }
        }
}
