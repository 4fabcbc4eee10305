/* Causal attention of new tokens over a paged cache of float32, whose blocks are read where they lie.
 *
 *     out[t, h] = softmax(cap(scale * q[t, h] . K[g, a:p + 1]^T)) V[g, a:p + 1],   g = h / (heads / kv_heads)
 *     a = max(0, p + 1 - window);   cap(x) = softcap * tanh(x / softcap), or x where softcap is 0
 *
 * With sinks softmax's denominator has one more term, exp(sinks[h]). Trees are as in attention.c.
 *
 * As attention.c: row r of a sequence is head r % group of its new token r / group, a task is up to ROWS of them over
 * one head's keys, which it goes through in tiles, keeping each row's highest score, its sum of weights, and its
 * weighted values. Sixteen tokens are a panel: keys lie [head_dim, 16], values [16, head_dim].
 *
 * A row's result is the same to the bit whatever stands beside it, in its task or batch, and on any number of threads:
 * tiles begin at fixed positions, every sum runs in one order, and what a row does not see adds zero. */

#include "vectors.h"

enum {
    PANEL = 16, /* tokens */
    TILE = 64,
    UNIT = VECTORS * LANES, /* tokens that are scored together */
    ROWS = 8 * BAND,
    WIDEST = 256,       /* head_dim */
    LEAST = 256 * 1024, /* numbers multiplied: fewer are not worth a second thread */
};
#define LOWEST -1e30f
#define LOG2E 1.44269504088896341f

typedef struct {
    const float *query; /* [tokens, heads, head_dim], a token every query_stride */
    float *out;         /* [tokens, heads, head_dim] */
    const float *keys, *values;
    const int64_t *tables; /* [sequences, width] */
    const int64_t *starts; /* [sequences + 1] */
    const int64_t *lengths;
    const float *sinks; /* [heads], or NULL */
    const uint64_t *branches; /* [tokens]: bits, or NULL */
    const int64_t *roots;     /* [sequences]: where trees begin, or NULL */
    int64_t query_stride, width, sequences, heads, kv_heads, head_dim, block_size;
    int64_t window; /* 0: none */
    float scale, softcap;
} Job;

typedef struct {
    int64_t sequence, head, row, rows;
    int64_t old;       /* tokens before the new ones */
    int64_t low, high; /* positions that any of its rows sees */
} Task;

INLINE vec every(float x) { return x - (vec){}; }

INLINE vec choose(bits where, vec a, vec b) { return (vec)(((bits)a & where) | ((bits)b & ~where)); }

/* Within 2 in the last place. Below -126 it is zero; NaN stays. */
INLINE vec exp2_(vec x) {
    const bits small = (bits)(x < -126.0f);
    x = choose(small, every(-126.0f), x);
    /* With 1.5 * 2^23 added there is no room for a fraction, and the integer stands in the last bits. */
    const vec shifted = x + 12582912.0f, rest = x - (shifted - 12582912.0f);
    vec y = every(1.5403530e-4f);
    y = y * rest + 1.3333558e-3f;
    y = y * rest + 9.6181291e-3f;
    y = y * rest + 5.5504109e-2f;
    y = y * rest + 2.4022651e-1f;
    y = y * rest + 6.9314718e-1f;
    y = y * rest + 1.0f;
    y = (vec)((bits)y + ((bits)shifted << 23));
    return (vec)((bits)y & ~small);
}

/* Near zero as a series, as the difference would have few digits left. */
INLINE vec tanh_(vec x) {
    const vec square = x * x, grown = exp2_(choose((bits)(x > 40.0f), every(40.0f), x) * (2 * LOG2E));
    vec near = every(62.0f / 2835);
    near = near * square - 17.0f / 315;
    near = near * square + 2.0f / 15;
    near = near * square - 1.0f / 3;
    near = near * square * x + x;
    return choose((bits)(square < 0.0625f), near, 1.0f - 2.0f / (grown + 1.0f));
}

/* scores [rows, TILE] of a unit of tokens, whose keys of one dimension lie PANEL apart from those of the next */
INLINE void score_band(const int rows, const float *queries, int64_t dim, const float *const *keys, float *scores) {
    vec sums[BAND][VECTORS] = {};
    for (int64_t d = 0; d < dim; d++) {
        vec key[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) key[v] = load(keys[v] + d * PANEL);
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < VECTORS; v++) sums[r][v] = fused(every(queries[r * dim + d]), key[v], sums[r][v]);
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < VECTORS; v++) save(scores + r * TILE + v * LANES, sums[r][v]);
}

