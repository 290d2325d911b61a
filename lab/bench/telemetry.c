/* The telemetry calls, as the exporter makes them: each reading is requested separately, and
 * a reading that a GPU does not support is not requested again. */
#define _GNU_SOURCE
#include "bare.h"

#include <stdlib.h>
#include <time.h>

/* While a GPU is idle, the activity of its processes is requested in every fifth round only (crates/gpu-readings/src/lanes/schedule.rs). */
#define IDLE_STRIDE 5
#define SAMPLES 4096

enum { GRAPHICS_CLOCK, SM_CLOCK, MEMORY_CLOCK, VIDEO_CLOCK };

static unsigned int rates[2];

static int utilization(device d) { return nvmlDeviceGetUtilizationRates(d, rates); }
static int encoder(device d) { unsigned a, b; return nvmlDeviceGetEncoderUtilization(d, &a, &b); }
static int decoder(device d) { unsigned a, b; return nvmlDeviceGetDecoderUtilization(d, &a, &b); }
static int temperature(device d) { unsigned a; return nvmlDeviceGetTemperature(d, 0, &a); }
static int field(device d, unsigned int number) {
    field_value value = {.field = number};
    int code = nvmlDeviceGetFieldValues(d, 1, &value);
    return code ? code : (int)value.code;
}
static int memory_temperature(device d) { return field(d, FIELD_MEMORY_TEMPERATURE); }
static int graphics_clock(device d) { unsigned a; return nvmlDeviceGetClockInfo(d, GRAPHICS_CLOCK, &a); }
static int sm_clock(device d) { unsigned a; return nvmlDeviceGetClockInfo(d, SM_CLOCK, &a); }
static int memory_clock(device d) { unsigned a; return nvmlDeviceGetClockInfo(d, MEMORY_CLOCK, &a); }
static int video_clock(device d) { unsigned a; return nvmlDeviceGetClockInfo(d, VIDEO_CLOCK, &a); }
static int throttle(device d) { ull a; return nvmlDeviceGetCurrentClocksThrottleReasons(d, &a); }
static int ecc_corrected(device d) { ull a; return nvmlDeviceGetTotalEccErrors(d, 0, 0, &a); }
static int ecc_uncorrected(device d) { ull a; return nvmlDeviceGetTotalEccErrors(d, 1, 0, &a); }
static int remapped(device d) { unsigned a, b, c, e; return nvmlDeviceGetRemappedRows(d, &a, &b, &c, &e); }
static int recovery(device d) { return field(d, FIELD_RECOVERY_ACTION); }
static int generation(device d) { unsigned a; return nvmlDeviceGetCurrPcieLinkGeneration(d, &a); }
static int width(device d) { unsigned a; return nvmlDeviceGetCurrPcieLinkWidth(d, &a); }

static int bar1(device d) { ull a[3]; return nvmlDeviceGetBAR1MemoryInfo(d, a); }
static int banks(device d) { unsigned a[5]; return nvmlDeviceGetRowRemapperHistogram(d, a); }
static int limited(device d) {
    field_value values[LIMIT_FIELDS] = {0};
    for (unsigned int each = 0; each < LIMIT_FIELDS; each++)
        values[each].field = FIELD_FIRST_LIMIT + each;
    int code = nvmlDeviceGetFieldValues(d, LIMIT_FIELDS, values);
    return code ? code : (int)values[0].code;
}
static int limits(device d) { unsigned a, b; return nvmlDeviceGetPowerManagementLimitConstraints(d, &a, &b); }
static int shutdown_at(device d) { unsigned a; return nvmlDeviceGetTemperatureThreshold(d, 0, &a); }
static int slowdown_at(device d) { unsigned a; return nvmlDeviceGetTemperatureThreshold(d, 1, &a); }
static int memory_at(device d) { unsigned a; return nvmlDeviceGetTemperatureThreshold(d, 2, &a); }
static int gpu_at(device d) { unsigned a; return nvmlDeviceGetTemperatureThreshold(d, 3, &a); }
static int most_generation(device d) { unsigned a; return nvmlDeviceGetMaxPcieLinkGeneration(d, &a); }
static int most_width(device d) { unsigned a; return nvmlDeviceGetMaxPcieLinkWidth(d, &a); }
static int fields(device d, field_value *values, int count) {
    int code = nvmlDeviceGetFieldValues(d, count, values);
    return code ? code : (int)values[0].code;
}
/* The number of links, their errors and their traffic, then the state of each link. */
static int nvlinks(device d) {
    static const unsigned int ids[][2] = {{91}, {52}, {59}, {38}, {45}, {160}, {215, ~0u}, {138, ~0u}, {139, ~0u}};
    field_value values[sizeof ids / sizeof *ids] = {0};
    for (size_t each = 0; each < sizeof ids / sizeof *ids; each++) {
        values[each].field = ids[each][0];
        values[each].scope = ids[each][1];
    }
    int code = fields(d, values, sizeof ids / sizeof *ids);
    unsigned int active;
    for (unsigned int link = 0; !code && link < (unsigned int)values[0].value; link++)
        code = nvmlDeviceGetNvLinkState(d, link, &active);
    return code;
}
static int c2c_links(device d) {
    field_value count = {.field = 170};
    int code = fields(d, &count, 1);
    for (unsigned int link = 0; !code && link < (unsigned int)count.value; link++) {
        field_value status = {.field = 171, .scope = link};
        code = fields(d, &status, 1);
    }
    return code;
}
static int fabric(device d) {
    fabric_info info = {.version = sizeof info | 3 << 24};
    return nvmlDeviceGetGpuFabricInfoV(d, &info);
}
static int mig_mode(device d) { unsigned a, b; return nvmlDeviceGetMigMode(d, &a, &b); }

