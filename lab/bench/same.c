/* The exporter's driver calls, made at its rates; the results are not used.
 *
 * There are two threads, as in the exporter. One reads the memory of every GPU at absolute deadlines. The other lists
 * processes, which takes the driver a hundred times as long and must not delay the memory readings. A single thread
 * would save a wake-up a second but would not be equivalent: it could not keep its rate while listing processes.
 */
#define _GNU_SOURCE
#include "bare.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000ull
/* crates/gpu-readings/src/lanes/schedule.rs and crates/gpu-readings/src/lanes/process/list_cache.rs: the rest after a pass, the number of attempts
 * while memory is changing, and how long it takes until a list that was empty is read again. */
#define REST 2
#define LONGEST_REST (50 * SECOND / 1000)
#define ATTEMPTS 3
#define EMPTY_STANDS (5 * SECOND)
/* src/config/keys.rs: telemetry.interval; process.interval and telemetry.slow-interval as multiples of it. */
#define INTERVAL SECOND
#define LIST_ROUNDS 2
#define SLOW_ROUNDS 15

/* crates/gpu-readings/src/nvml/raw.rs. */
#define HEADROOM 16

typedef int (*list_call)(device, unsigned int *, process *);

static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t bell;
static uint64_t moved;
static volatile int ending;

static struct {
    unsigned int graphics, mps;
    ull used;
    uint64_t all_read;
} known[MAX_GPUS];
static unsigned int listed, failed;

static struct timespec at(uint64_t ns) { return (struct timespec){(time_t)(ns / SECOND), (long)(ns % SECOND)}; }

/* Reads a list into a buffer that is reused; calls again with a larger one if more processes have started in the meantime. */
static unsigned int list(list_call call, unsigned int index) {
    static process *entries;
    static unsigned int room;
    for (int attempt = 0; attempt < 5; attempt++) {
        unsigned int count = room;
        int code = entries ? call(gpu[index], &count, entries) : NVML_INSUFFICIENT_SIZE;
        if (code == NVML_OK)
            return count;
        if (code != NVML_INSUFFICIENT_SIZE)
            break;
        room = (count > room ? count : room) + HEADROOM;
        free(entries);
        entries = calloc(room, sizeof *entries);
    }
    failed++;
    return 0;
}

static ull in_use(unsigned int index) {
    memory_v2 memory;
    failed += read_memory(index, &memory) != 0;
    return memory.used;
}

/* Reads memory, the lists, and memory again; repeats this if memory has changed. A list that was empty is read
 * again only in full passes, and not in every one. */
static void pass_one(unsigned int index, int whole) {
    ull before = in_use(index);
    int is_fresh = known[index].all_read && known[index].used == before && now_ns() - known[index].all_read < EMPTY_STANDS;
    int all = whole && !is_fresh;
    for (int attempt = 1;; attempt++) {
        listed = list(nvmlDeviceGetComputeRunningProcesses_v3, index);
        if (all || known[index].graphics)
            known[index].graphics = list(nvmlDeviceGetGraphicsRunningProcesses_v3, index);
        if (all || known[index].mps)
            known[index].mps = list(nvmlDeviceGetMPSComputeRunningProcesses_v3, index);
        ull after = in_use(index);
        if (before == after || attempt == ATTEMPTS) {
            if (all) {
                known[index].all_read = before == after ? now_ns() : 0;
                known[index].used = after;
            }
            return;
        }
        before = after;
    }
}

static void *process_lane(void *nothing) {
    (void)nothing;
    uint64_t next = now_ns(), rested = 0;
    for (unsigned int round = 0; !ending;) {
        /* Changes of memory during the rest are handled after the rest. */
        struct timespec rest = at(rested < next ? rested : next), deadline = at(next);
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &rest, NULL);
        pthread_mutex_lock(&door);
        while (!moved && !ending && now_ns() < next)
            pthread_cond_timedwait(&bell, &door, &deadline);
        uint64_t begun = now_ns(), bits = moved;
        int due = begun >= next, whole = due && round % LIST_ROUNDS == 0;
        moved = 0;
        pthread_mutex_unlock(&door);
        for (unsigned int index = 0; index < gpus; index++)
            if (whole || bits >> (index % 64) & 1)
                pass_one(index, whole);
        uint64_t took = now_ns() - begun;
        rested = now_ns() + (took * REST < LONGEST_REST ? took * REST : LONGEST_REST);
        if (!due)
            continue;
        while (next <= begun)
            next += INTERVAL;
        telemetry_quick();
        if (round++ % SLOW_ROUNDS == 0)
            telemetry_slow();
    }
    return NULL;
}

static int input_ended(void) {
    fd_set input;
    FD_ZERO(&input);
    FD_SET(STDIN_FILENO, &input);
    struct timeval none = {0, 0};
    char buffer[64];
    return select(STDIN_FILENO + 1, &input, NULL, NULL, &none) > 0 && read(STDIN_FILENO, buffer, sizeof buffer) <= 0;
}

/* The memory lane. Missed ticks are counted but not made up for; once a second it checks
 * whether the input has ended. */
static size_t memory_lane(double hz, double seconds, size_t *ticks) {
    ull last[MAX_GPUS];
    memset(last, 0xff, sizeof last);
    uint64_t period = (uint64_t)((double)SECOND / hz), start = now_ns(), end = start + (uint64_t)(seconds * SECOND);
    uint64_t looked = start;
    size_t missed = 0;
    for (uint64_t deadline = start; deadline < end;) {
        struct timespec until = at(deadline);
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
            ;
        uint64_t now = now_ns(), rung = 0;
        for (unsigned int index = 0; index < gpus; index++) {
            ull used = in_use(index);
            rung |= (uint64_t)(used != last[index]) << (index % 64);
            last[index] = used;
        }
        if (rung) {
            pthread_mutex_lock(&door);
            moved |= rung;
            pthread_cond_signal(&bell);
            pthread_mutex_unlock(&door);
        }
        ++*ticks;
        size_t late = (size_t)((now - deadline) / period);
        missed += late;
        deadline += (late + 1) * period;
        if (now - looked > SECOND) {
            looked = now;
            if (input_ended())
                break;
        }
    }
    return missed;
}

int same(double hz, double seconds) {
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&bell, &clock);
    for (unsigned int index = 0; index < gpus; index++) {
        unsigned int mode;
        nvmlDeviceGetAccountingMode(gpu[index], &mode);
    }
    telemetry_start();
    pthread_t lane;
    if (pthread_create(&lane, NULL, process_lane, NULL)) {
        fprintf(stderr, "bare: no second thread\n");
        return 1;
    }
    printf("{\"hz\": %g, \"gpus\": %u}\n", hz, gpus);
    fflush(stdout);
    size_t ticks = 0, missed = memory_lane(hz, seconds, &ticks);
    pthread_mutex_lock(&door);
    ending = 1;
    pthread_cond_signal(&bell);
    pthread_mutex_unlock(&door);
    pthread_join(lane, NULL);
    printf("{\"ticks\": %zu, \"missed_ticks\": %zu, \"failed_calls\": %u, \"processes_of_last_gpu\": %u}\n", ticks, missed,
           failed, listed);
    return failed ? 1 : 0;
}
