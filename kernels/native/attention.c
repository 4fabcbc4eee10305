/* Causal attention of new tokens over a paged cache of bfloat16, whose blocks are read where they lie.
 *
 *     out[t, h] = softmax(cap(scale * q[t, h] . K[g, a:p + 1]^T)) V[g, a:p + 1],   g = h / (heads / kv_heads)
 *     a = max(0, p + 1 - window);   cap(x) = softcap * tanh(x / softcap), or x where softcap is 0
 *
 * With sinks softmax's denominator has one more term, exp(sinks[h]).
 *
 * Of a tree's columns, which begin at a position of each sequence, a token sees only those that its bits name: bit i is
 * the i-th. A sequence without a tree has it begin behind its end.
 *
 * Row r of a sequence is head r % group of its new token r / group: heads that share keys are rows of one product. A
 * task is up to ROWS of them over one head's keys. As in FlashAttention (Dao et al., 2022, arXiv 2205.14135) it goes
 * through the keys in tiles, keeping each row's highest score, its sum of weights, and its weighted values.
 *
 * Sixteen tokens are a panel: keys lie [head_dim / 2, 16, 2] and values [8, head_dim, 2], so that 64 bytes are what one
 * vdpbf16ps multiplies with a pair of the query's numbers, or of the weights.
 *
 * A row's result is the same to the bit whatever stands beside it, in its tile or batch, and on any number of threads:
 * tiles and parts of the keys begin at fixed positions, every sum runs in one order, what a row does not see adds zero,
 * and parts are joined first to last whoever computed them. */

#include <stdlib.h>

#include "panels.h"

enum {
    PART = 512, /* keys: what one thread computes at least */
    ROWS = 8 * BAND,
    WIDEST = 256,      /* head_dim */
    LEAST = 256 * 1024, /* numbers multiplied: fewer are not worth a second thread */
};
#define LOWEST -1e30f

typedef struct {
    const bf16 *query; /* [tokens, heads, head_dim], a token every query_stride */
    bf16 *out;         /* [tokens, heads, head_dim] */
    const bf16 *keys, *values;
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
    int64_t low, high; /* positions that any of its rows sees */
    float *parts;      /* one state after another, where threads share it */
} Task;

typedef struct {
    const Task *task;
    int64_t part;
} Piece;

typedef struct {
    float *peak, *sum, *mixed; /* [rows], [rows], [rows, head_dim] */
} State;

/* Of the 64 positions of a tile, those that a row sees of a tree that begins `after` of them before the tile. */
INLINE uint64_t shown_of(uint64_t branch, int64_t after) {
    if (after <= -TILE) return ~0ull;
    if (after < 0) return branch << -after | ((1ull << -after) - 1);
    return after < TILE ? branch >> after : 0;
}

/* One row's scores of a tile become weights. Of its panels the first begins at position `at`; the row sees low .. high.
 * Of them those of `shown`.
 * What it has summed up so far is to be multiplied by `factor`. */
INLINE void weigh(const float *scores, bf16 *weights, int panels, int64_t at, int64_t low, int64_t high,
                  uint64_t shown, float scale, float softcap, float *peak, float *factor, __m512 *sum) {
    __m512 x[PANELS], highest = _mm512_set1_ps(*peak), total = _mm512_setzero_ps();
    for (int p = 0; p < panels; p++) {
        x[p] = _mm512_mul_ps(_mm512_loadu_ps(scores + p * LANES), _mm512_set1_ps(scale));
        if (softcap != 0) x[p] = _mm512_mul_ps(tanh_(x[p]), _mm512_set1_ps(softcap));
        const int64_t from = low - at - p * LANES, to = high - at - p * LANES;
        if (from > 0 || to < LANES || shown != ~0ull) {
            uint32_t seen = to >= LANES ? 0xffff : to > 0 ? (1u << to) - 1 : 0;
            seen &= from >= LANES ? 0 : from > 0 ? 0xffffu << from : 0xffff;
            seen &= (uint32_t)(shown >> p * LANES);
            x[p] = _mm512_mask_blend_ps((__mmask16)seen, _mm512_set1_ps(-__builtin_inff()), x[p]);
        }
        highest = _mm512_max_ps(highest, x[p]);
    }
    const float before = *peak, now = _mm512_reduce_max_ps(highest);
    for (int p = 0; p < panels; p++) {
        /* The sum is of what the values are multiplied with. */
        const __m256i rounded = narrow(exp2_(_mm512_sub_ps(x[p], _mm512_set1_ps(now))));
        _mm256_storeu_si256((__m256i *)(weights + p * LANES), rounded);
        total = _mm512_add_ps(total, widen(rounded));
    }
    *peak = now;
    *factor = before == now ? 1.0f : exp2_of(before - now);
    *sum = _mm512_fmadd_ps(*sum, _mm512_set1_ps(*factor), total);
}

