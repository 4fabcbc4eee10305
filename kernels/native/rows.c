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

/* out = norm(x + residual) * weight, total = x + residual; without a residual, x alone */
void rms_norm(const bf16 *x, const bf16 *residual, const float *weight, bf16 *out, bf16 *total, int64_t rows,
              int64_t size, float eps, int threads) {
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
}

/* x [tokens, heads, dim], a token every `stride`; cos and sin [tokens, turned]; weight [heads, 2 * dim] or none */
void norm_rope(const bf16 *x, const bf16 *weight, const bf16 *cos, const bf16 *sin, bf16 *out, int64_t stride,
               int64_t tokens, int64_t heads, int64_t dim, int64_t turned, float eps, int threads) {
    const int64_t half = turned / 2;
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

/* gate_up [rows, 2 * width] -> out [rows, width] */
void gated(const bf16 *gate_up, bf16 *out, int64_t rows, int64_t width, int is_gelu, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width >= MANY)
    for (int64_t row = 0; row < rows; row++) {
        const bf16 *gate = gate_up + row * 2 * width, *up = gate + width;
        for (int64_t d = 0; d < width; d += LANES) {
            const __m512 z = load(gate + d);
            save(out + row * width + d, _mm512_mul_ps(is_gelu ? gelu(z) : silu(z), load(up + d)));
        }
    }
}
