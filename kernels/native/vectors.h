/* Vectors of the compiler's own, as wide as the processor's, and loops over bands of rows: for processors of any kind. */

#pragma once
#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

#if defined(__AVX512F__)
enum { LANES = 16, VECTORS = 4 };
#elif defined(__AVX__)
enum { LANES = 8, VECTORS = 2 };
#else
enum { LANES = 4, VECTORS = 2 };
#endif
enum { BAND = 6 }; /* rows: with VECTORS each, as many sums as there are registers for */

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t bits __attribute__((vector_size(4 * LANES), aligned(4)));

INLINE vec load(const float *from) {
    vec x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void save(float *into, vec x) { memcpy(into, &x, sizeof x); }

/* a * b + sum, rounded once where the processor can. Left to the compiler it would be so in some copies of a loop, and
 * in others not. */
INLINE vec fused(vec a, vec b, vec sum) {
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#elif defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + sum;
#endif
}

/* One copy of a loop for each number of rows up to BAND, whose sums then stay in registers. */
#define EACH_ROWS(call, rows)                                                                                         \
    switch (rows) {                                                                                                   \
    case 1: call(1); break;                                                                                           \
    case 2: call(2); break;                                                                                           \
    case 3: call(3); break;                                                                                           \
    case 4: call(4); break;                                                                                           \
    case 5: call(5); break;                                                                                           \
    default: call(6);                                                                                                 \
    }
