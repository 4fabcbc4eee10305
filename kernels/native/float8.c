/* Products of rows with weights in 8-bit floats (e4m3), which are widened where they are multiplied.

       y[r, o] = sum over groups g of scale[o, g] * (sum over inputs i of g of x[r, i] * w[o, i]) + bias[o]

   in float32. A lane of a vector is an output, and its sum goes through the inputs first to last, whatever rows stand
   beside it: a row's result is the same to the bit in any product, and on any number of threads. Weights lie in tiles of
   WIDTH outputs, in each by input, then output. */

#include "vectors.h"

enum {
    WIDTH = LANES * VECTORS,
    ROWS = 96,            /* that go through a tile one band after the other, while its weights stay near */
    AHEAD = 8192,         /* bytes of weights: beyond the page, where the processor does not look by itself */
    LEAST = 256 * 1024,   /* numbers multiplied: fewer are not worth a second thread */
};

typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1)));

typedef struct {
    const uint8_t *codes;  /* by tile, input, output */
    const float *scales;   /* by tile, group, output */
    const float *bias;     /* or NULL */
    int64_t outputs, inputs, group; /* inputs: filled up to whole groups, of so many each */
} Weight;

int width(void) { return WIDTH; }

/* Without arithmetic on float32's subnormal numbers, which is slow. */
INLINE vec widened(const uint8_t *from) {
#if defined(__AVX512F__)
    /* Exponent and mantissa, where float16 has them, are the number times 2^-8: 7 - 15. */
    const __m256i codes = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)from));
    const __m256i number = _mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(0x3f80));
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi16(codes, 8), _mm256_set1_epi16((short)0x8000));
    return (vec)_mm512_cvtph_ps(_mm256_or_si256(number, sign)) * 0x1p8f;
#else
    bytes codes;
    memcpy(&codes, from, sizeof codes);
    const bits word = __builtin_convertvector(codes, bits), number = (word & 0x7f) << 20;
    /* From float32's exponent, 127 - 7 more. Subnormal ones have no leading one: (1 + m / 8) / 128 for m / 8 / 64. */
    const vec found = (vec)(number + (120u << 23));
    const vec more = (vec)((bits)(found - 0x1p-6f) & (bits)(number < (1u << 23)));
    return (vec)((bits)(found + more) | (word & 0x80) << 24);
#endif
}

/* sums [rows, WIDTH] of so many rows of x, which lie stride apart, with the first vectors of a tile. */
INLINE void band_of(const Weight *w, const int rows, const int vectors, int64_t tile, const float *x, int64_t stride,
                    float *sums) {
    const uint8_t *codes = w->codes + tile * w->inputs * WIDTH;
    const float *scales = w->scales + tile * (w->inputs / w->group) * WIDTH;
    vec total[BAND][VECTORS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) total[r][v] = (vec){};
    for (int64_t k = 0; k < w->inputs; scales += WIDTH) {
        vec sum[BAND][VECTORS];
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = (vec){};
        for (const int64_t end = k + w->group; k < end; k++, codes += WIDTH) {
            vec weight[VECTORS];
            __builtin_prefetch(codes + AHEAD);
            UNROLL for (int v = 0; v < vectors; v++) weight[v] = widened(codes + v * LANES);
            UNROLL for (int r = 0; r < rows; r++) {
                const vec each = x[r * stride + k] - (vec){};
                UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = fused(weight[v], each, sum[r][v]);
            }
        }
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < vectors; v++)
                total[r][v] = fused(sum[r][v], load(scales + v * LANES), total[r][v]);
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) save(sums + r * WIDTH + v * LANES, total[r][v]);
}

/* Of a last tile with few outputs one vector is enough. */
static void band(const Weight *w, int64_t rows, int64_t outputs, int64_t tile, const float *x, int64_t stride,
                 float *sums) {
#define WHOLE(rows) band_of(w, rows, VECTORS, tile, x, stride, sums)
#define FEW(rows) band_of(w, rows, 1, tile, x, stride, sums)
    if (outputs > LANES) EACH_ROWS(WHOLE, rows)
    else EACH_ROWS(FEW, rows)
}

typedef struct {
    const Weight *weight;
    const float *x; /* [rows, inputs], rows lie stride apart */
    float *into;    /* [rows, outputs] */
    int64_t stride, rows;
} Product;

/* Returns 0. */
int product(const Product *job, int threads) {
    const Weight *w = job->weight;
    const int64_t stride = job->stride, rows = job->rows;
    const int64_t tiles = (w->outputs + WIDTH - 1) / WIDTH, pieces = (rows + ROWS - 1) / ROWS;
    if (rows * w->inputs * w->outputs < LEAST) threads = 1;
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t piece = 0; piece < pieces; piece++)
        for (int64_t tile = 0; tile < tiles; tile++) {
            const int64_t last = (piece + 1) * ROWS < rows ? (piece + 1) * ROWS : rows;
            const int64_t column = tile * WIDTH, left = w->outputs - column, count = left < WIDTH ? left : WIDTH;
            for (int64_t r = piece * ROWS; r < last; r += BAND) {
                float sums[BAND * WIDTH];
                const int64_t some = last - r < BAND ? last - r : BAND;
                band(w, some, left, tile, job->x + r * stride, stride, sums);
                for (int64_t i = 0; i < some; i++)
                    for (int64_t o = 0; o < count; o++)
                        job->into[(r + i) * w->outputs + column + o] =
                            sums[i * WIDTH + o] + (w->bias ? w->bias[column + o] : 0);
            }
        }
    return 0;
}

typedef struct {
    const Weight *weight;
    uint16_t *into; /* [inputs, WIDTH * (last - first)] */
    int64_t first, last; /* tiles */
} Plain;

INLINE uint16_t to_bfloat16(float x) {
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    return (word + 0x7fff + (word >> 16 & 1)) >> 16;
}

/* Tiles first to last - 1 in bfloat16, with an output a column, as libraries multiply. Returns 0. */
int plain(const Plain *job, int threads) {
    const Weight *w = job->weight;
    const int64_t columns = WIDTH * (job->last - job->first), groups = w->inputs / w->group;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t tile = job->first; tile < job->last; tile++)
        for (int64_t k = 0; k < w->inputs; k++) {
            const float *scales = w->scales + (tile * groups + k / w->group) * WIDTH;
            uint16_t *into = job->into + k * columns + (tile - job->first) * WIDTH;
            float row[WIDTH];
            UNROLL for (int v = 0; v < VECTORS; v++)
                save(row + v * LANES, widened(w->codes + (tile * w->inputs + k) * WIDTH + v * LANES) *
                                          load(scales + v * LANES));
            for (int64_t i = 0; i < WIDTH; i++) into[i] = to_bfloat16(row[i]);
        }
    return 0;
}
