//! Compares the library with NVIDIA's `nvml.h`, using a C compiler: sizes, offsets, constants, declared functions.

mod rig;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use nvml_wrapper_sys::bindings as sys;
use rig::missing;

/// Every struct that the library writes, with every field.
macro_rules! layouts {
    ($($name:ident { $($field:ident),* $(,)? })*) => {
        vec![$((stringify!($name), size_of::<sys::$name>(), vec![
            $((stringify!($field), offset_of!(sys::$name, $field))),*
        ])),*]
    };
}

type Layout = (&'static str, usize, Vec<(&'static str, usize)>);

fn layouts() -> Vec<Layout> {
    layouts! {
        nvmlPciInfo_t { busIdLegacy, domain, bus, device, pciDeviceId, pciSubSystemId, busId }
        nvmlPciInfoExt_t { version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass, busId }
        nvmlDeviceAddressingMode_t { version, value }
        nvmlRowRemapperHistogramValues_t { max, high, partial, low, none }
        nvmlMemory_t { total, free, used }
        nvmlMemory_v2_t { version, total, reserved, free, used }
        nvmlBAR1Memory_t { bar1Total, bar1Free, bar1Used }
        nvmlConfComputeMemSizeInfo_t { protectedMemSizeKib, unprotectedMemSizeKib }
        nvmlProcessInfo_v1_t { pid, usedGpuMemory }
        nvmlProcessInfo_v2_t { pid, usedGpuMemory, gpuInstanceId, computeInstanceId }
        nvmlProcessInfo_t { pid, usedGpuMemory, gpuInstanceId, computeInstanceId }
        nvmlProcessDetail_v1_t { pid, usedGpuMemory, gpuInstanceId, computeInstanceId, usedGpuCcProtectedMemory }
        nvmlProcessDetailList_t { version, mode, numProcArrayEntries, procArray }
        nvmlProcessUtilizationSample_t { pid, timeStamp, smUtil, memUtil, encUtil, decUtil }
        nvmlAccountingStats_t {
            gpuUtilization, memoryUtilization, maxMemoryUsage, time, startTime, isRunning, reserved,
        }
        nvmlUtilization_t { gpu, memory }
        nvmlGpmSupport_t { version, isSupportedDevice }
        nvmlGpmMetric_t { metricId, nvmlReturn, value, metricInfo }
        nvmlTemperature_t { version, sensorType, temperature }
        nvmlEccErrorCounts_t { l1Cache, l2Cache, deviceMemory, registerFile }
        nvmlFieldValue_t { fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value }
        nvmlValue_t { dVal, siVal, uiVal, ulVal, ullVal, sllVal, usVal }
        nvmlEventData_t { device, eventType, eventData, gpuInstanceId, computeInstanceId }
        nvmlDeviceAttributes_t {
            multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
            sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount, memorySizeMB,
        }
        nvmlGpuInstanceProfileInfo_t {
            id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount,
            encoderCount, jpegCount, ofaCount, memorySizeMB,
        }
        nvmlGpuInstanceProfileInfo_v2_t {
            version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount,
            decoderCount, encoderCount, jpegCount, ofaCount, memorySizeMB, name,
        }
    }
}

