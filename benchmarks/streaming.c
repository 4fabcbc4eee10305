/* How fast memory is read, from end to end. Vectors of the compiler's own, for processors of any kind. */

#include <stdint.h>

enum { SIZE = 64, PAGE = 4096, AHEAD = 8192 };

typedef uint64_t vec __attribute__((vector_size(SIZE), aligned(SIZE)));

typedef struct {
    const char *from; /* begins with a page */
    int64_t pages;
    uint64_t sum;
} Job;

int stream(Job *job, int threads) {
    uint64_t sum = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(^ : sum)
    for (int64_t page = 0; page < job->pages; page++) {
        const char *from = job->from + page * PAGE;
        vec sums[4] = {0};
        for (int64_t i = 0; i < PAGE; i += 4 * SIZE)
            for (int v = 0; v < 4; v++) {
                sums[v] ^= *(const vec *)(from + i + v * SIZE);
                __builtin_prefetch(from + AHEAD + i + v * SIZE);
            }
        const vec all = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
        for (int i = 0; i < 8; i++) sum ^= all[i];
    }
    job->sum = sum;
    return 0;
}