static int64_t parts_of(const Task *task) { return (task->high - 1) / PART - task->low / PART + 1; }

/* Copies a panel of values with zeros for all but the tokens low .. high: what was never written may be no number, and
 * would stay none times zero. */
static void only(const bf16 *from, bf16 *to, int64_t low, int64_t high, int64_t dim) {
    for (int64_t t = 0; t < LANES; t += 2) {
        const uint32_t even = t >= low && t < high ? 0xffff : 0, odd = t + 1 >= low && t + 1 < high ? 0xffff0000 : 0;
        const __m512i kept = _mm512_set1_epi32((int)(even | odd));
        for (int64_t i = t * dim; i < (t + 2) * dim; i += 2 * LANES)
            _mm512_storeu_si512(to + i, _mm512_and_si512(_mm512_loadu_si512(from + i), kept));
    }
}

/* Of the panel that begins with a position, in keys and in values. */
static int64_t place_of(const Job *job, const Task *task, int64_t position) {
    const int64_t block = job->tables[task->sequence * job->width + position / job->block_size];
    return ((block * job->kv_heads + task->head) * job->block_size + position % job->block_size) * job->head_dim;
}

/* What the task's rows see of one of its parts. */
static void attend_part(const Job *job, const Task *task, const bf16 *queries, int64_t part, State state) {
    const int64_t dim = job->head_dim, group = job->heads / job->kv_heads, rows = task->rows;
    const int64_t length = job->lengths[task->sequence];
    const int64_t old = length - (job->starts[task->sequence + 1] - job->starts[task->sequence]);
    const int64_t from = (task->low / PART + part) * PART;
    const int64_t end = from + PART < task->high ? from + PART : task->high;
    const float scale = job->softcap != 0 ? job->scale / job->softcap : job->scale * LOG2E;
    const float softcap = job->softcap * LOG2E;
    float scores[ROWS * TILE], factors[ROWS];
    bf16 weights[ROWS * TILE], seen[PANELS][LANES * WIDEST];
    __m512 sums[ROWS];

    for (int64_t r = 0; r < rows; r++) {
        state.peak[r] = LOWEST;
        sums[r] = _mm512_setzero_ps();
    }
    memset(state.mixed, 0, rows * dim * sizeof(float));
    for (int64_t tile = part ? from : task->low / TILE * TILE; tile < end; tile += TILE) {
        const bf16 *keys[PANELS], *values[PANELS], *next[PANELS];
        const int64_t last = tile + TILE < end ? tile + TILE : end;
        const int64_t at = task->low > tile ? task->low / LANES * LANES : tile;
        int panels = 0;
        for (int64_t p = at; p < last; p += LANES, panels++) {
            const int64_t place = place_of(job, task, p), later = p + TILE < end ? place_of(job, task, p + TILE) : place;
            keys[panels] = job->keys + place;
            values[panels] = job->values + place;
            next[panels] = job->keys + later;
            if (p < task->low || p + LANES > length) {
                only(values[panels], seen[panels], task->low - p, length - p, dim);
                values[panels] = seen[panels];
            }
        }
        for (int64_t r = 0; r < rows; r += BAND)
            score(queries + r * dim, (int)(rows - r), dim, keys, values, panels, scores + r * TILE);
        for (int64_t r = 0; r < rows; r++) {
            const int64_t high = old + (task->row + r) / group + 1;
            const int64_t low = job->window && high > job->window ? high - job->window : 0;
            const int64_t token = job->starts[task->sequence] + (task->row + r) / group;
            const uint64_t shown =
                job->branches ? shown_of(job->branches[token], at - job->roots[task->sequence]) : ~0ull;
            weigh(scores + r * TILE, weights + r * TILE, panels, at, low, high, shown, scale, softcap, state.peak + r,
                  factors + r, sums + r);
        }
        for (int64_t r = 0; r < rows; r += BAND)
            mix(weights + r * TILE, factors + r, (int)(rows - r), dim, values, next, panels, state.mixed + r * dim);
    }
    for (int64_t r = 0; r < rows; r++) state.sum[r] = _mm512_reduce_add_ps(sums[r]);
}

