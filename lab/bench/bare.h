/* The functions that the files of the bare program share. */
#ifndef BENCH_BARE_H
#define BENCH_BARE_H

#include "nvml.h"

/* Makes the exporter's calls at the exporter's rates: memory at `hz` on one thread, processes and telemetry on another.
 * Returns the exit status. */
int same(double hz, double seconds);

/* Registers for Xid events. Must be called once, by the thread that calls the functions below. */
void telemetry_start(void);

/* One round of the cheap readings, for all GPUs. */
void telemetry_quick(void);

/* One round of the expensive readings, for all GPUs. */
void telemetry_slow(void);

#endif
