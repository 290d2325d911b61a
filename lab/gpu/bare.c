/* The lower bound for every exporter: a C program that does nothing but load NVML.
 *
 *   bare LIBRARY init               nvmlInit, then for each input line one JSON line with the program's memory
 *   bare LIBRARY sample HZ SECONDS  memory info of every GPU at HZ with absolute deadlines,
 *                                   then one JSON line: CPU share, call times, memory
 *
 * The program exits when its input ends. Built on the fly: gcc -O2 -o bare bare.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define MAX_GPUS 64

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} memory_v2;

static int (*nvml_init)(void);
static int (*nvml_count)(unsigned int *);
static int (*nvml_handle)(unsigned int, void **);
static int (*nvml_memory)(void *, memory_v2 *);

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "bare: the library has no %s\n", name);
        exit(1);
    }
    return found;
}

static void open_nvml(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) {
        fprintf(stderr, "bare: %s\n", dlerror());
        exit(1);
    }
    *(void **)&nvml_init = symbol(library, "nvmlInit_v2");
    *(void **)&nvml_count = symbol(library, "nvmlDeviceGetCount_v2");
    *(void **)&nvml_handle = symbol(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&nvml_memory = symbol(library, "nvmlDeviceGetMemoryInfo_v2");
    int code = nvml_init();
    if (code) {
        fprintf(stderr, "bare: nvmlInit_v2 answered %d\n", code);
        exit(1);
    }
}

/* VmRSS in KiB; -1 if the kernel does not report it. */
static long resident_kib(void) {
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    long kib = -1;
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmRSS: %ld", &kib) == 1)
            break;
    if (status)
        fclose(status);
    return kib;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double cpu_seconds(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int report_memory(void) {
    char line[64];
    printf("{\"rss_kib\": %ld}\n", resident_kib());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        printf("{\"rss_kib\": %ld}\n", resident_kib());
        fflush(stdout);
    }
    return 0;
}

static int sample(double hz, double seconds) {
    unsigned int gpus = 0;
    void *device[MAX_GPUS];
    if (nvml_count(&gpus) || gpus == 0 || gpus > MAX_GPUS) {
        fprintf(stderr, "bare: %u GPUs\n", gpus);
        return 1;
    }
    for (unsigned int i = 0; i < gpus; i++)
        if (nvml_handle(i, &device[i])) {
            fprintf(stderr, "bare: no handle of GPU %u\n", i);
            return 1;
        }
    size_t ticks = (size_t)(hz * seconds), taken = 0, missed = 0, failed = 0;
    if (ticks == 0) {
        fprintf(stderr, "bare: nothing to sample\n");
        return 1;
    }
    uint32_t *call_ns = calloc(ticks * gpus, sizeof *call_ns);
    if (!call_ns) {
        fprintf(stderr, "bare: out of memory\n");
        return 1;
    }
    uint64_t period = (uint64_t)(1e9 / hz), start = now_ns();
    double cpu_before = cpu_seconds();
    for (size_t tick = 0; tick < ticks; tick++) {
        uint64_t deadline = start + tick * period;
        if (now_ns() > deadline + period) {
            missed++;
            continue;
        }
        struct timespec until = {(time_t)(deadline / 1000000000u), (long)(deadline % 1000000000u)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        for (unsigned int i = 0; i < gpus; i++) {
            memory_v2 memory = {.version = (unsigned int)sizeof memory | 2u << 24};
            uint64_t begun = now_ns();
            failed += nvml_memory(device[i], &memory) != 0;
            call_ns[taken++] = (uint32_t)(now_ns() - begun);
        }
    }
    double wall = (double)(now_ns() - start) / 1e9, cpu = cpu_seconds() - cpu_before;
    qsort(call_ns, taken, sizeof *call_ns, ascending);
    printf("{\"hz\": %g, \"seconds\": %.3f, \"gpus\": %u, \"cpu_share\": %.6f, \"call_p50_us\": %.2f, "
           "\"call_p99_us\": %.2f, \"samples\": %zu, \"missed_ticks\": %zu, \"failed_calls\": %zu, \"rss_kib\": %ld}\n",
           hz, wall, gpus, cpu / wall, taken ? call_ns[taken / 2] / 1e3 : 0.0,
           taken ? call_ns[taken * 99 / 100] / 1e3 : 0.0, taken, missed, failed, resident_kib());
    free(call_ns);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[2], "init")) {
        open_nvml(argv[1]);
        return report_memory();
    }
    if (argc == 5 && !strcmp(argv[2], "sample") && atof(argv[3]) > 0 && atof(argv[4]) > 0) {
        open_nvml(argv[1]);
        return sample(atof(argv[3]), atof(argv[4]));
    }
    fprintf(stderr, "usage: bare LIBRARY init | bare LIBRARY sample HZ SECONDS\n");
    return 64;
}
