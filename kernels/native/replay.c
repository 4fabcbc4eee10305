/* Functions of the other files, called one after another with the jobs they had before. */

#include <stdint.h>

typedef struct {
    int (*run)(const void *job, int threads); /* 0: done */
    const void *job;
} Call;

typedef struct {
    const Call *calls;
    int64_t count;
} Job;

/* What the first that fails returns, or 0. */
int replay(const Job *job, int threads) {
    for (int64_t i = 0; i < job->count; i++) {
        const int failed = job->calls[i].run(job->calls[i].job, threads);
        if (failed) return failed;
    }
    return 0;
}
