/* What passes over rows of bfloat16 once: norms, rotation, gated activations. Computed in float32, rounded once. */

#include <math.h>

#include "panels.h"

enum { MANY = 1 << 15 }; /* numbers that are worth waking another thread for */

INLINE __m512 load(const bf16 *from) { return widen(_mm256_loadu_si256((const __m256i *)from)); }

INLINE void save(bf16 *to, __m512 x) { _mm256_storeu_si256((__m256i *)to, narrow(x)); }

/* one by the root of the mean square */
INLINE float inverse(const bf16 *x, int64_t size, float eps) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t d = 0; d < size; d += LANES) {
        const __m512 value = load(x + d);
        sum = _mm512_fmadd_ps(value, value, sum);
    }
    return 1.0f / sqrtf(_mm512_reduce_add_ps(sum) / (float)size + eps);
}

/* Each function takes a job and the number of threads, and returns 0: see calls.py. */

typedef struct {
    const bf16 *x, *residual;
    const float *weight;
    bf16 *out, *total;
    int64_t rows, size;
    float eps;
} Norm;

/* out = norm(x + residual) * weight, total = x + residual; without a residual, x alone */
int rms_norm(const Norm *job, int threads) {
    const bf16 *x = job->x, *residual = job->residual;
    const float *weight = job->weight, eps = job->eps;
    bf16 *out = job->out, *total = job->total;
    const int64_t rows = job->rows, size = job->size;
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * size >= MANY)
    for (int64_t row = 0; row < rows; row++) {
        const bf16 *sum = x + row * size;
        if (residual) {
            for (int64_t d = 0; d < size; d += LANES)
                save(total + row * size + d, _mm512_add_ps(load(sum + d), load(residual + row * size + d)));
            sum = total + row * size;
        }
        const __m512 scale = _mm512_set1_ps(inverse(sum, size, eps));
        for (int64_t d = 0; d < size; d += LANES)
            save(out + row * size + d,
                 _mm512_mul_ps(_mm512_mul_ps(load(sum + d), scale), _mm512_loadu_ps(weight + d)));
    }
    return 0;
}

typedef struct {
    const bf16 *x, *weight, *cos, *sin;
    bf16 *out;
    int64_t stride, tokens, heads, dim, turned;
    float eps;
} Rotation;

/* x [tokens, heads, dim], a token every `stride`; cos and sin [tokens, turned]; weight [heads, 2 * dim] or none */
int norm_rope(const Rotation *job, int threads) {
    const bf16 *x = job->x, *weight = job->weight, *cos = job->cos, *sin = job->sin;
    bf16 *out = job->out;
    const int64_t stride = job->stride, tokens = job->tokens, heads = job->heads, dim = job->dim;
    const int64_t turned = job->turned, half = turned / 2;
    const float eps = job->eps;
#pragma omp parallel for num_threads(threads) if (threads > 1 && tokens * heads * dim >= MANY)
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < heads; h++) {
            const bf16 *from = x + t * stride + h * dim, *by = weight ? weight + h * 2 * dim : 0;
            bf16 *to = out + (t * heads + h) * dim;
            const __m512 scale = _mm512_set1_ps(weight ? inverse(from, dim, eps) : 1.0f);
            for (int64_t d = 0; d < half; d += LANES) {
                __m512 low = load(from + d), high = load(from + half + d);
                if (weight) {
                    low = _mm512_mul_ps(_mm512_mul_ps(low, scale), load(by + d));
                    high = _mm512_mul_ps(_mm512_mul_ps(high, scale), load(by + half + d));
                }
                const __m512 c = load(cos + t * turned + d), s = load(sin + t * turned + d);
                save(to + d, _mm512_fmsub_ps(low, c, _mm512_mul_ps(high, s)));
                save(to + half + d, _mm512_fmadd_ps(high, c, _mm512_mul_ps(low, s)));
            }
            for (int64_t d = turned; d < dim; d += LANES) {
                __m512 value = load(from + d);
                if (weight) value = _mm512_mul_ps(_mm512_mul_ps(value, scale), load(by + d));
                save(to + d, value);
            }
        }
    return 0;
}

typedef struct {
    const bf16 *x, *cos, *sin;
    const float *bias, *factors, *shift;
    bf16 *out;
    int64_t stride, tokens, heads, dim, turned;
} Shifted;

/* Where and what: as of norm_rope; bias, factors and shift [heads, dim]. out = rope(x + bias) * factors - shift */
int shifted_rope(const Shifted *job, int threads) {
    const bf16 *x = job->x, *cos = job->cos, *sin = job->sin;
    bf16 *out = job->out;
    const int64_t stride = job->stride, tokens = job->tokens, heads = job->heads, dim = job->dim;
    const int64_t turned = job->turned, half = turned / 2;
#pragma omp parallel for num_threads(threads) if (threads > 1 && tokens * heads * dim >= MANY)
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < heads; h++) {
            const bf16 *from = x + t * stride + h * dim;
            const float *bias = job->bias + h * dim, *factors = job->factors + h * dim, *shift = job->shift + h * dim;
            bf16 *to = out + (t * heads + h) * dim;
#define BIASED(d) _mm512_add_ps(load(from + (d)), _mm512_loadu_ps(bias + (d)))
#define SAVE(d, v) save(to + (d), _mm512_fmsub_ps(v, _mm512_loadu_ps(factors + (d)), _mm512_loadu_ps(shift + (d))))
            for (int64_t d = 0; d < half; d += LANES) {
                const __m512 low = BIASED(d), high = BIASED(half + d);
                const __m512 c = load(cos + t * turned + d), s = load(sin + t * turned + d);
                SAVE(d, _mm512_fmsub_ps(low, c, _mm512_mul_ps(high, s)));
                SAVE(half + d, _mm512_fmadd_ps(high, c, _mm512_mul_ps(low, s)));
            }
            for (int64_t d = turned; d < dim; d += LANES) SAVE(d, BIASED(d));
        }
    return 0;
}

INLINE __m512 silu(__m512 z) {
    const __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(z, _mm512_add_ps(one, exp2_(_mm512_mul_ps(z, _mm512_set1_ps(-LOG2E)))));
}

INLINE __m512 gelu(__m512 z) {
    const __m512 cube = _mm512_mul_ps(_mm512_mul_ps(z, z), z);
    __m512 inner = _mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), z);
    inner = tanh_(_mm512_mul_ps(inner, _mm512_set1_ps(0.7978845608f)));
    return _mm512_mul_ps(_mm512_mul_ps(z, _mm512_set1_ps(0.5f)), _mm512_add_ps(inner, _mm512_set1_ps(1.0f)));
}

typedef struct {
    const bf16 *gate_up;
    bf16 *out;
    int64_t rows, width, is_gelu;
} Gate;

/* gate_up [rows, 2 * width] -> out [rows, width] */
int gated(const Gate *job, int threads) {
    bf16 *out = job->out;
    const int64_t rows = job->rows, width = job->width, is_gelu = job->is_gelu;
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width >= MANY)
    for (int64_t row = 0; row < rows; row++) {
        const bf16 *gate = job->gate_up + row * 2 * width, *up = gate + width;
        for (int64_t d = 0; d < width; d += LANES) {
            const __m512 z = load(gate + d);
            save(out + row * width + d, _mm512_mul_ps(is_gelu ? gelu(z) : silu(z), load(up + d)));
        }
    }
    return 0;
}
