/* Products of a few rows with weights of 4, 6 or 8 bits, and such weights widened to bfloat16.

   Weights lie in tiles of 32 outputs, as two halves that take turns. A vector of 64 bytes holds 16 outputs (lanes) by 4
   inputs (bytes of a lane), or in nibbles by 8: the low ones are the first four. A thread reads its tiles from end to end.

   Activations are written in groups as step * (256 * high + low) with two rows of 8-bit integers: 15 bits and a sign.
   Their products with the codes are sums of integers, so exact; groups are added up in order, in float32. A row's result
   is therefore the same to the last bit whatever other rows share the product. W8A8 rounds a row to 8 bits with one step
   for all of it: half the products, and more is lost. */

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__AVX512VNNI__) || !defined(__AVX512BW__) || !defined(__AVX512VL__)
#error "the processor has no AVX-512 VNNI"
#endif

#define INLINE static inline __attribute__((always_inline))
#define ROWS 7 /* computed at a time, at most, with codes that are unpacked once: their sums fill 28 of 32 registers */
#define SHARED 4 /* rows from which on threads share writing their integers */
#define HALF 16
#define TILE 32 /* outputs that share what is loaded of the activations */
#define AHEAD 8192 /* bytes: beyond the page, where the processor does not look by itself */
#define CACHED (1 << 18) /* inputs of all rows together whose integers a core's cache holds */

/* INT8: a scale an output. INT4: a scale and an offset a group, in bfloat16. INT4_SMALL: a scale in 8 bits, and an offset
   in sixteenths of it. INT6: a scale in 8 bits. Those of 8 bits are 3 of an exponent and 5 of a mantissa. W8A8: as INT8,
   in one group of all inputs. */
enum { INT8, INT4, INT4_SMALL, INT6, W8A8 };
enum { FLOAT32, BFLOAT16, FLOAT16 };

typedef struct {
    const uint8_t *codes; /* by tile, then inputs */
    const uint8_t *scales; /* by tile, then group: 32 scales, 32 offsets */
    const float *factors; /* of an output; for a scale of 8 bits, a power of two: what all of them 0 means */
    const float *bias; /* or NULL */
    int64_t outputs, inputs, padded; /* padded: inputs, filled up to whole groups */
    int64_t group, kind;
} Weight;

/* A block of up to ROWS rows of activations, whose values lie side by side. */
typedef struct {
    int32_t *words; /* of four inputs: by fours, then row, then high and low; of W8A8 there are the low ones alone */
    int32_t *groups; /* by group, then field (below), then row; all but START are floats */
} Block;

/* START: the sum of a group's integers times the code that means zero, less. MOMENT: STEP times that sum. */
enum { START, STEP, MOMENT, SIXTEENTH, FIELDS };

INLINE int is_wide(int64_t kind) { return kind == INT8 || kind == W8A8; }

/* The fewer, the more registers codes need that are unpacked. */
INLINE int rows_of(int64_t kind) { return is_wide(kind) ? ROWS : kind == INT6 ? 5 : 6; }

INLINE int planes_of(int64_t kind) { return kind == W8A8 ? 1 : 2; }

INLINE int64_t bytes_of(int64_t kind, int64_t inputs) { /* of codes, of a tile */
    return is_wide(kind) ? inputs * TILE : kind == INT6 ? inputs * TILE / 4 * 3 : inputs * TILE / 2;
}

INLINE int64_t scale_bytes(int64_t kind) { return is_wide(kind) ? 0 : kind == INT6 ? TILE : kind == INT4 ? 4 * TILE : 2 * TILE; }

INLINE int32_t zero_of(int64_t kind) { return is_wide(kind) ? 128 : kind == INT6 ? 32 : 8; }

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

