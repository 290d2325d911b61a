//! Compares the library with NVIDIA's `nvml.h`, using a C compiler: sizes, offsets, constants, declared functions.

mod rig;

use std::ffi::c_char;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use nvml_sim::internals::GetMemoryLimits;
use nvml_wrapper_sys::bindings as sys;
use workspace_skips::missing;

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

/// The size and the fields of a struct that the bindings lack, with the header's names.
fn memory_limits() -> [Claim; 6] {
    let field = |name: &str, offset: usize| (format!("offsetof(nvmlGetMemoryLimits_v1_t, {name})"), offset as i64);
    [
        ("sizeof(nvmlGetMemoryLimits_v1_t)".to_owned(), size_of::<GetMemoryLimits>() as i64),
        field("nameSpace", offset_of!(GetMemoryLimits, name_space)),
        field("softLimit", offset_of!(GetMemoryLimits, soft_limit)),
        field("hardLimit", offset_of!(GetMemoryLimits, hard_limit)),
        field("currentUsed", offset_of!(GetMemoryLimits, current_used)),
        // All bits are set, which is -1 as a signed number.
        ("NVML_DEVICE_MEMORY_LIMIT_MAX".to_owned(), -1),
    ]
}

/// Constants by their names in the header, which follow the name of the enum.
macro_rules! constants {
    ($($module:ident { $($name:ident),* $(,)? })*) => {
        vec![$($((stringify!($name).rsplit("_enum_").next().unwrap(), $module::$name as i64)),*),*]
    };
}