static void join(State total, State part, int64_t rows, int64_t dim) {
    for (int64_t r = 0; r < rows; r++) {
        const float peak = total.peak[r] > part.peak[r] ? total.peak[r] : part.peak[r];
        const float a = exp2_of(total.peak[r] - peak), b = exp2_of(part.peak[r] - peak);
        total.peak[r] = peak;
        total.sum[r] = __builtin_fmaf(part.sum[r], b, total.sum[r] * a);
        for (int64_t d = r * dim; d < (r + 1) * dim; d += LANES) {
            const __m512 grown = _mm512_mul_ps(_mm512_loadu_ps(total.mixed + d), _mm512_set1_ps(a));
            const __m512 added = _mm512_loadu_ps(part.mixed + d);
            _mm512_storeu_ps(total.mixed + d, _mm512_fmadd_ps(added, _mm512_set1_ps(b), grown));
        }
    }
}

INLINE int64_t row_of(const Job *job, const Task *task, int64_t row, int64_t stride) {
    const int64_t group = job->heads / job->kv_heads, r = task->row + row;
    const int64_t token = job->starts[task->sequence] + r / group;
    return token * stride + (task->head * group + r % group) * job->head_dim;
}

static State state_at(float *memory, int64_t rows) {
    return (State){memory, memory + rows, memory + 2 * rows};
}

static void load(const Job *job, const Task *task, bf16 *queries) {
    for (int64_t r = 0; r < task->rows; r++)
        memcpy(queries + r * job->head_dim, job->query + row_of(job, task, r, job->query_stride),
               job->head_dim * sizeof(bf16));
}

/* What the row's sink adds to the sum of weights, whose highest score is `peak`. */
static float sink_of(const Job *job, const Task *task, int64_t row, float peak) {
    const int64_t group = job->heads / job->kv_heads;
    if (!job->sinks) return 0;
    const float x = job->sinks[task->head * group + (task->row + row) % group] * LOG2E - peak;
    return exp2_of(x < 126 ? x : 126);
}

static void finish(const Job *job, const Task *task, State total) {
    const int64_t dim = job->head_dim;
    for (int64_t r = 0; r < task->rows; r++) {
        bf16 *out = job->out + row_of(job, task, r, job->heads * dim);
        const float sum_ = total.sum[r] + sink_of(job, task, r, total.peak[r]);
        const __m512 sum = _mm512_set1_ps(sum_);
        for (int64_t d = 0; d < dim; d += LANES) {
            const __m512 mixed = _mm512_loadu_ps(total.mixed + r * dim + d);
            _mm256_storeu_si256((__m256i *)(out + d), narrow(_mm512_div_ps(mixed, sum)));
        }
    }
}

static void attend_whole(const Job *job, const Task *task) {
    bf16 queries[ROWS * WIDEST];
    float total_memory[ROWS * (WIDEST + 2)], part_memory[ROWS * (WIDEST + 2)];
    const State total = state_at(total_memory, task->rows), part = state_at(part_memory, task->rows);
    load(job, task, queries);
    attend_part(job, task, queries, 0, total);
    for (int64_t p = 1; p < parts_of(task); p++) {
        attend_part(job, task, queries, p, part);
        join(total, part, task->rows, job->head_dim);
    }
    finish(job, task, total);
}

