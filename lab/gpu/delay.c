/* A wrapper around the real libnvidia-ml.so.1 that delays some calls of one GPU. All other symbols are those of the real library, on
 * which this one depends: dlsym also searches the libraries that a library depends on.
 *
 * NVML_DELAY_CONTROL names a file with lines "CALL GPU MILLISECONDS EVERY": each EVERY-th call of the GPU with this index is delayed. The
 * file is read at each call, so that it may change at any time; without it nothing is delayed.
 *
 * gcc -shared -fPIC -O2 -o libdelay.so delay.c -DREAL='"/path/libnvidia-ml.so.1"' -Wl,--no-as-needed /path/libnvidia-ml.so.1 -ldl -pthread
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void *real_library;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

static void open_real(void) { real_library = dlopen(REAL, RTLD_NOW | RTLD_LOCAL); }

static void *real(const char *name) {
    pthread_once(&opened, open_real);
    void *found = real_library ? dlsym(real_library, name) : NULL;
    if (!found) {
        fprintf(stderr, "delay: no %s in " REAL "\n", name);
        abort();
    }
    return found;
}

/* Waits as the control file demands. */
static void delay(const char *call, void *device, atomic_ulong *calls) {
    const char *path = getenv("NVML_DELAY_CONTROL");
    FILE *control = path ? fopen(path, "r") : NULL;
    if (!control)
        return;
    unsigned int index = ~0u, gpu;
    unsigned long milliseconds, every;
    char name[128];
    ((int (*)(void *, unsigned int *))real("nvmlDeviceGetIndex"))(device, &index);
    while (fscanf(control, "%127s %u %lu %lu", name, &gpu, &milliseconds, &every) == 4)
        if (!strcmp(name, call) && gpu == index && every && atomic_fetch_add(calls, 1) % every == 0) {
            struct timespec time = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000) * 1000000};
            nanosleep(&time, NULL);
        }
    fclose(control);
}

#define DELAYED(call, parameters, types, arguments)                                                                     \
    int call parameters {                                                                                               \
        static atomic_ulong calls;                                                                                      \
        delay(#call, device, &calls);                                                                                   \
        return ((int (*) types)real(#call)) arguments;                                                                  \
    }

DELAYED(nvmlDeviceGetMemoryInfo_v2, (void *device, void *memory), (void *, void *), (device, memory))
DELAYED(nvmlDeviceGetTemperature, (void *device, int sensor, unsigned int *celsius), (void *, int, unsigned int *), (device, sensor, celsius))
DELAYED(nvmlDeviceGetComputeRunningProcesses_v3, (void *device, unsigned int *count, void *processes), (void *, unsigned int *, void *),
        (device, count, processes))
