/* Products of a few rows with weights of 4, 6 or 8 bits, and such weights widened to bfloat16.

   Weights lie in tiles of 16 outputs. A vector of 64 bytes holds 16 outputs (lanes) by 4 inputs (bytes of a lane), or in
   nibbles by 8: the low ones are the first four. A thread reads its tiles from end to end.

   Activations are written in groups as step * (256 * high + low) with two rows of 8-bit integers: 15 bits and a sign.
   Their products with the codes are sums of integers, so exact; groups are added up in order, in float32. A row's result
   is therefore the same to the last bit whatever other rows share the product. */

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__AVX512VNNI__) || !defined(__AVX512BW__) || !defined(__AVX512VL__)
#error "the processor has no AVX-512 VNNI"
#endif

#define INLINE static inline __attribute__((always_inline))
#define ROWS 4 /* computed at a time, with codes that are unpacked once */
#define TILE 16
#define AHEAD 1024 /* bytes */

/* INT8: a scale an output. INT4: a scale and an offset a group, in bfloat16. INT4_SMALL: a scale in 8 bits, and an offset
   in sixteenths of it. INT6: a scale in 8 bits. Those of 8 bits are 3 of an exponent and 5 of a mantissa. */
enum { INT8, INT4, INT4_SMALL, INT6 };
enum { FLOAT32, BFLOAT16, FLOAT16 };

typedef struct {
    const uint8_t *codes; /* by tile, then inputs */
    const uint8_t *scales; /* by tile, then group: 16 scales, 16 offsets */
    const float *factors; /* of an output; for a scale of 8 bits, a power of two: what all of them 0 means */
    const float *bias; /* or NULL */
    int64_t outputs, inputs, padded; /* padded: inputs, filled up to whole groups */
    int64_t group, kind;
} Weight;

typedef struct {
    int8_t *high, *low; /* [padded] */
    int32_t *sum; /* of a group's integers */
    float *step, *moment, *sixteenth; /* moment: step * sum; sixteenth: sum / 16 */
} Row;

INLINE int64_t bytes_of(int64_t kind, int64_t inputs) { /* of codes, of a tile */
    return kind == INT8 ? inputs * TILE : kind == INT6 ? inputs * TILE / 4 * 3 : inputs * TILE / 2;
}

INLINE int64_t scale_bytes(int64_t kind) { return kind == INT8 ? 0 : kind == INT6 ? 16 : kind == INT4 ? 64 : 32; }

INLINE int32_t zero_of(int64_t kind) { return kind == INT8 ? 128 : kind == INT6 ? 32 : 8; }

