//! NVML's C functions. A call that is not simulated is not a symbol of this library.
//!
//! Every function follows the same steps: it checks that the library is open and that this driver has the call, applies
//! the faults that affect the call, and then returns its result. The caller guarantees that its pointers are valid, as
//! with NVIDIA's library; NULL is rejected.

#![allow(unsafe_code, reason = "the interface is C: the caller guarantees its pointers")]

mod accounting;
mod boards;
mod configure;
mod counters;
mod devices;
mod events;
mod fields;
mod gpm;
mod handles;
pub(crate) mod limits;
mod links;
mod lists;
mod memory;
mod mig;
pub(crate) mod numbers;
mod output;
mod system;
mod telemetry;
mod vgpu;

use std::panic::{AssertUnwindSafe, catch_unwind};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_enum_NVML_SUCCESS, nvmlReturn_t};

use crate::clock::{self, Nanos};
use crate::code::{Answer, Code};
use crate::fault::{Fault, Kind, Target};
use crate::library;
use crate::machine::{Gpu, Instance, Machine};
use crate::scenario::grammar::Implausible;

/// How often a hanging call checks whether the fault is over.
const HANG_STEP: std::time::Duration = std::time::Duration::from_millis(4);

/// What the body of a call on a device receives.
pub(crate) struct On {
    pub(crate) machine: &'static Machine,
    pub(crate) gpu: &'static Gpu,
    /// The MIG device, if the handle belongs to one.
    pub(crate) instance: Option<&'static Instance>,
    pub(crate) now: Nanos,
    pub(crate) call: &'static str,
}

impl On {
    /// Rejects a MIG device's handle: the call is for whole GPUs.
    pub(crate) fn whole(&self) -> Answer {
        if self.instance.is_some() { Err(Code::NOT_SUPPORTED) } else { Ok(()) }
    }

    /// Rejects the handles of GPUs with MIG enabled and of MIG devices.
    pub(crate) fn uncut(&self) -> Answer {
        if self.instance.is_some() || self.gpu.mig.is_some() { Err(Code::NOT_SUPPORTED) } else { Ok(()) }
    }
}

