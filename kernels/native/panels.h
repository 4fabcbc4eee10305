/* What attention.c is made of: products of a band of rows with panels of 16 tokens, and functions of 16 numbers. */

#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#ifndef __AVX512BW__
#error "this processor has no AVX-512"
#endif

enum {
    LANES = 16,
    PANELS = 4,
    TILE = PANELS * LANES, /* keys */
    BAND = 6,              /* rows: with PANELS vectors each, as many sums as there are registers for */
};
#define LOG2E 1.44269504088896341f
#define UNROLL _Pragma("GCC unroll 8")
#define INLINE static inline __attribute__((always_inline))

typedef uint16_t bf16;

/* a pair's two products are added to each lane */
INLINE __m512 dot(__m512 sum, __m512i a, __m512i b) {
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
    const __m512i odd = _mm512_set1_epi32((int)0xffff0000);
    sum = _mm512_fmadd_ps((__m512)_mm512_slli_epi32(a, 16), (__m512)_mm512_slli_epi32(b, 16), sum);
    return _mm512_fmadd_ps((__m512)_mm512_and_si512(a, odd), (__m512)_mm512_and_si512(b, odd), sum);
#endif
}

INLINE __m256i narrow(__m512 x) {
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(x);
#else
    __m512i bits = (__m512i)x, even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
#endif
}

INLINE __m512 widen(__m256i x) { return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16); }

/* Within 2 in the last place. Below -126 it is or becomes zero; NaN stays. */
INLINE __m512 exp2_(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);
    __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 rest = _mm512_sub_ps(x, whole), y = _mm512_set1_ps(1.5403530e-4f);
    y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(1.3333558e-3f));
    y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(9.6181291e-3f));
    y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(5.5504109e-2f));
    y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(2.4022651e-1f));
    y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(6.9314718e-1f));
    y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, whole);
}

INLINE float exp2_of(float x) { return _mm512_cvtss_f32(exp2_(_mm512_set1_ps(x))); }

INLINE __m512 tanh_(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f), most = _mm512_set1_ps(40.0f);
    __m512 grown = exp2_(_mm512_mul_ps(_mm512_min_ps(most, x), _mm512_set1_ps(2 * LOG2E)));
    return _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(grown, one)));
}

/* scores [rows, TILE] = queries [rows, dim] . each of the panels; the values that follow are asked for meanwhile */
INLINE void score_band(const int rows, const int panels, const bf16 *queries, int64_t dim, const bf16 *const *keys,
                       const bf16 *const *ahead, float *scores) {
    __m512 sums[BAND][PANELS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < panels; p++) sums[r][p] = _mm512_setzero_ps();
    for (int64_t d = 0; d < dim; d += 2) {
        __m512i key[PANELS];
        UNROLL for (int p = 0; p < panels; p++) {
            key[p] = _mm512_loadu_si512(keys[p] + d * LANES);
            _mm_prefetch((const char *)(ahead[p] + d * LANES), _MM_HINT_T1);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, queries + r * dim + d, sizeof pair);
            UNROLL for (int p = 0; p < panels; p++) sums[r][p] = dot(sums[r][p], key[p], _mm512_set1_epi32(pair));
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < panels; p++) _mm512_storeu_ps(scores + r * TILE + p * LANES, sums[r][p]);
}

/* mixed [rows, dim] = mixed * factors + weights [rows, TILE] . the panels, for `vectors` of each row */
INLINE void mix_band(const int rows, const int vectors, const bf16 *weights, const float *factors, int64_t dim,
                     const bf16 *const *values, const bf16 *const *ahead, int panels, int64_t first, float *mixed) {
    __m512 sums[BAND][PANELS];
    UNROLL for (int r = 0; r < rows; r++) {
        const __m512 factor = _mm512_set1_ps(factors[r]);
        UNROLL for (int v = 0; v < vectors; v++)
            sums[r][v] = _mm512_mul_ps(_mm512_loadu_ps(mixed + r * dim + first + v * LANES), factor);
    }
    for (int p = 0; p < panels; p++) {
        const bf16 *panel = values[p] + 2 * first, *later = ahead[p] + 2 * first;
        for (int token = 0; token < LANES; token += 2) {
            __m512i value[PANELS];
            UNROLL for (int v = 0; v < vectors; v++) {
                value[v] = _mm512_loadu_si512(panel + token * dim + v * 2 * LANES);
                _mm_prefetch((const char *)(later + token * dim + v * 2 * LANES), _MM_HINT_T1);
            }
            UNROLL for (int r = 0; r < rows; r++) {
                int32_t pair;
                memcpy(&pair, weights + r * TILE + p * LANES + token, sizeof pair);
                UNROLL for (int v = 0; v < vectors; v++)
                    sums[r][v] = dot(sums[r][v], value[v], _mm512_set1_epi32(pair));
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++)
            _mm512_storeu_ps(mixed + r * dim + first + v * LANES, sums[r][v]);
}

/* One copy of a loop for each number of rows and of vectors, whose sums then stay in registers. */
#define EACH_VECTORS(call, rows, vectors)                                                                             \
    switch (vectors) {                                                                                                \
    case 1: call(rows, 1); break;                                                                                     \
    case 2: call(rows, 2); break;                                                                                     \
    case 3: call(rows, 3); break;                                                                                     \
    default: call(rows, 4);                                                                                           \
    }
#define EACH(call, rows, vectors)                                                                                     \
    switch (rows) {                                                                                                   \
    case 1: EACH_VECTORS(call, 1, vectors) break;                                                                     \
    case 2: EACH_VECTORS(call, 2, vectors) break;                                                                     \
    case 3: EACH_VECTORS(call, 3, vectors) break;                                                                     \
    case 4: EACH_VECTORS(call, 4, vectors) break;                                                                     \
    case 5: EACH_VECTORS(call, 5, vectors) break;                                                                     \
    default: EACH_VECTORS(call, 6, vectors)                                                                           \
    }

static void score(const bf16 *queries, int rows, int64_t dim, const bf16 *const *keys, const bf16 *const *ahead,
                  int panels, float *scores) {
#define CALL(r, p) score_band(r, p, queries, dim, keys, ahead, scores)
    EACH(CALL, rows, panels)
#undef CALL
}

static void mix(const bf16 *weights, const float *factors, int rows, int64_t dim, const bf16 *const *values,
                const bf16 *const *ahead, int panels, float *mixed) {
    for (int64_t first = 0; first < dim; first += PANELS * LANES) {
        const int64_t vectors = (dim - first) / LANES;
#define CALL(r, v) mix_band(r, v, weights, factors, dim, values, ahead, panels, first, mixed)
        EACH(CALL, rows, vectors)
#undef CALL
    }
}
