/* The readings of one number, from crates/gpu-readings/src/lanes/telemetry/reading.rs. Generated: UPDATE_GOLDEN=1 cargo test --test it declared_once */
#define FAST_NUMBERS(call) \
    call(int, nvmlDeviceGetPowerUsage, (device, void *)) \
    call(int, nvmlDeviceGetEnforcedPowerLimit, (device, void *))
#define SLOW_NUMBERS(call) \
    call(int, nvmlDeviceGetPcieReplayCounter, (device, void *)) \
    call(int, nvmlDeviceGetPowerManagementDefaultLimit, (device, void *))