/* Row r of a block of so many, from x. What is no number makes its group's step one, too. */
INLINE void quantize_as(const Weight *w, const void *x, int64_t at, int dtype, Block block, int64_t count, int64_t r) {
    const int64_t group = w->group;
    const int planes = planes_of(w->kind);
    /* 126 * 256: what is rounded up must not leave the 16 bits. */
    const float most = planes == 1 ? 127 : 126 * 256;
    int32_t *words = block.words + planes * r;
    int32_t *fields = block.groups + r;
    for (int64_t k = 0; k < w->padded; k += group, fields += FIELDS * count) {
        __m512i largest = _mm512_setzero_si512();
        for (int64_t i = k; i < k + group; i += 16) {
            __m512 v = load_floats(x, at + i, dtype, mask_of(w->inputs - i));
            largest = _mm512_max_epu32(largest, _mm512_castps_si512(_mm512_abs_ps(v)));
        }
        const uint32_t bits = _mm512_reduce_max_epu32(largest);
        const int finite = bits < 0x7f800000;
        float peak;
        memcpy(&peak, &bits, 4);
        if (!(peak > 1e-30f)) peak = 1e-30f;
        const __m512 inverse = _mm512_set1_ps(finite ? most / peak : 0);
        __m512i sums = _mm512_setzero_si512();
        for (int64_t i = k; i < k + group; i += 16) {
            const __mmask16 mask = finite ? mask_of(w->inputs - i) : 0;
            __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(load_floats(x, at + i, dtype, mask), inverse));
            sums = _mm512_add_epi32(sums, q);
            __m128i low = _mm512_cvtepi32_epi8(q); /* its lower 8 bits */
            if (planes == 1) {
                words[0] = _mm_extract_epi32(low, 0);
                words[count] = _mm_extract_epi32(low, 1);
                words[2 * count] = _mm_extract_epi32(low, 2);
                words[3 * count] = _mm_extract_epi32(low, 3);
                words += 4 * count;
                continue;
            }
            __m128i high = _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8));
            __m128i first = _mm_unpacklo_epi32(high, low), second = _mm_unpackhi_epi32(high, low);
            int64_t *pairs = (int64_t *)words;
            pairs[0] = _mm_cvtsi128_si64(first);
            pairs[count] = _mm_extract_epi64(first, 1);
            pairs[2 * count] = _mm_cvtsi128_si64(second);
            pairs[3 * count] = _mm_extract_epi64(second, 1);
            words += 8 * count;
        }
        const int32_t sum = _mm512_reduce_add_epi32(sums);
        const float step = finite ? peak / most : NAN;
        const float floats[] = {step, step * sum, sum * 0.0625f};
        fields[START * count] = -zero_of(w->kind) * sum;
        for (int i = 0; i < 3; i++) memcpy(fields + (STEP + i) * count, floats + i, 4);
    }
}

static void quantize(const Weight *w, const void *x, int64_t at, int dtype, Block block, int64_t count, int64_t r) {
    if (dtype == FLOAT32) quantize_as(w, x, at, FLOAT32, block, count, r);
    else if (dtype == BFLOAT16) quantize_as(w, x, at, BFLOAT16, block, count, r);
    else quantize_as(w, x, at, FLOAT16, block, count, r);
}

/* Inputs whose codes are unpacked together, four in a vector. */
INLINE int inputs_of(int64_t kind) { return is_wide(kind) ? 4 : kind == INT6 ? 16 : 8; }

INLINE void unpack(int64_t kind, const uint8_t *codes, __m512i *into) {
    const __m512i nibble = _mm512_set1_epi8(15), pair = _mm512_set1_epi8(0x30);
    __m512i one = _mm512_loadu_si512(codes);
    if (is_wide(kind)) {
        into[0] = one;
        return;
    }
    into[0] = _mm512_and_si512(one, nibble);
    into[1] = _mm512_and_si512(_mm512_srli_epi16(one, 4), nibble);
    if (kind != INT6) return;
    __m512i two = _mm512_loadu_si512(codes + 4 * TILE), upper = _mm512_loadu_si512(codes + 8 * TILE);
    into[2] = _mm512_and_si512(two, nibble);
    into[3] = _mm512_and_si512(_mm512_srli_epi16(two, 4), nibble);
    /* 0xea: (a & b) | c */
    into[0] = _mm512_ternarylogic_epi32(_mm512_slli_epi16(upper, 4), pair, into[0], 0xea);
    into[1] = _mm512_ternarylogic_epi32(_mm512_slli_epi16(upper, 2), pair, into[1], 0xea);
    into[2] = _mm512_ternarylogic_epi32(upper, pair, into[2], 0xea);
    into[3] = _mm512_ternarylogic_epi32(_mm512_srli_epi16(upper, 2), pair, into[3], 0xea);
}

