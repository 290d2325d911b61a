/* Loads NVML and finds the GPUs. */
#define _GNU_SOURCE
#include "nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NVML_DEFINE(result, name, arguments) result(*name) arguments;
NVML_CALLS(NVML_DEFINE)

unsigned int gpus;
device gpu[MAX_GPUS];

void open_nvml(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) {
        fprintf(stderr, "bare: %s\n", dlerror());
        exit(1);
    }
#define NVML_FIND(result, name, arguments)                                                                             \
    if (!(*(void **)&name = dlsym(library, #name))) {                                                                  \
        fprintf(stderr, "bare: %s has no %s\n", path, #name);                                                          \
        exit(1);                                                                                                       \
    }
    NVML_CALLS(NVML_FIND)
    int code = nvmlInit_v2();
    if (code) {
        fprintf(stderr, "bare: nvmlInit_v2 answered %d\n", code);
        exit(1);
    }
}

void find_gpus(void) {
    if (nvmlDeviceGetCount_v2(&gpus) || gpus == 0 || gpus > MAX_GPUS) {
        fprintf(stderr, "bare: %u GPUs\n", gpus);
        exit(1);
    }
    for (unsigned int index = 0; index < gpus; index++)
        if (nvmlDeviceGetHandleByIndex_v2(index, &gpu[index])) {
            fprintf(stderr, "bare: no handle of GPU %u\n", index);
            exit(1);
        }
}

int read_memory(unsigned int index, memory_v2 *memory) {
    *memory = (memory_v2){.version = (unsigned int)sizeof *memory | 2u << 24};
    return nvmlDeviceGetMemoryInfo_v2(gpu[index], memory);
}

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