/// A function of the library: its name and its address.
pub(crate) type Symbol = (&'static str, *const ());

/// Defines calls and the table of their symbols. After an equals sign: another call with the same answer. `$run` is
/// passed to [`call`].
macro_rules! calls {
    ($table:ident $run:tt
     $($(#[$doc:meta])* fn $name:ident $arguments:tt $(= $other:ident)* |$on:ident| $body:block)*) => {
        pub(super) const $table: &[crate::abi::Symbol] =
            &[$((stringify!($name), $name as *const ()) $(, (stringify!($other), $other as *const ()))*),*];
        $(
            crate::abi::call! { $run $name $arguments |$on| $body }
            $(crate::abi::call! { $run $other $arguments |$on| $body })*
        )*
    };
}

/// Defines calls that take no device. `|sim| { … }` receives the machine and the time.
macro_rules! system_calls {
    ($($calls:tt)*) => { crate::abi::calls! { SYSTEM [system()] $($calls)* } };
}

/// Defines calls on a device. `|on| { … }` receives the device, the machine and the time.
macro_rules! device_calls {
    ($($calls:tt)*) => { crate::abi::calls! { DEVICE [device(device)] $($calls)* } };
}

/// Defines a call whose body runs in a function of this module. In parentheses after the function: what the call receives
/// before its own arguments.
macro_rules! call {
    ([$run:ident($($handle:ident)?)] $name:ident ($($arg:ident: $type:ty),* $(,)?) |$on:ident| $body:block) => {
        #[unsafe(no_mangle)]
        #[allow(unused_variables, reason = "some calls ignore their arguments")]
        unsafe extern "C" fn $name(
            $($handle: nvml_wrapper_sys::bindings::nvmlDevice_t,)?
            $($arg: $type),*
        ) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            // SAFETY: the caller vouches for its pointers; `output` refuses NULL.
            #[allow(unused_unsafe, reason = "some calls write nothing")]
            crate::abi::$run(stringify!($name), $($handle,)? &mut |$on| unsafe { $body })
        }
    };
}
pub(crate) use {call, calls, device_calls, system_calls};

/// The names of all simulated calls.
pub(crate) fn names() -> Vec<&'static str> {
    all().into_iter().map(|(name, _)| name).collect()
}

/// All functions that the library exports.
pub(crate) fn symbols() -> Vec<Symbol> {
    [&all(), configure::OWN].concat()
}

fn all() -> Vec<Symbol> {
    [
        system::OPENING,
        system::SYSTEM,
        gpm::SYSTEM,
        handles::SYSTEM,
        events::SYSTEM,
        vgpu::SYSTEM,
        accounting::DEVICE,
        boards::DEVICE,
        counters::DEVICE,
        devices::DEVICE,
        events::DEVICE,
        fields::DEVICE,
        gpm::DEVICE,
        limits::DEVICE,
        links::DEVICE,
        lists::DEVICE,
        memory::DEVICE,
        mig::DEVICE,
        numbers::DEVICE,
        telemetry::DEVICE,
        vgpu::DEVICE,
    ]
    .concat()
}

/// Runs a call; a panic is a bug in this library and never terminates the caller.
pub(crate) fn answer(body: impl FnOnce() -> Answer) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => nvmlReturn_enum_NVML_SUCCESS,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// A call that takes no device. Neither this function nor [`device`] is generic: generic functions would be compiled
/// once for each of the many calls, which would enlarge a program that links them in.
pub(crate) fn system(call: &'static str, body: &mut dyn FnMut(&Sim) -> Answer) -> nvmlReturn_t {
    answer(|| {
        let now = clock::now();
        let (machine, now) = pass(library::machine(now)?, call, Target::LIBRARY, now)?;
        body(&Sim { machine, now, call })
    })
}

/// What the body of a call that takes no device receives.
pub(crate) struct Sim {
    pub(crate) machine: &'static Machine,
    pub(crate) now: Nanos,
    pub(crate) call: &'static str,
}

/// A call on a device.
pub(crate) fn device(call: &'static str, handle: nvmlDevice_t, body: &mut dyn FnMut(&On) -> Answer) -> nvmlReturn_t {
    answer(|| {
        let now = clock::now();
        let machine = library::machine(now)?;
        let (gpu, instance) = handles::find(machine, handle)?;
        let target = Target { gpu: Some(gpu.index), slice: instance.map(|instance| instance.index) };
        let (machine, now) = pass(machine, call, target, now)?;
        // After a hang the machine may have been replaced; the handle still refers to the same GPU.
        let (gpu, instance) = handles::find(machine, handle)?;
        if !machine.faults.is_empty() {
            if absent(machine, gpu.index, None, now) {
                return Err(Code::GPU_IS_LOST);
            }
            if instance.is_some_and(|instance| absent(machine, gpu.index, Some(instance.index), now)) {
                return Err(Code::NOT_FOUND);
            }
        }
        if gpu.unsupported.contains(&call) {
            return Err(Code::NOT_SUPPORTED);
        }
        body(&On { machine, gpu, instance, now, call })
    })
}

/// Applies the current faults to a call; afterwards the machine and the time may have changed.
pub(crate) fn pass(
    machine: &'static Machine,
    call: &'static str,
    on: Target,
    now: Nanos,
) -> Answer<(&'static Machine, Nanos)> {
    if machine.missing.contains(&call) {
        return Err(Code::FUNCTION_NOT_FOUND);
    }
    let (mut machine, mut now) = (machine, now);
    if machine.faults.is_empty() {
        return Ok((machine, now));
    }
    let affecting = |machine: &'static Machine, now| machine.faults.iter().filter(move |f| f.affects(call, on, now));
    while affecting(machine, now).any(|fault| fault.kind == Kind::Hang) {
        std::thread::sleep(HANG_STEP);
        now = clock::now();
        // A hang continues even if another thread closes the library.
        machine = library::machine(now).unwrap_or(machine);
    }
    for fault in affecting(machine, now) {
        if let Kind::Slow(delay) = fault.kind {
            std::thread::sleep(std::time::Duration::from_nanos(delay.unsigned_abs()));
        }
    }
    now = clock::now().max(now);
    let error = affecting(machine, now).find_map(|fault| match fault.kind {
        Kind::Error(code) => Some(code),
        _ => None,
    });
    error.map_or(Ok((machine, now)), Err)
}

/// Whether a GPU, or one of its MIG devices, is absent now.
pub(crate) fn absent(machine: &Machine, gpu: u32, mig: Option<u32>, now: Nanos) -> bool {
    machine.faults.iter().any(|f| f.kind == Kind::Absent(mig) && f.gpu == Some(gpu) && f.active(now))
}

impl On {
    /// The target of the call.
    pub(crate) fn target(&self) -> Target {
        Target { gpu: Some(self.gpu.index), slice: self.instance.map(|instance| instance.index) }
    }

    /// Whether a fault has replaced the MIG device with another one.
    pub(crate) fn is_recut(&self) -> bool {
        let affecting = |fault: &Fault| fault.kind == Kind::Recut && fault.affects(self.call, self.target(), self.now);
        self.machine.faults.iter().any(affecting)
    }

    /// The implausible numbers that the call returns now.
    pub(crate) fn implausible(&self) -> Option<Implausible> {
        self.machine.faults.iter().find_map(|fault| match fault.kind {
            Kind::Implausible(value) if fault.affects(self.call, self.target(), self.now) => Some(value),
            _ => None,
        })
    }
}