INLINE __m512 load_floats(const void *from, int64_t at, int dtype, __mmask16 mask) {
    if (dtype == FLOAT32) return _mm512_maskz_loadu_ps(mask, (const float *)from + at);
    __m256i halves = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)from + at);
    if (dtype == FLOAT16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

INLINE __m256i to_bfloat16(__m512 x) {
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(x);
#else
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    rounded = _mm512_mask_set1_epi32(rounded, nan, 0x7fc00000);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
}

INLINE void store_floats(void *into, int64_t at, int dtype, __mmask16 mask, __m512 x) {
    if (dtype == FLOAT32) _mm512_mask_storeu_ps((float *)into + at, mask, x);
    else if (dtype == BFLOAT16) _mm256_mask_storeu_epi16((uint16_t *)into + at, mask, to_bfloat16(x));
    else _mm256_mask_storeu_epi16((uint16_t *)into + at, mask, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

INLINE __mmask16 mask_of(int64_t left) { return left >= 16 ? 0xffff : left <= 0 ? 0 : (1u << left) - 1; }

/* A row of activations as integers. What is no number makes its group's step one, too. */
INLINE void quantize_as(const Weight *w, const void *x, int64_t at, int dtype, Row row) {
    const int64_t group = w->group;
    for (int64_t g = 0, k = 0; k < w->padded; g++, k += group) {
        __m512i largest = _mm512_setzero_si512();
        for (int64_t i = k; i < k + group; i += 16) {
            __m512 v = load_floats(x, at + i, dtype, mask_of(w->inputs - i));
            largest = _mm512_max_epu32(largest, _mm512_castps_si512(_mm512_abs_ps(v)));
        }
        uint32_t bits = _mm512_reduce_max_epu32(largest);
        int finite = bits < 0x7f800000;
        float peak;
        memcpy(&peak, &bits, 4);
        if (!(peak > 1e-30f)) peak = 1e-30f;
        /* 126 * 256: what is rounded up must not leave the 16 bits. */
        const __m512 inverse = _mm512_set1_ps(finite ? 126 * 256 / peak : 0);
        __m512i sum = _mm512_setzero_si512();
        for (int64_t i = k; i < k + group; i += 16) {
            __mmask16 mask = finite ? mask_of(w->inputs - i) : 0;
            __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(load_floats(x, at + i, dtype, mask), inverse));
            __m512i high = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
            sum = _mm512_add_epi32(sum, q);
            _mm_storeu_si128((__m128i *)(row.high + i), _mm512_cvtepi32_epi8(high));
            _mm_storeu_si128((__m128i *)(row.low + i), _mm512_cvtepi32_epi8(q)); /* its lower 8 bits */
        }
        row.sum[g] = _mm512_reduce_add_epi32(sum);
        row.step[g] = finite ? peak / (126 * 256) : NAN;
        row.moment[g] = row.step[g] * row.sum[g];
        row.sixteenth[g] = row.sum[g] * 0.0625f;
    }
}

static void quantize(const Weight *w, const void *x, int64_t at, int dtype, Row row) {
    if (dtype == FLOAT32) quantize_as(w, x, at, FLOAT32, row);
    else if (dtype == BFLOAT16) quantize_as(w, x, at, BFLOAT16, row);
    else quantize_as(w, x, at, FLOAT16, row);
}

/* Codes of 16 outputs by so many inputs: 32 of them in 8 vectors. */
INLINE void unpack(int64_t kind, const uint8_t *codes, __m512i into[8]) {
    const __m512i nibble = _mm512_set1_epi8(15), pair = _mm512_set1_epi8(0x30);
    if (kind == INT8) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) into[i] = _mm512_loadu_si512(codes + 64 * i);
    } else if (kind == INT6) {
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            __m512i one = _mm512_loadu_si512(codes + 192 * i), two = _mm512_loadu_si512(codes + 192 * i + 64);
            __m512i upper = _mm512_loadu_si512(codes + 192 * i + 128);
            /* 0xea: (a & b) | c */
            into[4 * i] = _mm512_ternarylogic_epi32(
                _mm512_slli_epi16(upper, 4), pair, _mm512_and_si512(one, nibble), 0xea);
            into[4 * i + 1] = _mm512_ternarylogic_epi32(
                _mm512_slli_epi16(upper, 2), pair, _mm512_and_si512(_mm512_srli_epi16(one, 4), nibble), 0xea);
            into[4 * i + 2] = _mm512_ternarylogic_epi32(upper, pair, _mm512_and_si512(two, nibble), 0xea);
            into[4 * i + 3] = _mm512_ternarylogic_epi32(
                _mm512_srli_epi16(upper, 2), pair, _mm512_and_si512(_mm512_srli_epi16(two, 4), nibble), 0xea);
        }
    } else {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            __m512i pairs = _mm512_loadu_si512(codes + 64 * i);
            into[2 * i] = _mm512_and_si512(pairs, nibble);
            into[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16(pairs, 4), nibble);
        }
    }
}

INLINE __m512 small_scale(const uint8_t *from, const float *factors) {
    __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from)), 18);
    return _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_loadu_si512(factors)));
}

INLINE __m512 sixteenths(const uint8_t *from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}

INLINE __m512i four(const int8_t *from) { /* in every lane */
    int32_t word;
    memcpy(&word, from, 4);
    return _mm512_set1_epi32(word);
}

