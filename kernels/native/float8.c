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

/* Exponent and mantissa, where float32 has them, are the number times 2^-120: 7 - 127. */
INLINE vec widened(const uint8_t *from) {
    bytes codes;
    memcpy(&codes, from, sizeof codes);
    const bits word = __builtin_convertvector(codes, bits);
    return (vec)((word & 0x7f) << 20 | (word & 0x80) << 24) * 0x1p120f;
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