/* mixed [rows, dim] = mixed * factors + weights [rows, TILE] . values of tokens from .. to, for `vectors` of each row from
 * the `first` dimension on */
INLINE void mix_band(const int rows, const int vectors, const float *weights, const float *factors, int64_t dim,
                     const float *const *values, int64_t first, int64_t from, int64_t to, float *mixed) {
    vec sums[BAND][VECTORS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) sums[r][v] = load(mixed + r * dim + first + v * LANES) * factors[r];
    for (int64_t t = from; t < to; t++) {
        const float *row = values[t / PANEL] + t % PANEL * dim + first;
        vec value[VECTORS];
        UNROLL for (int v = 0; v < vectors; v++) value[v] = load(row + v * LANES);
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < vectors; v++) sums[r][v] = fused(every(weights[r * TILE + t]), value[v], sums[r][v]);
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) save(mixed + r * dim + first + v * LANES, sums[r][v]);
}

/* Of the 64 positions of a tile, those that a row sees of a tree that begins `after` of them before the tile. */
INLINE uint64_t shown_of(uint64_t branch, int64_t after) {
    if (after <= -TILE) return ~0ull;
    if (after < 0) return branch << -after | ((1ull << -after) - 1);
    return after < TILE ? branch >> after : 0;
}

/* One row's scores of the tile that begins at position `tile` become weights; the row sees low .. high, and
 * of them those of `shown`. What it has summed up so far is to be multiplied by `factor`. */
INLINE void weigh(float *scores, int64_t tile, int64_t low, int64_t high, uint64_t shown, float scale, float softcap,
                  float *peak, float *factor, vec *sum) {
    vec x[TILE / LANES], highest = every(*peak), total = {};
    bits lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    UNROLL for (int t = 0; t < TILE / LANES; t++) {
        x[t] = load(scores + t * LANES) * scale;
        if (softcap != 0) x[t] = tanh_(x[t]) * softcap;
        bits seen = (bits)(lane + (uint32_t)(tile + t * LANES - low) < (uint32_t)(high - low));
        if (shown != ~0ull)
            for (int i = 0; i < LANES; i++) seen[i] &= -(uint32_t)(shown >> (t * LANES + i) & 1);
        x[t] = choose(seen, x[t], every(-__builtin_inff()));
        highest = choose((bits)(highest < x[t]), x[t], highest);
    }
    float now = highest[0];
    for (int i = 1; i < LANES; i++) now = now < highest[i] ? highest[i] : now;
    UNROLL for (int t = 0; t < TILE / LANES; t++) {
        const vec weight = exp2_(x[t] - now);
        save(scores + t * LANES, weight);
        total += weight;
    }
    *factor = exp2_(every(*peak - now))[0];
    *sum = *sum * *factor + total;
    *peak = now;
}

/* Of the panel that begins with a position, in keys and in values. */
static int64_t place_of(const Job *job, const Task *task, int64_t position) {
    const int64_t block = job->tables[task->sequence * job->width + position / job->block_size];
    return ((block * job->kv_heads + task->head) * job->block_size + position % job->block_size) * job->head_dim;
}

INLINE int64_t row_of(const Job *job, const Task *task, int64_t row, int64_t stride) {
    const int64_t group = job->heads / job->kv_heads, r = task->row + row;
    const int64_t token = job->starts[task->sequence] + r / group;
    return token * stride + (task->head * group + r % group) * job->head_dim;
}

