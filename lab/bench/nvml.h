/* The part of NVML's C interface that the bare programs need. Layouts and numbers follow NVIDIA's nvml.h 13. */
#ifndef BENCH_NVML_H
#define BENCH_NVML_H

#include "numbers.h"

#include <stdint.h>

#define NVML_OK 0
#define NVML_NOT_SUPPORTED 3
#define NVML_NOT_FOUND 6
#define NVML_INSUFFICIENT_SIZE 7
#define NVML_TIMEOUT 10

/* The time for which each limit held the clocks: six fields from the first. */
#define FIELD_FIRST_LIMIT 74
#define LIMIT_FIELDS 6
#define FIELD_MEMORY_TEMPERATURE 82
#define FIELD_RECOVERY_ACTION 230
#define EVENT_XID 8ull
#define MAX_GPUS 64

typedef void *device;
typedef unsigned long long ull;

typedef struct {
    unsigned int version;
    ull total, reserved, free, used;
} memory_v2;

typedef struct {
    unsigned int pid;
    ull used;
    unsigned int gpu_instance, compute_instance;
} process;

typedef struct {
    unsigned int pid;
    ull timestamp;
    unsigned int sm, memory, encoder, decoder;
} work_sample;

typedef struct {
    unsigned int field, scope;
    long long timestamp, latency_us;
    unsigned int value_type, code;
    ull value;
} field_value;

typedef struct {
    device gpu;
    ull type, data;
    unsigned int gpu_instance, compute_instance;
} event;

typedef struct {
    unsigned int id, code;
    double value;
    const char *names[3];
} profiling_metric;

/* The third version of what the driver says about the fabric. */
typedef struct {
    unsigned int version;
    unsigned char cluster[16];
    unsigned int status, clique;
    unsigned char state;
    unsigned int health;
    unsigned char summary;
} fabric_info;

/* The array's length differs between versions of nvml.h; this one is longer than all of them. */
typedef struct {
    unsigned int version, count;
    void *earlier, *later;
    profiling_metric metrics[512];
} profiling_request;

/* The calls, by name. */
#define NVML_CALLS(call)                                                                                               \
    call(int, nvmlInit_v2, (void))                                                                                     \
    call(int, nvmlDeviceGetCount_v2, (unsigned int *))                                                                 \
    call(int, nvmlDeviceGetHandleByIndex_v2, (unsigned int, device *))                                                 \
    call(int, nvmlDeviceGetMemoryInfo_v2, (device, memory_v2 *))                                                       \
    call(int, nvmlDeviceGetComputeRunningProcesses_v3, (device, unsigned int *, process *))                            \
    call(int, nvmlDeviceGetGraphicsRunningProcesses_v3, (device, unsigned int *, process *))                           \
    call(int, nvmlDeviceGetMPSComputeRunningProcesses_v3, (device, unsigned int *, process *))                         \
    call(int, nvmlDeviceGetAccountingMode, (device, unsigned int *))                                                   \
    call(int, nvmlDeviceGetUtilizationRates, (device, unsigned int *))                                                 \
    call(int, nvmlDeviceGetEncoderUtilization, (device, unsigned int *, unsigned int *))                               \
    call(int, nvmlDeviceGetDecoderUtilization, (device, unsigned int *, unsigned int *))                               \
    call(int, nvmlDeviceGetTemperature, (device, int, unsigned int *))                                                 \
    call(int, nvmlDeviceGetPowerManagementLimitConstraints, (device, unsigned int *, unsigned int *))                  \
    call(int, nvmlDeviceGetTemperatureThreshold, (device, int, unsigned int *))                                        \
    call(int, nvmlDeviceGetFieldValues, (device, int, field_value *))                                                  \
    call(int, nvmlDeviceGetClockInfo, (device, int, unsigned int *))                                                   \
    call(int, nvmlDeviceGetCurrentClocksThrottleReasons, (device, ull *))                                              \
    call(int, nvmlDeviceGetTotalEccErrors, (device, int, int, ull *))                                                  \
    call(int, nvmlDeviceGetRemappedRows, (device, unsigned int *, unsigned int *, unsigned int *, unsigned int *))     \
    call(int, nvmlDeviceGetRowRemapperHistogram, (device, unsigned int *))                                             \
    call(int, nvmlDeviceGetCurrPcieLinkGeneration, (device, unsigned int *))                                           \
    call(int, nvmlDeviceGetCurrPcieLinkWidth, (device, unsigned int *))                                                \
    call(int, nvmlDeviceGetMaxPcieLinkGeneration, (device, unsigned int *))                                            \
    call(int, nvmlDeviceGetMaxPcieLinkWidth, (device, unsigned int *))                                                 \
    call(int, nvmlDeviceGetNvLinkState, (device, unsigned int, unsigned int *))                                        \
    call(int, nvmlDeviceGetGpuFabricInfoV, (device, fabric_info *))                                                    \
    call(int, nvmlDeviceGetProcessUtilization, (device, work_sample *, unsigned int *, ull))                           \
    call(int, nvmlEventSetCreate, (void **))                                                                           \
    call(int, nvmlDeviceGetSupportedEventTypes, (device, ull *))                                                       \
    call(int, nvmlDeviceRegisterEvents, (device, ull, void *))                                                         \
    call(int, nvmlEventSetWait_v2, (void *, event *, unsigned int))                                                    \
    call(int, nvmlDeviceGetMigMode, (device, unsigned int *, unsigned int *))                                          \
    call(int, nvmlDeviceGetBAR1MemoryInfo, (device, ull *))                                                            \
    call(int, nvmlDeviceGetRetiredPages, (device, int, unsigned int *, ull *))                                         \
    call(int, nvmlGpmQueryDeviceSupport, (device, unsigned int *))                                                     \
    call(int, nvmlGpmSampleAlloc, (void **))                                                                           \
    call(int, nvmlGpmSampleGet, (device, void *))                                                                      \
    call(int, nvmlGpmMetricsGet, (profiling_request *))                                                                \
    FAST_NUMBERS(call)                                                                                                 \
    SLOW_NUMBERS(call)

#define NVML_DECLARE(result, name, arguments) extern result(*name) arguments;
NVML_CALLS(NVML_DECLARE)

/* The GPUs of the machine, after open_nvml. */
extern unsigned int gpus;
extern device gpu[MAX_GPUS];

/* Loads the library and initialises it; ends the program if that fails or a function is missing. */
void open_nvml(const char *path);

/* Gets a handle of every GPU; ends the program if that fails. */
void find_gpus(void);

/* Reads the memory of a GPU; returns the call's code. */
int read_memory(unsigned int index, memory_v2 *memory);

/* Nanoseconds of CLOCK_MONOTONIC. */
uint64_t now_ns(void);

#endif
