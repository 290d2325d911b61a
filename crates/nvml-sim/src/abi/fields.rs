//! `nvmlDeviceGetFieldValues`: each field has its own return code.

use std::ffi::c_int;

use nvml_wrapper_sys::bindings as sys;
use sys::field_id as id;

use super::{On, counters, device_calls, links};
use crate::catalog::Ecc;
use crate::clock;
use crate::code::{Answer, Code};
use crate::scenario::grammar::Implausible;

/// A value with its NVML type.
enum Value {
    Int(u32),
    Signed(i32),
    Long(u64),
}

/// `nvml.h` declares no field with a number above this.
const LAST_FIELD: u32 = 300;
/// Power now and on average, and the limit in force; nvml-wrapper-sys has no names for them (`nvml.h` 13).
const POWER_AVERAGE: u32 = 185;
const POWER_INSTANT: u32 = 186;
const POWER_LIMIT: u32 = 190;

/// The first driver that has the recovery action.
const RECOVERY_SINCE: u32 = 565;

/// The recovery action, or a code that does not exist.
fn recovery_action(on: &On) -> u32 {
    match on.implausible() {
        Some(Implausible::Above) => 1_000,
        Some(Implausible::Ones) => u32::MAX,
        Some(Implausible::Zeros) => 0,
        None => on.gpu.written.errors.recovery_action,
    }
}

/// The nanoseconds for which a limit held. A GPU without a board of its own counts none.
fn limited(on: &On, field: u32) -> Answer<Value> {
    if on.gpu.model.pcie.is_none() {
        return Err(Code::NOT_SUPPORTED);
    }
    if on.implausible() == Some(Implausible::Ones) {
        return Ok(Value::Long(u64::MAX));
    }
    let sums = on.machine.sums(on.gpu, on.now);
    Ok(Value::Long(match field {
        id::NVML_FI_DEV_PERF_POLICY_POWER => sums.capped.unsigned_abs(),
        id::NVML_FI_DEV_PERF_POLICY_THERMAL => sums.hot.unsigned_abs(),
        _ => 0,
    }))
}

/// The fields of NVLinks and C2C links.
fn link_value(on: &On, field: u32, scope: u32) -> Answer<Value> {
    // A sum over all links has the kind in the order of `nvmlNvLinkErrorCounter_t`.
    let total = |kind| {
        if links::nvlink(on)?.totals {
            links::nvlink_errors(on, kind, None).map(Value::Long)
        } else {
            Err(Code::NOT_SUPPORTED)
        }
    };
    let all = |value: fn(&On) -> Answer<u64>| {
        if scope == u32::MAX { value(on).map(Value::Long) } else { Err(Code::INVALID_ARGUMENT) }
    };
    match field {
        id::NVML_FI_DEV_NVLINK_LINK_COUNT => links::nvlinks(on).map(Value::Int),
        id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL => total(0),
        id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL => total(1),
        id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL => total(2),
        id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL => total(3),
        id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS => {
            let nvlink = links::nvlink(on)?;
            let recoveries = nvlink.errors.iter().map(|of| of[2]).sum();
            if nvlink.fifth && scope == u32::MAX { Ok(Value::Long(recoveries)) } else { Err(Code::NOT_SUPPORTED) }
        }
        id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX => all(|on| links::nvlink_traffic(on, 0)),
        id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX => all(|on| links::nvlink_traffic(on, 1)),
        id::NVML_FI_DEV_C2C_LINK_COUNT => {
            on.gpu.written.c2c.map(|c2c| Value::Int(c2c.links)).ok_or(Code::NOT_SUPPORTED)
        }
        id::NVML_FI_DEV_C2C_LINK_GET_STATUS => {
            let c2c = on.gpu.written.c2c.ok_or(Code::NOT_SUPPORTED)?;
            if scope < c2c.links { Ok(Value::Int(u32::from(scope >= c2c.down))) } else { Err(Code::INVALID_ARGUMENT) }
        }
        _ => Err(Code::NOT_SUPPORTED),
    }
}