INLINE void tile_of(const Weight *w, int64_t kind, int count, int64_t t, const Row *rows, __m512 *result) {
    const uint8_t *codes = w->codes + t * bytes_of(kind, w->padded);
    const uint8_t *scales = w->scales + t * (w->padded / w->group) * scale_bytes(kind);
    const float *factors = w->factors + TILE * t;
    const int64_t group = w->group, step = bytes_of(kind, 32);
    __m512 total[ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < count; r++) total[r] = _mm512_setzero_ps();
    for (int64_t g = 0, k = 0; k < w->padded; g++) {
        __m512i high[ROWS], low[ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < count; r++) {
            high[r] = _mm512_setzero_si512();
            low[r] = _mm512_set1_epi32(-zero_of(kind) * rows[r].sum[g]);
        }
        for (int64_t end = k + group; k < end; k += 32, codes += step) {
            __m512i c[8];
            for (int i = 0; i < step; i += 64) _mm_prefetch((const char *)codes + AHEAD + i, _MM_HINT_T0);
            unpack(kind, codes, c);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
#pragma GCC unroll 4
                for (int r = 0; r < count; r++) {
                    high[r] = _mm512_dpbusd_epi32(high[r], c[i], four(rows[r].high + k + 4 * i));
                    low[r] = _mm512_dpbusd_epi32(low[r], c[i], four(rows[r].low + k + 4 * i));
                }
            }
        }
        __m512 scale = _mm512_setzero_ps(), offset = scale;
        if (kind == INT4) {
            scale = load_floats(scales, 0, BFLOAT16, 0xffff);
            offset = load_floats(scales, 16, BFLOAT16, 0xffff);
        } else if (kind != INT8) {
            scale = small_scale(scales, factors);
            if (kind == INT4_SMALL) offset = sixteenths(scales + 16);
        }
        scales += scale_bytes(kind);
#pragma GCC unroll 4
        for (int r = 0; r < count; r++) {
            __m512 dot = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[r], 8), low[r]));
            const __m512 unit = _mm512_set1_ps(rows[r].step[g]), part = _mm512_set1_ps(rows[r].sixteenth[g]);
            if (kind == INT4_SMALL) dot = _mm512_fmadd_ps(part, offset, dot);
            if (kind == INT4) total[r] = _mm512_fmadd_ps(_mm512_set1_ps(rows[r].moment[g]), offset, total[r]);
            total[r] = _mm512_fmadd_ps(dot, kind == INT8 ? unit : _mm512_mul_ps(unit, scale), total[r]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < count; r++)
        result[r] = kind == INT8 ? _mm512_mul_ps(total[r], _mm512_loadu_ps(factors)) : total[r];
}

INLINE void tile_kind(const Weight *w, int64_t kind, int count, int64_t t, const Row *rows, __m512 *result) {
    if (count == 4) tile_of(w, kind, 4, t, rows, result);
    else if (count == 3) tile_of(w, kind, 3, t, rows, result);
    else if (count == 2) tile_of(w, kind, 2, t, rows, result);
    else tile_of(w, kind, 1, t, rows, result);
}

#define TILE_OF(NAME, KIND) \
    static void NAME(const Weight *w, int count, int64_t t, const Row *rows, __m512 *result) { \
        tile_kind(w, KIND, count, t, rows, result); \
    }
TILE_OF(tile_int8, INT8)
TILE_OF(tile_int4, INT4)
TILE_OF(tile_int4_small, INT4_SMALL)
TILE_OF(tile_int6, INT6)
static void (*const TILES[])(const Weight *, int, int64_t, const Row *, __m512 *) = {
    tile_int8, tile_int4, tile_int4_small, tile_int6,
};