static State kept(const Job *job, const Task *task, int64_t part) {
    return state_at(task->parts + part * task->rows * (job->head_dim + 2), task->rows);
}

static void attend_one(const Job *job, const Task *task, int64_t part) {
    bf16 queries[ROWS * WIDEST];
    load(job, task, queries);
    attend_part(job, task, queries, part, kept(job, task, part));
}

static void join_all(const Job *job, const Task *task) {
    const State total = kept(job, task, 0);
    for (int64_t p = 1; p < parts_of(task); p++) join(total, kept(job, task, p), task->rows, job->head_dim);
    finish(job, task, total);
}

/* The longest come first, as far as one sequence goes. */
static int64_t list_tasks(const Job *job, Task *tasks) {
    const int64_t group = job->heads / job->kv_heads;
    int64_t count = 0;
    for (int64_t s = 0; s < job->sequences; s++) {
        const int64_t new = job->starts[s + 1] - job->starts[s], old = job->lengths[s] - new;
        for (int64_t tile = (new * group + ROWS - 1) / ROWS - 1; tile >= 0; tile--) {
            const int64_t row = tile * ROWS, left = new * group - row, rows = left < ROWS ? left : ROWS;
            const int64_t first = old + row / group + 1, high = old + (row + rows - 1) / group + 1;
            const int64_t low = job->window && first > job->window ? first - job->window : 0;
            for (int64_t head = 0; head < job->kv_heads; head++, count++)
                if (tasks) tasks[count] = (Task){s, head, row, rows, low, high, NULL};
        }
    }
    return count;
}

/* Of a task, in what a key costs one row; a few rows wait for memory as long as several. */
static int64_t cost(const Task *task) { return (task->high - task->low) * (task->rows < BAND ? BAND : task->rows); }

/* Whether threads share it: it alone takes more than half of what is one thread's. */
static int shared(const Task *task, int64_t total, int threads) {
    return threads > 1 && parts_of(task) > 1 && cost(task) * 2 * threads > total;
}

/* Returns 0, or 1 if there is no memory. */
int attend(const Job *job, int threads) {
    const int64_t count = list_tasks(job, NULL);
    int64_t total = 0, most = 0, floats = 0, filled = 0;
    Task *tasks = malloc((size_t)count * sizeof(Task) + 1);
    if (!tasks) return 1;
    list_tasks(job, tasks);
    for (int64_t i = 0; i < count; i++) total += cost(tasks + i);
    if (total * job->head_dim < LEAST) threads = 1;
    for (int64_t i = 0; i < count; i++) {
        const int64_t parts = shared(tasks + i, total, threads) ? parts_of(tasks + i) : 0;
        most += parts ? parts : 1;
        floats += parts * tasks[i].rows * (job->head_dim + 2);
    }
    Piece *pieces = malloc((size_t)most * sizeof(Piece) + 1);
    float *memory = malloc((size_t)floats * sizeof(float) + 1);
    if (!pieces || !memory) {
        free(memory), free(pieces), free(tasks);
        return 1;
    }
    floats = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t parts = shared(tasks + i, total, threads) ? parts_of(tasks + i) : 0;
        if (!parts) pieces[filled++] = (Piece){tasks + i, 0};
        if (parts) tasks[i].parts = memory + floats;
        for (int64_t p = 0; p < parts; p++) pieces[filled++] = (Piece){tasks + i, p};
        floats += parts * tasks[i].rows * (job->head_dim + 2);
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < most; i++) {
        if (pieces[i].task->parts)
            attend_one(job, pieces[i].task, pieces[i].part);
        else
            attend_whole(job, pieces[i].task);
    }
    if (floats) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
        for (int64_t i = 0; i < count; i++)
            if (tasks[i].parts) join_all(job, tasks + i);
    }
    free(memory), free(pieces), free(tasks);
    return 0;
}