INLINE __m512 small_scale(const uint8_t *from, const float *factors) {
    __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from)), 18);
    return _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_loadu_si512(factors)));
}

INLINE __m512 sixteenths(const uint8_t *from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}

/* Of a half of a tile, in a group. */
INLINE void scales_of(int64_t kind, const uint8_t *from, const float *factors, int half, __m512 *scale, __m512 *offset) {
    *offset = _mm512_setzero_ps();
    if (is_wide(kind)) {
        *scale = _mm512_loadu_ps(factors + HALF * half);
    } else if (kind == INT4) {
        *scale = load_floats(from, HALF * half, BFLOAT16, 0xffff);
        *offset = load_floats(from, TILE + HALF * half, BFLOAT16, 0xffff);
    } else {
        *scale = small_scale(from + HALF * half, factors + HALF * half);
        if (kind == INT4_SMALL) *offset = sixteenths(from + TILE + HALF * half);
    }
}

/* As _mm512_dpbusd_epi32, of which compilers make copies of the sums, and then too few registers are left. */
INLINE void add_products(__m512i *sums, __m512i codes, __m512i word) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sums) : "v"(codes), "v"(word));
}

INLINE __m512 every(const int32_t *from) { return _mm512_castsi512_ps(_mm512_set1_epi32(*from)); }

/* What is brought into the cache meanwhile: what a first block of rows reads soon. Where weights are so wide that memory
   is slower than two blocks' sums, half of the next tile by each of the two. */
typedef struct {
    const uint8_t *from;
    int64_t share; /* in how many bytes read one is fetched; 0: none is */
} Fetch;

INLINE Fetch fetch_of(const Weight *w, int64_t t, int64_t block, int64_t blocks) {
    const int64_t tile = bytes_of(w->kind, w->padded);
    const uint8_t *codes = w->codes + t * tile;
    if (blocks == 1 || w->kind == INT4 || w->kind == INT4_SMALL) return (Fetch){codes + AHEAD, block == 0};
    return (Fetch){codes + tile + block * tile / 2, block < 2 ? 2 : 0};
}

INLINE void tile_of(const Weight *w, int64_t kind, int count, int64_t t, Block block, Fetch fetch, __m512 (*total)[2]) {
    const uint8_t *codes = w->codes + t * bytes_of(kind, w->padded);
    const uint8_t *scales = w->scales + t * (w->padded / w->group) * scale_bytes(kind);
    const float *factors = w->factors + TILE * t;
    const int64_t group = w->group, step = bytes_of(kind, inputs_of(kind));
    const int planes = planes_of(kind);
    const int64_t step_words = planes * count * inputs_of(kind) / 4;
    const int32_t *words = block.words, *fields = block.groups;
    const int64_t fetched = fetch.share ? step / fetch.share : 0;
#pragma GCC unroll 7
    for (int r = 0; r < count; r++) total[r][0] = total[r][1] = _mm512_setzero_ps();
    for (int64_t k = 0; k < w->padded;) {
        __m512i high[ROWS][2], low[ROWS][2];
#pragma GCC unroll 7
        for (int r = 0; r < count; r++) {
            high[r][0] = high[r][1] = _mm512_setzero_si512();
            low[r][0] = low[r][1] = _mm512_set1_epi32(fields[START * count + r]);
        }
        for (int64_t end = k + group; k < end; k += inputs_of(kind), codes += step, words += step_words) {
            __m512i c[2][4];
            unpack(kind, codes, c[0]);
            unpack(kind, codes + 64, c[1]);
            for (int64_t i = 0; i < fetched; i += 64) _mm_prefetch((const char *)fetch.from + i, _MM_HINT_T0);
            fetch.from += fetched;
#pragma GCC unroll 4
            for (int i = 0; i < inputs_of(kind) / 4; i++) {
#pragma GCC unroll 7
                for (int r = 0; r < count; r++) {
                    const int32_t *word = words + planes * (count * i + r);
                    const __m512i upper = _mm512_set1_epi32(word[0]), lower = _mm512_set1_epi32(word[planes - 1]);
#pragma GCC unroll 2
                    for (int h = 0; h < 2; h++) {
                        if (planes == 2) add_products(&high[r][h], c[h][i], upper);
                        add_products(&low[r][h], c[h][i], lower);
                    }
                }
            }
        }
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            __m512 scale, offset;
            scales_of(kind, scales, factors, h, &scale, &offset);
#pragma GCC unroll 7
            for (int r = 0; r < count; r++) {
                __m512 dot = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[r][h], 8), low[r][h]));
                const __m512 unit = every(fields + STEP * count + r);
                if (kind == INT4_SMALL) dot = _mm512_fmadd_ps(every(fields + SIXTEENTH * count + r), offset, dot);
                if (kind == INT4)
                    total[r][h] = _mm512_fmadd_ps(every(fields + MOMENT * count + r), offset, total[r][h]);
                total[r][h] =
                    _mm512_fmadd_ps(dot, is_wide(kind) ? unit : _mm512_mul_ps(unit, scale), total[r][h]);
            }
        }
        scales += scale_bytes(kind);
        fields += FIELDS * count;
        /* Totals wait in memory, as the registers are for the next group's sums. */
        __asm__ volatile("" : : "r"(total) : "memory");
    }
}