fn value(on: &On, field: u32, scope: u32) -> Answer<Value> {
    on.whole()?;
    let errors = &on.gpu.written.errors;
    let ecc = |count: u64| if on.gpu.model.ecc == Ecc::On { Ok(Value::Long(count)) } else { Err(Code::NOT_SUPPORTED) };
    let rows = |count: u32| counters::remaps(on).map(|()| Value::Long(count.into()));
    let pages = |cause| counters::retired(on, cause).map(|pages| Value::Long(pages.into()));
    let link = |count: u32| if on.gpu.model.pcie.is_some() { Ok(Value::Int(count)) } else { Err(Code::NOT_SUPPORTED) };
    let milliwatts = |watts: f64| Ok(Value::Int((watts * 1e3) as u32));
    match field {
        id::NVML_FI_DEV_ECC_CURRENT => counters::ecc_mode(on).map(|mode| Value::Long(mode.into())),
        id::NVML_FI_DEV_ECC_SBE_VOL_TOTAL | id::NVML_FI_DEV_ECC_SBE_AGG_TOTAL => ecc(errors.ecc_corrected),
        id::NVML_FI_DEV_ECC_DBE_VOL_TOTAL | id::NVML_FI_DEV_ECC_DBE_AGG_TOTAL => ecc(errors.ecc_uncorrected),
        id::NVML_FI_DEV_RETIRED_SBE => pages(0),
        id::NVML_FI_DEV_RETIRED_DBE => pages(1),
        id::NVML_FI_DEV_RETIRED_PENDING => pages(0).map(|_| Value::Long(0)),
        // Recorded: the memory was at 35 °C with the chip at 33 °C, and at 41 °C with the chip at 49 °C.
        id::NVML_FI_DEV_MEMORY_TEMP if on.gpu.model.has_memory_sensor() => {
            Ok(Value::Int((19.0 + on.machine.temperature(on.gpu, on.now) * 0.46) as u32))
        }
        id::NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION => Ok(Value::Long(on.machine.sums(on.gpu, on.now).energy as u64)),
        id::NVML_FI_DEV_PCIE_REPLAY_COUNTER => link(errors.pcie_replays),
        id::NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER => link(0),
        id::NVML_FI_DEV_REMAPPED_COR => rows(errors.remapped_correctable),
        id::NVML_FI_DEV_REMAPPED_UNC => rows(errors.remapped_uncorrectable),
        id::NVML_FI_DEV_REMAPPED_PENDING => rows(errors.remap_pending.into()),
        id::NVML_FI_DEV_REMAPPED_FAILURE => rows(errors.remap_failed.into()),
        POWER_AVERAGE | POWER_INSTANT => milliwatts(on.machine.power(on.gpu, on.now)),
        POWER_LIMIT if on.gpu.model.pcie.is_some() => milliwatts(on.gpu.model.power[2]),
        id::NVML_FI_DEV_PERF_POLICY_POWER..=id::NVML_FI_DEV_PERF_POLICY_RELIABILITY => limited(on, field),
        id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION if on.machine.driver_major() >= RECOVERY_SINCE => {
            Ok(Value::Int(recovery_action(on)))
        }
        // A driver does not know the numbers of later fields.
        id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION => Err(Code::INVALID_ARGUMENT),
        // Shutdown and slowdown as distances from the target temperature (recorded).
        193 if on.gpu.model.has_memory_sensor() => Ok(Value::Signed(-8)),
        194 if on.gpu.model.has_memory_sensor() => Ok(Value::Signed(-2)),
        195 | 196 if on.gpu.model.has_memory_sensor() => Ok(Value::Signed(0)),
        field if field == 0 || field > LAST_FIELD => Err(Code::INVALID_ARGUMENT),
        field => link_value(on, field, scope),
    }
}

device_calls! {
    fn nvmlDeviceGetFieldValues(count: c_int, values: *mut sys::nvmlFieldValue_t) |on| {
        if values.is_null() || count < 1 {
            return Err(Code::INVALID_ARGUMENT);
        }
        for at in 0..count as usize {
            let field = &mut *values.add(at);
            field.timestamp = (clock::zero() + on.now) / 1_000;
            field.latencyUsec = 0;
            field.nvmlReturn = sys::nvmlReturn_enum_NVML_SUCCESS;
            match value(on, field.fieldId, field.scopeId) {
                Ok(Value::Int(v)) => {
                    field.valueType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
                    field.value = sys::nvmlValue_t { uiVal: v };
                }
                Ok(Value::Signed(v)) => {
                    field.valueType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT;
                    field.value = sys::nvmlValue_t { siVal: v };
                }
                Ok(Value::Long(v)) => {
                    field.valueType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
                    field.value = sys::nvmlValue_t { ullVal: v };
                }
                Err(code) => field.nvmlReturn = code.0,
            }
        }
        Ok(())
    }
}