static void attend_task(const Job *job, const Task *task) {
    const int64_t dim = job->head_dim, group = job->heads / job->kv_heads, rows = task->rows;
    const float scale = job->softcap != 0 ? job->scale / job->softcap : job->scale * LOG2E;
    const float softcap = job->softcap * LOG2E;
    float queries[ROWS * WIDEST], mixed[ROWS * WIDEST], scores[ROWS * TILE], factors[ROWS], peaks[ROWS];
    vec sums[ROWS];

    for (int64_t r = 0; r < rows; r++) {
        memcpy(queries + r * dim, job->query + row_of(job, task, r, job->query_stride), dim * sizeof *queries);
        peaks[r] = LOWEST;
        sums[r] = every(0);
    }
    memset(mixed, 0, rows * dim * sizeof *mixed);
    for (int64_t tile = task->low / TILE * TILE; tile < task->high; tile += TILE) {
        const int64_t from = task->low > tile ? task->low - tile : 0;
        const int64_t to = task->high - tile < TILE ? task->high - tile : TILE;
        const float *keys[TILE / PANEL], *values[TILE / PANEL];
        for (int64_t p = 0; p < TILE / PANEL; p++) {
            /* What nobody sees need not be there: another panel stands for it. */
            const int64_t panel = p < from / PANEL ? from / PANEL : p > (to - 1) / PANEL ? (to - 1) / PANEL : p;
            const int64_t place = place_of(job, task, tile + panel * PANEL);
            keys[p] = job->keys + place;
            values[p] = job->values + place;
        }
        for (int64_t unit = from / UNIT * UNIT; unit < to; unit += UNIT) {
            const float *lanes[VECTORS];
            for (int v = 0; v < VECTORS; v++)
                lanes[v] = keys[(unit + v * LANES) / PANEL] + (unit + v * LANES) % PANEL;
#define SCORE(count) score_band(count, queries + r * dim, dim, lanes, scores + r * TILE + unit)
            for (int64_t r = 0; r < rows; r += BAND) EACH_ROWS(SCORE, rows - r)
        }
        for (int64_t r = 0; r < rows; r++) {
            const int64_t high = task->old + (task->row + r) / group + 1;
            const int64_t low = job->window && high > job->window ? high - job->window : 0;
            const int64_t token = job->starts[task->sequence] + (task->row + r) / group;
            const uint64_t shown =
                job->branches ? shown_of(job->branches[token], tile - job->roots[task->sequence]) : ~0ull;
            weigh(scores + r * TILE, tile, low, high, shown, scale, softcap, peaks + r, factors + r, sums + r);
        }
        for (int64_t r = 0; r < rows; r += BAND) {
            int64_t d = 0;
#define MIX(count, vectors)                                                                                           \
    mix_band(count, vectors, scores + r * TILE, factors + r, dim, values, d, from, to, mixed + r * dim)
#define MIX_MANY(count) MIX(count, VECTORS)
#define MIX_ONE(count) MIX(count, 1)
            for (; d + VECTORS * LANES <= dim; d += VECTORS * LANES) EACH_ROWS(MIX_MANY, rows - r)
            for (; d < dim; d += LANES) EACH_ROWS(MIX_ONE, rows - r)
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        float *out = job->out + row_of(job, task, r, job->heads * dim), sum = 0;
        for (int i = 0; i < LANES; i++) sum += sums[r][i];
        if (job->sinks) {
            const float x = job->sinks[task->head * group + (task->row + r) % group] * LOG2E - peaks[r];
            sum += exp2_(every(x < 126 ? x : 126))[0];
        }
        for (int64_t d = 0; d < dim; d++) out[d] = mixed[r * dim + d] / sum;
    }
}

/* The n-th task, heads of a sequence's rows one after another; returns how many there are in all. */
static int64_t task_at(const Job *job, int64_t n, Task *task) {
    const int64_t group = job->heads / job->kv_heads;
    int64_t count = 0;
    for (int64_t s = 0; s < job->sequences; s++) {
        const int64_t new = job->starts[s + 1] - job->starts[s], old = job->lengths[s] - new;
        const int64_t tiles = (new * group + ROWS - 1) / ROWS, inside = n - count;
        count += tiles * job->kv_heads;
        if (inside < 0 || n >= count) continue;
        /* The longest come first. */
        const int64_t row = (tiles - 1 - inside / job->kv_heads) * ROWS, left = new * group - row;
        const int64_t rows = left < ROWS ? left : ROWS, first = old + row / group + 1;
        const int64_t low = job->window && first > job->window ? first - job->window : 0;
        *task = (Task){s, inside % job->kv_heads, row, rows, old, low, old + (row + rows - 1) / group + 1};
    }
    return count;
}

int attend(const Job *job, int threads) {
    const int64_t count = task_at(job, -1, NULL);
    int64_t work = 0;
    for (int64_t s = 0; s < job->sequences; s++)
        work += job->lengths[s] * (job->starts[s + 1] - job->starts[s]) * job->heads * job->head_dim;
    if (work < LEAST) threads = 1;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < count; n++) {
        Task task;
        task_at(job, n, &task);
        attend_task(job, &task);
    }
    return 0;
}