INLINE void tile_kind(const Weight *w, int64_t kind, int count, int64_t t, Block block, Fetch fetch, __m512 (*result)[2]) {
    if (count == 7) tile_of(w, kind, 7, t, block, fetch, result);
    else if (count == 6) tile_of(w, kind, 6, t, block, fetch, result);
    else if (count == 5) tile_of(w, kind, 5, t, block, fetch, result);
    else if (count == 4) tile_of(w, kind, 4, t, block, fetch, result);
    else if (count == 3) tile_of(w, kind, 3, t, block, fetch, result);
    else if (count == 2) tile_of(w, kind, 2, t, block, fetch, result);
    else tile_of(w, kind, 1, t, block, fetch, result);
}

#define TILE_OF(NAME, KIND) \
    static void NAME(const Weight *w, int count, int64_t t, Block block, Fetch fetch, __m512 (*result)[2]) { \
        tile_kind(w, KIND, count, t, block, fetch, result); \
    }
TILE_OF(tile_int8, INT8)
TILE_OF(tile_int4, INT4)
TILE_OF(tile_int4_small, INT4_SMALL)
TILE_OF(tile_int6, INT6)
TILE_OF(tile_w8a8, W8A8)
static void (*const TILES[])(const Weight *, int, int64_t, Block, Fetch, __m512 (*)[2]) = {
    tile_int8, tile_int4, tile_int4_small, tile_int6, tile_w8a8,
};

/* A row's outputs of a tile. */
INLINE void store(const Weight *w, int64_t t, const __m512 *result, void *into, int64_t at, int dtype) {
    for (int h = 0; h < 2; h++) {
        const int64_t first = TILE * t + HALF * h;
        const __mmask16 mask = mask_of(w->outputs - first);
        const __m512 factor = is_wide(w->kind) ? _mm512_loadu_ps(w->factors + first) : _mm512_set1_ps(1);
        const __m512 bias = w->bias ? _mm512_maskz_loadu_ps(mask, w->bias + first) : _mm512_setzero_ps();
        store_floats(into, at + first, dtype, mask, _mm512_fmadd_ps(result[h], factor, bias));
    }
}

typedef struct {
    const Weight *weight;
    const void *x; /* [count, inputs], rows lie stride elements apart */
    void *into; /* [count, outputs] */
    int64_t stride, count, dtype;
} Product;