/* into [rows, outputs] = x [rows, inputs], whose rows lie stride elements apart. 0, or -1 if there is no memory. */
int product(const Weight *w, const void *x, int64_t stride, int64_t count, void *into, int dtype, int threads) {
    const int64_t groups = w->padded / w->group, tiles = (w->outputs + TILE - 1) / TILE;
    const int64_t bytes = 2 * w->padded + 16 * groups;
    int8_t *memory = malloc(count * (bytes + sizeof(Row)));
    if (memory == NULL) return -1;
    Row *rows = (Row *)memory;
    int8_t *at = memory + count * sizeof(Row);
    for (int64_t r = 0; r < count; r++) {
        float *floats = (float *)at;
        int8_t *planes = (int8_t *)(floats + 4 * groups);
        rows[r] = (Row){
            .high = planes, .low = planes + w->padded, .sum = (int32_t *)floats,
            .step = floats + groups, .moment = floats + 2 * groups, .sixteenth = floats + 3 * groups,
        };
        at += bytes;
    }
    if (count < 4)
        for (int64_t r = 0; r < count; r++) quantize(w, x, r * stride, dtype, rows[r]);
#pragma omp parallel num_threads(threads)
    {
        if (count >= 4) {
#pragma omp for schedule(static)
            for (int64_t r = 0; r < count; r++) quantize(w, x, r * stride, dtype, rows[r]);
        }
#pragma omp for schedule(static) nowait
        for (int64_t t = 0; t < tiles; t++) {
            const __mmask16 mask = mask_of(w->outputs - TILE * t);
            const __m512 bias = w->bias ? _mm512_maskz_loadu_ps(mask, w->bias + TILE * t) : _mm512_setzero_ps();
            for (int64_t r = 0; r < count; r += ROWS) {
                __m512 result[ROWS];
                const int some = count - r < ROWS ? count - r : ROWS;
                TILES[w->kind](w, some, t, rows + r, result);
                for (int i = 0; i < some; i++)
                    store_floats(into, (r + i) * w->outputs + TILE * t, dtype, mask, _mm512_add_ps(result[i], bias));
            }
        }
    }
    free(memory);
    return 0;
}

/* Tiles first to last as bfloat16: into [inputs, 16 * (last - first)]. */
INLINE void widen_tile(const Weight *w, int64_t kind, int64_t t, uint16_t *into, int64_t width) {
    const uint8_t *codes = w->codes + t * bytes_of(kind, w->padded);
    const uint8_t *scales = w->scales + t * (w->padded / w->group) * scale_bytes(kind);
    const float *factors = w->factors + TILE * t;
    const __m512i zero = _mm512_set1_epi32(zero_of(kind)), byte = _mm512_set1_epi32(255);
    __m512 scale = _mm512_setzero_ps(), offset = scale;
    for (int64_t k = 0; k < w->padded; k += 32, codes += bytes_of(kind, 32)) {
        if (kind == INT8) {
            scale = _mm512_loadu_ps(factors);
        } else if (k % w->group == 0) {
            if (kind == INT4) {
                scale = load_floats(scales, 0, BFLOAT16, 0xffff);
                offset = load_floats(scales, 16, BFLOAT16, 0xffff);
            } else {
                scale = small_scale(scales, factors);
                if (kind == INT4_SMALL)
                    offset = _mm512_mul_ps(_mm512_mul_ps(sixteenths(scales + 16), _mm512_set1_ps(0.0625f)), scale);
            }
            scales += scale_bytes(kind);
        }
        __m512i c[8];
        unpack(kind, codes, c);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
#pragma GCC unroll 4
            for (int b = 0; b < 4; b++) {
                const int64_t input = k + 4 * i + b;
                if (input >= w->inputs) return;
                __m512i code = b == 3 ? _mm512_srli_epi32(c[i], 24)
                                      : _mm512_and_si512(_mm512_srli_epi32(c[i], 8 * b), byte);
                __m512 value = _mm512_cvtepi32_ps(_mm512_sub_epi32(code, zero));
                _mm256_storeu_si256(
                    (__m256i *)(into + input * width), to_bfloat16(_mm512_fmadd_ps(value, scale, offset)));
            }
        }
    }
}

void widen(const Weight *w, int64_t first, int64_t last, uint16_t *into, int threads) {
    const int64_t width = TILE * (last - first);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t t = first; t < last; t++) {
        uint16_t *column = into + TILE * (t - first);
        if (w->kind == INT8) widen_tile(w, INT8, t, column, width);
        else if (w->kind == INT4) widen_tile(w, INT4, t, column, width);
        else if (w->kind == INT4_SMALL) widen_tile(w, INT4_SMALL, t, column, width);
        else widen_tile(w, INT6, t, column, width);
    }
}
