/* Vectors of the compiler's own, as wide as the processor's, and loops over bands of rows: for processors of any kind. */

#pragma once
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