/* Requests the number of retired pages, then the pages, as nvml-wrapper does. */
static int retired(device d, int cause) {
    unsigned count = 0;
    int code = nvmlDeviceGetRetiredPages(d, cause, &count, NULL);
    if (code != NVML_INSUFFICIENT_SIZE || count == 0)
        return code;
    ull *addresses = calloc(count, sizeof *addresses);
    code = addresses ? nvmlDeviceGetRetiredPages(d, cause, &count, addresses) : NVML_OK;
    free(addresses);
    return code;
}
static int retired_single(device d) { return retired(d, 0); }
static int retired_double(device d) { return retired(d, 1); }

/* The readings of one number: the exporter's own list. The largest number is one of 64 bits. */
#define READ_NUMBER(result, name, arguments) static int read_##name(device d) { ull a; return name(d, &a); }
#define NUMBER_READING(result, name, arguments) read_##name,
FAST_NUMBERS(READ_NUMBER)
SLOW_NUMBERS(READ_NUMBER)

typedef int (*reading)(device);
static const reading QUICK[] = {FAST_NUMBERS(NUMBER_READING) utilization, encoder, decoder, temperature,
    memory_temperature, graphics_clock, sm_clock, memory_clock, video_clock, throttle, ecc_corrected, ecc_uncorrected,
    remapped, recovery, generation, width};
static const reading SLOW[] = {SLOW_NUMBERS(NUMBER_READING) mig_mode, bar1, limits, shutdown_at, slowdown_at,
    memory_at, gpu_at, limited, retired_single, retired_double, banks, most_generation, most_width, nvlinks,
    c2c_links, fabric};
#define QUICKS (sizeof QUICK / sizeof *QUICK)
#define SLOWS (sizeof SLOW / sizeof *SLOW)

static char no_quick[MAX_GPUS][QUICKS], no_slow[MAX_GPUS][SLOWS];
static ull work_until[MAX_GPUS];
static void *events;

static ull unix_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (ull)now.tv_sec * 1000000u + (ull)now.tv_nsec / 1000u;
}

/* The metrics that the exporter requests (crates/gpu-readings/src/nvml/gpm.rs). */
static const unsigned int METRICS[] = {1, 2, 3, 4, 5, 10, 11, 12, 13, 20, 21, 60, 61, 100, 101};
#define METRIC_COUNT (sizeof METRICS / sizeof *METRICS)
static void *samples[MAX_GPUS][2];

/* Two samples for each GPU that has profiling counters. */
static void profiling_start(void) {
    for (unsigned int index = 0; index < gpus; index++) {
        unsigned int support[2] = {1, 0};
        if (nvmlGpmQueryDeviceSupport(gpu[index], support) || !support[1])
            continue;
        if (nvmlGpmSampleAlloc(&samples[index][0]) || nvmlGpmSampleAlloc(&samples[index][1]))
            samples[index][0] = NULL;
    }
}

/* One sample of each GPU, compared with the previous one. */
static void profiling(unsigned int index) {
    static profiling_request request;
    static unsigned int taken[MAX_GPUS];
    void *later = samples[index][taken[index] % 2], *earlier = samples[index][(taken[index] + 1) % 2];
    if (!samples[index][0] || nvmlGpmSampleGet(gpu[index], later))
        return;
    if (taken[index]++ == 0)
        return;
    request.version = 1;
    request.count = METRIC_COUNT;
    request.earlier = earlier;
    request.later = later;
    for (size_t each = 0; each < METRIC_COUNT; each++)
        request.metrics[each].id = METRICS[each];
    nvmlGpmMetricsGet(&request);
}

void telemetry_start(void) {
    profiling_start();
    for (unsigned int index = 0; index < gpus; index++)
        work_until[index] = unix_us();
    if (!nvmlEventSetCreate || nvmlEventSetCreate(&events)) {
        events = NULL;
        return;
    }
    for (unsigned int index = 0; index < gpus; index++) {
        ull types = 0;
        if (!nvmlDeviceGetSupportedEventTypes(gpu[index], &types) && types & EVENT_XID)
            nvmlDeviceRegisterEvents(gpu[index], EVENT_XID, events);
    }
}

/* The activity of the processes: requests the number of samples, then the samples. */
static void work(unsigned int index) {
    static work_sample samples[SAMPLES];
    unsigned int count = 0;
    int code = nvmlDeviceGetProcessUtilization(gpu[index], NULL, &count, work_until[index]);
    if (code != NVML_INSUFFICIENT_SIZE || count == 0 || count > SAMPLES)
        return;
    if (nvmlDeviceGetProcessUtilization(gpu[index], samples, &count, work_until[index]))
        return;
    for (unsigned int row = 0; row < count; row++)
        if (samples[row].timestamp > work_until[index])
            work_until[index] = samples[row].timestamp;
}

void telemetry_quick(void) {
    static unsigned int round;
    round++;
    for (unsigned int index = 0; index < gpus; index++) {
        rates[0] = 1; /* if it is unknown, the GPU may be busy */
        for (size_t each = 0; each < QUICKS; each++)
            if (!no_quick[index][each])
                no_quick[index][each] = QUICK[each](gpu[index]) == NVML_NOT_SUPPORTED;
        if (rates[0] || round % IDLE_STRIDE == 1)
            work(index);
        profiling(index);
    }
    event seen;
    while (events && nvmlEventSetWait_v2(events, &seen, 0) == NVML_OK)
        ;
}

void telemetry_slow(void) {
    unsigned int count;
    nvmlDeviceGetCount_v2(&count);
    for (unsigned int index = 0; index < gpus; index++)
        for (size_t each = 0; each < SLOWS; each++)
            if (!no_slow[index][each])
                no_slow[index][each] = SLOW[each](gpu[index]) == NVML_NOT_SUPPORTED;
}