/* 0, or -1 if there is no memory. */
int product(const Product *job, int threads) {
    const Weight *w = job->weight;
    const void *x = job->x;
    void *into = job->into;
    const int64_t stride = job->stride, count = job->count;
    const int dtype = job->dtype;
    if (count == 0) return 0;
    const int64_t groups = w->padded / w->group, tiles = (w->outputs + TILE - 1) / TILE;
    const int64_t words = w->padded / 2, size = words + FIELDS * groups; /* of a row, in words */
    const int64_t blocks = (count + rows_of(w->kind) - 1) / rows_of(w->kind), per = (count + blocks - 1) / blocks;
    int32_t *memory = malloc(4 * count * size);
    if (memory == NULL) return -1;
#define BLOCK_OF(r) (Block){memory + (r) * size, memory + (r) * size + words * COUNT_OF(r)}
#define COUNT_OF(r) (count - (r) < per ? count - (r) : per)
#define QUANTIZE(r) quantize(w, x, (r) * stride, dtype, BLOCK_OF((r) / per * per), COUNT_OF((r) / per * per), (r) % per)
    if (count < SHARED)
        for (int64_t r = 0; r < count; r++) QUANTIZE(r);
#pragma omp parallel num_threads(threads)
    {
        if (count >= SHARED) {
#pragma omp for schedule(static)
            for (int64_t r = 0; r < count; r++) QUANTIZE(r);
        }
        /* As many rows at a time as stay in the cache. */
        const int64_t most = (CACHED / w->padded / per + 1) * per;
        for (int64_t from = 0; from < count; from += most) {
            const int64_t to = from + most < count ? from + most : count;
#pragma omp for schedule(static) nowait
            for (int64_t t = 0; t < tiles; t++) {
                for (int64_t r = from; r < to; r += per) {
                    __m512 result[ROWS][2];
                    const Fetch fetch = fetch_of(w, t, (r - from) / per, (to - from + per - 1) / per);
                    TILES[w->kind](w, COUNT_OF(r), t, BLOCK_OF(r), fetch, result);
                    for (int i = 0; i < COUNT_OF(r); i++)
                        store(w, t, result[i], into, (r + i) * w->outputs, dtype);
                }
            }
        }
    }
    free(memory);
    return 0;
}

INLINE void widen_tile(const Weight *w, int64_t kind, int64_t t, uint16_t *into, int64_t width) {
    const uint8_t *codes = w->codes + t * bytes_of(kind, w->padded);
    const uint8_t *scales = w->scales + t * (w->padded / w->group) * scale_bytes(kind);
    const __m512i zero = _mm512_set1_epi32(zero_of(kind)), byte = _mm512_set1_epi32(255);
    for (int64_t k = 0; k < w->padded; scales += scale_bytes(kind)) {
        __m512 scale[2], offset[2];
        for (int h = 0; h < 2; h++) {
            scales_of(kind, scales, w->factors + TILE * t, h, scale + h, offset + h);
            if (kind == INT4_SMALL) offset[h] = _mm512_mul_ps(_mm512_mul_ps(offset[h], _mm512_set1_ps(0.0625f)), scale[h]);
        }
        for (int64_t end = k + w->group; k < end; k += inputs_of(kind), codes += bytes_of(kind, inputs_of(kind))) {
            __m512i c[2][4];
            unpack(kind, codes, c[0]);
            unpack(kind, codes + 64, c[1]);
#pragma GCC unroll 4
            for (int i = 0; i < inputs_of(kind) / 4; i++) {
#pragma GCC unroll 4
                for (int b = 0; b < 4; b++) {
                    const int64_t input = k + 4 * i + b;
                    if (input >= w->inputs) return;
                    for (int h = 0; h < 2; h++) {
                        __m512i code = _mm512_and_si512(_mm512_srli_epi32(c[h][i], 8 * b), byte);
                        __m512 value = _mm512_cvtepi32_ps(_mm512_sub_epi32(code, zero));
                        value = _mm512_fmadd_ps(value, scale[h], offset[h]);
                        _mm256_storeu_si256((__m256i *)(into + input * width + HALF * h), to_bfloat16(value));
                    }
                }
            }
        }
    }
}

/* Tiles first to last as bfloat16: into [inputs, 32 * (last - first)]. */
void widen(const Weight *w, int64_t first, int64_t last, uint16_t *into, int threads) {
    const int64_t width = TILE * (last - first);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t t = first; t < last; t++) {
        uint16_t *column = into + TILE * (t - first);
        if (is_wide(w->kind)) widen_tile(w, INT8, t, column, width);
        else if (w->kind == INT4) widen_tile(w, INT4, t, column, width);
        else if (w->kind == INT4_SMALL) widen_tile(w, INT4_SMALL, t, column, width);
        else widen_tile(w, INT6, t, column, width);
    }
}
