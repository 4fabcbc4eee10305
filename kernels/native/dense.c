/* Products of rows with plain weights, float32 or bfloat16, in which every sum runs in one order.

       y[r, o] = sum over i = 0, 1, ... of x[r, i] * w[o, i], in float32, + bias[o]

   A lane of a vector is an output, and its sum goes through the inputs first to last, whatever rows stand beside it:
   a row's result is the same to the bit in any product, and on any number of threads.

   A word of four bytes is one input of float32, or two of bfloat16. Weights lie in tiles of WIDTH outputs, in each by
   word, then output. Written in vectors of the compiler's own, for processors of any kind. */

#include "vectors.h"

enum {
    WIDTH = LANES * VECTORS,
    ROWS = 96,   /* whose sums a core's nearest cache holds */
    AHEAD = 8192, /* bytes of weights: beyond the page, where the processor does not look by itself */
    DEPTH = 256, /* words, of which a tile's weights stay near while all those rows are multiplied with them */
    LEAST = 256 * 1024, /* words multiplied: fewer are not worth a second thread */
};
enum { FLOAT32, BFLOAT16 };

typedef struct {
    const char *words; /* by tile, word, output */
    const float *bias; /* or NULL */
    int64_t outputs, depth, kind; /* depth: words of a row */
} Weight;

int width(void) { return WIDTH; }

/* A word's products are added to each lane. */
INLINE vec add(int64_t kind, vec sum, bits weights, uint32_t word) {
    const bits x = word - (bits){};
    if (kind == FLOAT32) return fused((vec)weights, (vec)x, sum);
#ifdef __AVX512BF16__
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)x);
#else
    sum = fused((vec)(weights << 16), (vec)(x << 16), sum);
    return fused((vec)(weights & 0xffff0000), (vec)(x & 0xffff0000), sum);
#endif
}

/* sums [rows, WIDTH] += words 0 .. depth of so many rows of x, which lie stride words apart, times the first vectors of
   the tile's. */
INLINE void band_of(int64_t kind, const int rows, const int vectors, const char *x, int64_t stride,
                    const char *weights, int64_t depth, float *sums) {
    vec sum[BAND][VECTORS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = load(sums + r * WIDTH + v * LANES);
    for (int64_t k = 0; k < depth; k++) {
        bits weight[VECTORS];
        UNROLL for (int v = 0; v < vectors; v++)
            __builtin_prefetch(weights + 4 * k * WIDTH + AHEAD + v * sizeof(bits));
        memcpy(weight, weights + 4 * k * WIDTH, vectors * sizeof *weight);
        UNROLL for (int r = 0; r < rows; r++) {
            uint32_t word;
            memcpy(&word, x + 4 * (r * stride + k), sizeof word);
            UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = add(kind, sum[r][v], weight[v], word);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) save(sums + r * WIDTH + v * LANES, sum[r][v]);
}

/* Of a last tile with few outputs one vector is enough. */
static void band(int64_t kind, int64_t rows, int64_t outputs, const char *x, int64_t stride, const char *weights,
                 int64_t depth, float *sums) {
#define CALL(kind, rows, vectors) band_of(kind, rows, vectors, x, stride, weights, depth, sums)
#define FLOATS(rows) CALL(FLOAT32, rows, VECTORS)
#define FEW_FLOATS(rows) CALL(FLOAT32, rows, 1)
#define HALVES(rows) CALL(BFLOAT16, rows, VECTORS)
#define FEW_HALVES(rows) CALL(BFLOAT16, rows, 1)
    if (kind == FLOAT32 && outputs > LANES) EACH_ROWS(FLOATS, rows)
    else if (kind == FLOAT32) EACH_ROWS(FEW_FLOATS, rows)
    else if (outputs > LANES) EACH_ROWS(HALVES, rows)
    else EACH_ROWS(FEW_HALVES, rows)
}

INLINE uint16_t to_bfloat16(float x) {
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    return x != x ? 0x7fc0 : (word + 0x7fff + (word >> 16 & 1)) >> 16;
}

/* A row's first `count` outputs of a tile. */
static void store(int64_t kind, const float *sums, const float *bias, int64_t count, char *into) {
    for (int64_t i = 0; i < count; i++) {
        const float y = bias ? sums[i] + bias[i] : sums[i];
        if (kind == FLOAT32) ((float *)into)[i] = y;
        else ((uint16_t *)into)[i] = to_bfloat16(y);
    }
}

typedef struct {
    const Weight *weight;
    const char *x; /* [rows, depth], rows lie stride words apart */
    char *into; /* [rows, outputs] */
    int64_t stride, rows;
} Product;

/* Returns 0. */
int product(const Product *job, int threads) {
    const Weight *w = job->weight;
    const char *x = job->x;
    char *into = job->into;
    const int64_t stride = job->stride, rows = job->rows;
    const int64_t tiles = (w->outputs + WIDTH - 1) / WIDTH, pieces = (rows + ROWS - 1) / ROWS;
    const int64_t size = w->kind == FLOAT32 ? 4 : 2;
    if (rows * w->depth * w->outputs < LEAST) threads = 1;
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t piece = 0; piece < pieces; piece++)
        for (int64_t tile = 0; tile < tiles; tile++) {
            const int64_t first = piece * ROWS, count = rows - first < ROWS ? rows - first : ROWS;
            const int64_t column = tile * WIDTH, left = w->outputs - column;
            float sums[ROWS * WIDTH];
            memset(sums, 0, count * WIDTH * sizeof *sums);
            /* As few bands as can be, of as many rows each: eight rows are twice four, not six and two. */
            const int64_t bands = (count + BAND - 1) / BAND, most = (count + bands - 1) / (bands + !bands);
            for (int64_t k = 0; k < w->depth; k += DEPTH) {
                const int64_t depth = w->depth - k < DEPTH ? w->depth - k : DEPTH;
                for (int64_t r = 0; r < count; r += most)
                    band(w->kind, count - r < most ? count - r : most, left, x + 4 * ((first + r) * stride + k), stride,
                         w->words + 4 * (tile * w->depth + k) * WIDTH, depth, sums + r * WIDTH);
            }
            for (int64_t r = 0; r < count; r++)
                store(w->kind, sums + r * WIDTH, w->bias ? w->bias + column : w->bias, left < WIDTH ? left : WIDTH,
                      into + size * ((first + r) * w->outputs + column));
        }
    return 0;
}

typedef struct {
    const Weight *weight; /* of bfloat16 */
    uint16_t *into; /* [2 * depth, WIDTH * (last - first)] */
    int64_t first, last; /* tiles */
} Plain;

/* Tiles first to last - 1 with an output a column, as libraries multiply. Returns 0. */
int plain(const Plain *job, int threads) {
    const Weight *w = job->weight;
    const int64_t columns = WIDTH * (job->last - job->first);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t tile = job->first; tile < job->last; tile++)
        for (int64_t k = 0; k < w->depth; k++) {
            uint32_t words[WIDTH];
            memcpy(words, w->words + 4 * (tile * w->depth + k) * WIDTH, sizeof words);
            uint16_t *even = job->into + 2 * k * columns + (tile - job->first) * WIDTH, *odd = even + columns;
            for (int64_t i = 0; i < WIDTH; i++) {
                even[i] = words[i];
                odd[i] = words[i] >> 16;
            }
        }
    return 0;
}