fn constants() -> Vec<(&'static str, i64)> {
    use sys::field_id as id;
    // What the bindings call by the header's name, and by the name of its enum and the header's name.
    let mut all = constants! {
        sys {
            NVML_DEVICE_ARCH_AMPERE, NVML_DEVICE_ARCH_ADA, NVML_DEVICE_ARCH_HOPPER, NVML_DEVICE_ARCH_BLACKWELL,
            NVML_BUS_TYPE_PCIE, NVML_BUS_TYPE_UNKNOWN, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE,
            nvmlEventTypeXidCriticalError, nvmlEventTypeAll, nvmlClocksEventReasonGpuIdle,
            nvmlClocksEventReasonSwPowerCap, NVML_GPM_METRICS_GET_VERSION, NVML_GPM_SUPPORT_VERSION,
            nvmlReturn_enum_NVML_SUCCESS, nvmlReturn_enum_NVML_ERROR_UNINITIALIZED,
            nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
            nvmlReturn_enum_NVML_ERROR_NO_PERMISSION, nvmlReturn_enum_NVML_ERROR_ALREADY_INITIALIZED,
            nvmlReturn_enum_NVML_ERROR_NOT_FOUND, nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE,
            nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_POWER, nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED,
            nvmlReturn_enum_NVML_ERROR_TIMEOUT, nvmlReturn_enum_NVML_ERROR_IRQ_ISSUE,
            nvmlReturn_enum_NVML_ERROR_LIBRARY_NOT_FOUND, nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND,
            nvmlReturn_enum_NVML_ERROR_CORRUPTED_INFOROM, nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST,
            nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED, nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM,
            nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH, nvmlReturn_enum_NVML_ERROR_IN_USE,
            nvmlReturn_enum_NVML_ERROR_MEMORY, nvmlReturn_enum_NVML_ERROR_NO_DATA,
            nvmlReturn_enum_NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES,
            nvmlReturn_enum_NVML_ERROR_FREQ_NOT_SUPPORTED, nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            nvmlReturn_enum_NVML_ERROR_DEPRECATED, nvmlReturn_enum_NVML_ERROR_NOT_READY,
            nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND, nvmlReturn_enum_NVML_ERROR_INVALID_STATE,
            nvmlReturn_enum_NVML_ERROR_RESET_TYPE_NOT_SUPPORTED, nvmlReturn_enum_NVML_ERROR_UNKNOWN,
            nvmlBrandType_enum_NVML_BRAND_NVIDIA, nvmlBrandType_enum_NVML_BRAND_GEFORCE,
            nvmlClockType_enum_NVML_CLOCK_GRAPHICS, nvmlClockType_enum_NVML_CLOCK_SM,
            nvmlClockType_enum_NVML_CLOCK_MEM, nvmlClockType_enum_NVML_CLOCK_VIDEO,
            nvmlClockId_enum_NVML_CLOCK_ID_CURRENT, nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU,
            nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
            nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
            nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
            nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_GPU_MAX, nvmlPStates_enum_NVML_PSTATE_0,
            nvmlPStates_enum_NVML_PSTATE_8, nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED,
            nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_DRAM, nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_SRAM,
            nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_COUNT, nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT,
            nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT,
        }
        id {
            NVML_FI_DEV_ECC_CURRENT, NVML_FI_DEV_ECC_SBE_VOL_TOTAL, NVML_FI_DEV_ECC_DBE_AGG_TOTAL,
            NVML_FI_DEV_RETIRED_SBE, NVML_FI_DEV_MEMORY_TEMP, NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
            NVML_FI_DEV_PCIE_REPLAY_COUNTER, NVML_FI_DEV_REMAPPED_COR, NVML_FI_DEV_REMAPPED_FAILURE,
            NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
        }
    };
    // What the bindings lack.
    macro_rules! numbers {
        ($($header:ident = $value:literal,)*) => { all.extend([$((stringify!($header), $value)),*]) };
    }
    numbers! {
        NVML_GPU_RECOVERY_ACTION_NONE = 0, NVML_GPU_RECOVERY_ACTION_GPU_RESET = 1,
        NVML_GPU_RECOVERY_ACTION_NODE_REBOOT = 2, NVML_GPU_RECOVERY_ACTION_DRAIN_P2P = 3,
        NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET = 4, NVML_DEVICE_ADDRESSING_MODE_NONE = 0,
        NVML_DEVICE_ADDRESSING_MODE_HMM = 1, NVML_DEVICE_ADDRESSING_MODE_ATS = 2, NVML_FI_DEV_POWER_AVERAGE = 185,
        NVML_GPM_METRIC_GRAPHICS_UTIL = 1, NVML_GPM_METRIC_SM_UTIL = 2, NVML_GPM_METRIC_SM_OCCUPANCY = 3,
        NVML_GPM_METRIC_INTEGER_UTIL = 4, NVML_GPM_METRIC_ANY_TENSOR_UTIL = 5, NVML_GPM_METRIC_HMMA_TENSOR_UTIL = 7,
        NVML_GPM_METRIC_DRAM_BW_UTIL = 10, NVML_GPM_METRIC_FP64_UTIL = 11, NVML_GPM_METRIC_FP32_UTIL = 12,
        NVML_GPM_METRIC_FP16_UTIL = 13, NVML_GPM_METRIC_PCIE_TX_PER_SEC = 20, NVML_GPM_METRIC_PCIE_RX_PER_SEC = 21,
        NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC = 60, NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC = 61,
        NVML_GPM_METRIC_C2C_TOTAL_TX_PER_SEC = 100, NVML_GPM_METRIC_C2C_TOTAL_RX_PER_SEC = 101,
        NVML_GPM_METRIC_C2C_DATA_TX_PER_SEC = 102, NVML_GPM_METRIC_C2C_DATA_RX_PER_SEC = 103,
        NVML_FI_DEV_POWER_INSTANT = 186, NVML_FI_DEV_POWER_CURRENT_LIMIT = 190,
        NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT = 193, NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT = 194,
        NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT = 195, NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT = 196,
        NVML_GPU_INSTANCE_PROFILE_1_SLICE = 0, NVML_GPU_INSTANCE_PROFILE_2_SLICE = 1,
        NVML_GPU_INSTANCE_PROFILE_3_SLICE = 2, NVML_GPU_INSTANCE_PROFILE_4_SLICE = 3,
        NVML_GPU_INSTANCE_PROFILE_7_SLICE = 4, NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2 = 9,
    }
    all
}

/// The NVML functions that the built library exports, read from its symbol table. Unlike nm, readelf reads the files of
/// every architecture.
fn exported() -> Vec<String> {
    let output = Command::new("readelf").args(["--wide", "--dyn-syms"]).arg(rig::library()).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    // The columns are the number, value, size, type, binding, visibility, section and name.
    let symbols = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let defined = symbols.filter(|columns| columns.len() == 8 && columns[6] != "UND" && columns[7].starts_with("nvml"));
    defined.map(|columns| columns[7].to_owned()).collect()
}