/// The fields of `nvmlGpmMetricsGet_t`. Its size is not compared, because newer headers have a longer array at its end.
fn metrics_request() -> [(&'static str, usize); 5] {
    [
        ("version", offset_of!(sys::nvmlGpmMetricsGet_t, version)),
        ("numMetrics", offset_of!(sys::nvmlGpmMetricsGet_t, numMetrics)),
        ("sample1", offset_of!(sys::nvmlGpmMetricsGet_t, sample1)),
        ("sample2", offset_of!(sys::nvmlGpmMetricsGet_t, sample2)),
        ("metrics", offset_of!(sys::nvmlGpmMetricsGet_t, metrics)),
    ]
}

/// Constants by their names in the header.
macro_rules! constants {
    ($($prefix:ident { $($name:ident),* $(,)? })*) => {
        vec![$($((stringify!($name), sys::$name as i64)),*),*]
    };
}

fn constants() -> Vec<(&'static str, i64)> {
    use sys::field_id as id;
    let mut all = constants! {
        plain {
            NVML_DEVICE_ARCH_AMPERE, NVML_DEVICE_ARCH_ADA, NVML_DEVICE_ARCH_HOPPER, NVML_DEVICE_ARCH_BLACKWELL,
            NVML_BUS_TYPE_PCIE, NVML_BUS_TYPE_UNKNOWN, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE,
            nvmlEventTypeXidCriticalError, nvmlEventTypeAll, nvmlClocksEventReasonGpuIdle,
            nvmlClocksEventReasonSwPowerCap,
        }
    };
    macro_rules! of {
        ($($header:ident = $value:expr;)*) => { all.extend([$((stringify!($header), i64::from($value))),*]) };
    }
    of! {
        NVML_SUCCESS = sys::nvmlReturn_enum_NVML_SUCCESS;
        NVML_ERROR_UNINITIALIZED = sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED;
        NVML_ERROR_INVALID_ARGUMENT = sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
        NVML_ERROR_NOT_SUPPORTED = sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
        NVML_ERROR_NO_PERMISSION = sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION;
        NVML_ERROR_ALREADY_INITIALIZED = sys::nvmlReturn_enum_NVML_ERROR_ALREADY_INITIALIZED;
        NVML_ERROR_NOT_FOUND = sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND;
        NVML_ERROR_INSUFFICIENT_SIZE = sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE;
        NVML_ERROR_INSUFFICIENT_POWER = sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_POWER;
        NVML_ERROR_DRIVER_NOT_LOADED = sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED;
        NVML_ERROR_TIMEOUT = sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT;
        NVML_ERROR_IRQ_ISSUE = sys::nvmlReturn_enum_NVML_ERROR_IRQ_ISSUE;
        NVML_ERROR_LIBRARY_NOT_FOUND = sys::nvmlReturn_enum_NVML_ERROR_LIBRARY_NOT_FOUND;
        NVML_ERROR_FUNCTION_NOT_FOUND = sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND;
        NVML_ERROR_CORRUPTED_INFOROM = sys::nvmlReturn_enum_NVML_ERROR_CORRUPTED_INFOROM;
        NVML_ERROR_GPU_IS_LOST = sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST;
        NVML_ERROR_RESET_REQUIRED = sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED;
        NVML_ERROR_OPERATING_SYSTEM = sys::nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM;
        NVML_ERROR_LIB_RM_VERSION_MISMATCH = sys::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH;
        NVML_ERROR_IN_USE = sys::nvmlReturn_enum_NVML_ERROR_IN_USE;
        NVML_ERROR_MEMORY = sys::nvmlReturn_enum_NVML_ERROR_MEMORY;
        NVML_ERROR_NO_DATA = sys::nvmlReturn_enum_NVML_ERROR_NO_DATA;
        NVML_ERROR_VGPU_ECC_NOT_SUPPORTED = sys::nvmlReturn_enum_NVML_ERROR_VGPU_ECC_NOT_SUPPORTED;
        NVML_ERROR_INSUFFICIENT_RESOURCES = sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES;
        NVML_ERROR_FREQ_NOT_SUPPORTED = sys::nvmlReturn_enum_NVML_ERROR_FREQ_NOT_SUPPORTED;
        NVML_ERROR_ARGUMENT_VERSION_MISMATCH = sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
        NVML_ERROR_DEPRECATED = sys::nvmlReturn_enum_NVML_ERROR_DEPRECATED;
        NVML_ERROR_NOT_READY = sys::nvmlReturn_enum_NVML_ERROR_NOT_READY;
        NVML_ERROR_GPU_NOT_FOUND = sys::nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND;
        NVML_ERROR_INVALID_STATE = sys::nvmlReturn_enum_NVML_ERROR_INVALID_STATE;
        NVML_ERROR_RESET_TYPE_NOT_SUPPORTED = sys::nvmlReturn_enum_NVML_ERROR_RESET_TYPE_NOT_SUPPORTED;
        NVML_ERROR_UNKNOWN = sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN;
        NVML_BRAND_NVIDIA = sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA;
        NVML_BRAND_GEFORCE = sys::nvmlBrandType_enum_NVML_BRAND_GEFORCE;
        NVML_CLOCK_GRAPHICS = sys::nvmlClockType_enum_NVML_CLOCK_GRAPHICS;
        NVML_CLOCK_SM = sys::nvmlClockType_enum_NVML_CLOCK_SM;
        NVML_CLOCK_MEM = sys::nvmlClockType_enum_NVML_CLOCK_MEM;
        NVML_CLOCK_VIDEO = sys::nvmlClockType_enum_NVML_CLOCK_VIDEO;
        NVML_CLOCK_ID_CURRENT = sys::nvmlClockId_enum_NVML_CLOCK_ID_CURRENT;
        NVML_TEMPERATURE_GPU = sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU;
        NVML_TEMPERATURE_THRESHOLD_SHUTDOWN = sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN;
        NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN;
        NVML_TEMPERATURE_THRESHOLD_MEM_MAX = sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_MEM_MAX;
        NVML_TEMPERATURE_THRESHOLD_GPU_MAX = sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_GPU_MAX;
        NVML_PSTATE_0 = sys::nvmlPStates_enum_NVML_PSTATE_0;
        NVML_PSTATE_8 = sys::nvmlPStates_enum_NVML_PSTATE_8;
        NVML_MEMORY_ERROR_TYPE_CORRECTED = sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED;
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED = sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED;
        NVML_MEMORY_LOCATION_DRAM = sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_DRAM;
        NVML_MEMORY_LOCATION_SRAM = sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_SRAM;
        NVML_PCIE_UTIL_COUNT = sys::nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_COUNT;
        NVML_VALUE_TYPE_UNSIGNED_INT = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
        NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        NVML_VALUE_TYPE_SIGNED_INT = sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT;
        NVML_FI_DEV_ECC_CURRENT = id::NVML_FI_DEV_ECC_CURRENT;
        NVML_FI_DEV_ECC_SBE_VOL_TOTAL = id::NVML_FI_DEV_ECC_SBE_VOL_TOTAL;
        NVML_FI_DEV_ECC_DBE_AGG_TOTAL = id::NVML_FI_DEV_ECC_DBE_AGG_TOTAL;
        NVML_FI_DEV_RETIRED_SBE = id::NVML_FI_DEV_RETIRED_SBE;
        NVML_FI_DEV_MEMORY_TEMP = id::NVML_FI_DEV_MEMORY_TEMP;
        NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION = id::NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION;
        NVML_FI_DEV_PCIE_REPLAY_COUNTER = id::NVML_FI_DEV_PCIE_REPLAY_COUNTER;
        NVML_FI_DEV_REMAPPED_COR = id::NVML_FI_DEV_REMAPPED_COR;
        NVML_FI_DEV_REMAPPED_FAILURE = id::NVML_FI_DEV_REMAPPED_FAILURE;
        NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;
        NVML_GPU_RECOVERY_ACTION_NONE = 0;
        NVML_GPU_RECOVERY_ACTION_GPU_RESET = 1;
        NVML_GPU_RECOVERY_ACTION_NODE_REBOOT = 2;
        NVML_GPU_RECOVERY_ACTION_DRAIN_P2P = 3;
        NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET = 4;
        NVML_DEVICE_ADDRESSING_MODE_NONE = 0;
        NVML_DEVICE_ADDRESSING_MODE_HMM = 1;
        NVML_DEVICE_ADDRESSING_MODE_ATS = 2;
        NVML_FI_DEV_POWER_AVERAGE = 185;
        NVML_GPM_METRICS_GET_VERSION = sys::NVML_GPM_METRICS_GET_VERSION;
        NVML_GPM_SUPPORT_VERSION = sys::NVML_GPM_SUPPORT_VERSION;
        NVML_GPM_METRIC_GRAPHICS_UTIL = 1;
        NVML_GPM_METRIC_SM_UTIL = 2;
        NVML_GPM_METRIC_SM_OCCUPANCY = 3;
        NVML_GPM_METRIC_INTEGER_UTIL = 4;
        NVML_GPM_METRIC_ANY_TENSOR_UTIL = 5;
        NVML_GPM_METRIC_HMMA_TENSOR_UTIL = 7;
        NVML_GPM_METRIC_DRAM_BW_UTIL = 10;
        NVML_GPM_METRIC_FP64_UTIL = 11;
        NVML_GPM_METRIC_FP32_UTIL = 12;
        NVML_GPM_METRIC_FP16_UTIL = 13;
        NVML_GPM_METRIC_PCIE_TX_PER_SEC = 20;
        NVML_GPM_METRIC_PCIE_RX_PER_SEC = 21;
        NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC = 60;
        NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC = 61;
        NVML_GPM_METRIC_C2C_TOTAL_TX_PER_SEC = 100;
        NVML_GPM_METRIC_C2C_TOTAL_RX_PER_SEC = 101;
        NVML_GPM_METRIC_C2C_DATA_TX_PER_SEC = 102;
        NVML_GPM_METRIC_C2C_DATA_RX_PER_SEC = 103;
        NVML_FI_DEV_POWER_INSTANT = 186;
        NVML_FI_DEV_POWER_CURRENT_LIMIT = 190;
        NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT = 193;
        NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT = 194;
        NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT = 195;
        NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT = 196;
        NVML_GPU_INSTANCE_PROFILE_1_SLICE = 0;
        NVML_GPU_INSTANCE_PROFILE_2_SLICE = 1;
        NVML_GPU_INSTANCE_PROFILE_3_SLICE = 2;
        NVML_GPU_INSTANCE_PROFILE_4_SLICE = 3;
        NVML_GPU_INSTANCE_PROFILE_7_SLICE = 4;
        NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2 = 9;
    }
    all
}

/// The NVML functions that the built library exports, read from its symbol table.
fn exported() -> Vec<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(rig::library()).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split_whitespace().nth(2));
    names.filter(|name| name.starts_with("nvml")).map(str::to_owned).collect()
}

