//! Opening, closing, versions.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

use super::output::{put, put_text};
use super::{Symbol, answer, pass, system_calls};
use crate::clock;
use crate::code::{Answer, Code, text};
use crate::fault::Target;
use crate::library;

/// The calls that do not need the library to be open.
pub(super) const OPENING: &[Symbol] = &[
    ("nvmlInit", nvmlInit as *const ()),
    ("nvmlInit_v2", nvmlInit_v2 as *const ()),
    ("nvmlInitWithFlags", nvmlInitWithFlags as *const ()),
    ("nvmlShutdown", nvmlShutdown as *const ()),
    ("nvmlErrorString", nvmlErrorString as *const ()),
];

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    answer(|| open("nvmlInit_v2"))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> nvmlReturn_t {
    answer(|| open("nvmlInit"))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    answer(|| open("nvmlInitWithFlags"))
}

/// A fault that affects the call leaves the library as it is.
fn open(call: &'static str) -> Answer {
    pass(library::load()?, call, Target::LIBRARY, clock::now())?;
    library::count_opening();
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    answer(|| {
        let now = clock::now();
        pass(library::machine(now)?, "nvmlShutdown", Target::LIBRARY, now)?;
        library::close()
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    text(result).as_ptr()
}

system_calls! {
    fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) |sim| {
        put_text(version, length, sim.machine.driver.as_bytes())
    }
    fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) |sim| {
        put_text(version, length, sim.machine.nvml.as_bytes())
    }
    fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) = nvmlSystemGetCudaDriverVersion_v2 |sim| {
        put(version, sim.machine.cuda as c_int)
    }
    /// The name is truncated to fit the caller's buffer, as NVML does.
    fn nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint) |sim| {
        let living = sim.machine.processes.iter().find(|process| {
            !process.is_orphaned() && process.life(sim.now).is_some_and(|life| process.pid(life.number) == pid)
        });
        let program = living.and_then(|process| process.identity.command.first()).ok_or(Code::NOT_FOUND)?;
        if length == 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        put_text(name, length, &program[..program.len().min(length as usize - 1)])
    }
}