/// An expression in C, and its value in the bindings.
type Claim = (String, i64);

fn claims() -> Vec<Claim> {
    let mut all = vec![("(char)-1 < 0".to_owned(), i64::from(c_char::MIN != 0))];
    for (name, size, fields) in layouts() {
        all.push((format!("sizeof({name})"), size as i64));
        all.extend(fields.into_iter().map(|(field, offset)| (format!("offsetof({name}, {field})"), offset as i64)));
    }
    let nested = [
        ("shortName", offset_of!(sys::nvmlGpmMetric_t, metricInfo.shortName)),
        ("longName", offset_of!(sys::nvmlGpmMetric_t, metricInfo.longName)),
        ("unit", offset_of!(sys::nvmlGpmMetric_t, metricInfo.unit)),
    ];
    all.extend(nested.map(|(field, offset)| (format!("offsetof(nvmlGpmMetric_t, metricInfo.{field})"), offset as i64)));
    all.extend(memory_limits());
    for (field, offset) in metrics_request() {
        all.push((format!("offsetof(nvmlGpmMetricsGet_t, {field})"), offset as i64));
    }
    for (name, value) in constants() {
        all.push((name.to_owned(), value));
    }
    for (name, size, version) in [
        ("nvmlMemory_v2", size_of::<sys::nvmlMemory_v2_t>(), 2),
        ("nvmlTemperature_v1", size_of::<sys::nvmlTemperature_t>(), 1),
        ("nvmlPciInfoExt_v1", size_of::<sys::nvmlPciInfoExt_t>(), 1),
        ("nvmlDeviceAddressingMode_v1", size_of::<sys::nvmlDeviceAddressingMode_t>(), 1),
        ("nvmlProcessDetailList_v1", size_of::<sys::nvmlProcessDetailList_t>(), 1),
        ("nvmlGpuInstanceProfileInfo_v2", size_of::<sys::nvmlGpuInstanceProfileInfo_v2_t>(), 2),
    ] {
        all.push((name.to_owned(), (size | version << 24) as i64));
    }
    all
}

/// Compiles a program that is valid only if the header declares the functions and the compiler computes the claimed values.
/// The program is not run, so the compiler may be for another machine, but must be for the one that this test was built
/// for. The error is what the compiler printed.
fn compile(header: &Path, functions: &[String], claims: &[Claim]) -> Result<(), String> {
    let arch = std::env::consts::ARCH;
    let mut program = format!("#ifndef __{arch}__\n#error \"the compiler is not for {arch}\"\n#endif\n");
    program.push_str("#define NVML_NO_UNVERSIONED_FUNC_DEFS\n#include <nvml.h>\n#include <stddef.h>\n");
    for (expression, value) in claims {
        writeln!(program, "_Static_assert((long long)({expression}) == {value}LL, \"{expression} is {value}\");")
            .unwrap();
    }
    program.push_str("void *declared[] = {\n");
    for name in functions {
        writeln!(program, "(void *){name},").unwrap();
    }
    program.push_str("};\n");
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("claims.c");
    std::fs::write(&source, program).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut words = compiler.split_whitespace();
    let compiled = Command::new(words.next().unwrap())
        .args(words)
        .args(["-std=gnu11", "-c", "-I"])
        .arg(header.parent().unwrap())
        .arg(&source)
        .arg("-o")
        .arg(folder.path().join("claims.o"))
        .output()
        .unwrap();
    if compiled.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&compiled.stderr).into_owned()) }
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
    let claims = claims();
    assert!(claims.len() > 200, "{}", claims.len());
    compile(&header, &functions, &claims).unwrap();

    // The compiler refuses a wrong value and an unknown function.
    for at in [0, 1, 2, claims.len() - 1] {
        let mut wrong = claims.clone();
        wrong[at].1 += 1;
        let said = compile(&header, &functions, &wrong).unwrap_err();
        assert!(said.contains(&format!("{} is {}", wrong[at].0, wrong[at].1)), "{said}");
    }
    let said = compile(&header, &["nvmlNothing".to_owned()], &[]).unwrap_err();
    assert!(said.contains("nvmlNothing"), "{said}");
}