/// The values according to C: compiles a program against the header and reads its output, which consists of lines of
/// the form `name value`.
fn ask_c(header: &Path, functions: &[String]) -> BTreeMap<String, i64> {
    let mut program = String::from("#define NVML_NO_UNVERSIONED_FUNC_DEFS\n#include <nvml.h>\n#include <stddef.h>\n");
    program.push_str("#include <stdio.h>\nint main(void) {\n");
    for (name, _, fields) in layouts() {
        writeln!(program, "printf(\"{name} %lld\\n\", (long long)sizeof({name}));").unwrap();
        for (field, _) in fields {
            writeln!(program, "printf(\"{name}.{field} %lld\\n\", (long long)offsetof({name}, {field}));").unwrap();
        }
    }
    for (field, _) in metrics_request() {
        let offset = format!("offsetof(nvmlGpmMetricsGet_t, {field})");
        writeln!(program, "printf(\"nvmlGpmMetricsGet_t.{field} %lld\\n\", (long long){offset});").unwrap();
    }
    for (name, _) in constants() {
        writeln!(program, "printf(\"{name} %lld\\n\", (long long)({name}));").unwrap();
    }
    for (version, of) in [
        ("nvmlMemory_v2", "nvmlMemory_v2_t"),
        ("nvmlTemperature_v1", "nvmlTemperature_t"),
        ("nvmlPciInfoExt_v1", "nvmlPciInfoExt_t"),
        ("nvmlDeviceAddressingMode_v1", "nvmlDeviceAddressingMode_t"),
        ("nvmlProcessDetailList_v1", "nvmlProcessDetailList_t"),
        ("nvmlGpuInstanceProfileInfo_v2", "nvmlGpuInstanceProfileInfo_v2_t"),
    ] {
        writeln!(program, "printf(\"version of {of} %lld\\n\", (long long)({version}));").unwrap();
    }
    // The program does not compile if the header does not declare one of the functions.
    for name in functions {
        writeln!(program, "{{ void *declared = (void *){name}; (void)declared; }}").unwrap();
    }
    program.push_str("return 0; }\n");
    let folder = tempfile::tempdir().unwrap();
    let (source, binary) = (folder.path().join("ask.c"), folder.path().join("ask"));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-Werror=implicit-function-declaration", "-I"])
        .arg(header.parent().unwrap())
        .arg(&source)
        .arg(rig::library())
        .arg("-o")
        .arg(&binary)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let said = Command::new(&binary).env("LD_LIBRARY_PATH", rig::library().parent().unwrap()).output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    said.lines().map(|line| line.rsplit_once(' ').unwrap()).map(|(k, v)| (k.into(), v.parse().unwrap())).collect()
}

#[test]
fn the_library_is_what_nvidias_header_declares() {
    let header = std::env::var_os("NVML_H");
    if missing("nvml.h (set NVML_H to its path)", header.is_some()) {
        return;
    }
    let header = Path::new(header.as_ref().unwrap()).to_owned();
    assert!(header.is_file(), "NVML_H names no file: {}", header.display());
    let own = ["nvmlSimVersion", "nvmlSimConfigure"];
    let all = exported();
    assert!(own.iter().all(|name| all.iter().any(|n| n == name)), "{all:?}");
    let functions: Vec<String> = all.into_iter().filter(|name| !own.contains(&name.as_str())).collect();
    assert!(functions.len() > 100, "{}", functions.len());
    let c = ask_c(&header, &functions);
    let mut held = 0;
    let mut hold = |name: &str, ours: i64| {
        assert_eq!(c.get(name), Some(&ours), "{name}");
        held += 1;
    };
    for (name, size, fields) in layouts() {
        hold(name, size as i64);
        for (field, offset) in fields {
            hold(&format!("{name}.{field}"), offset as i64);
        }
    }
    for (field, offset) in metrics_request() {
        hold(&format!("nvmlGpmMetricsGet_t.{field}"), offset as i64);
    }
    for (name, value) in constants() {
        hold(name, value);
    }
    for (of, size, version) in [
        ("nvmlMemory_v2_t", size_of::<sys::nvmlMemory_v2_t>(), 2),
        ("nvmlTemperature_t", size_of::<sys::nvmlTemperature_t>(), 1),
        ("nvmlPciInfoExt_t", size_of::<sys::nvmlPciInfoExt_t>(), 1),
        ("nvmlDeviceAddressingMode_t", size_of::<sys::nvmlDeviceAddressingMode_t>(), 1),
        ("nvmlProcessDetailList_t", size_of::<sys::nvmlProcessDetailList_t>(), 1),
        ("nvmlGpuInstanceProfileInfo_v2_t", size_of::<sys::nvmlGpuInstanceProfileInfo_v2_t>(), 2),
    ] {
        hold(&format!("version of {of}"), (size | version << 24) as i64);
    }
    assert!(held > 200, "{held}");
}
