//! What programs find when they look functions up by name, as bindings for C, Go and Python do before they choose a
//! version.

#![allow(unsafe_code, reason = "the test calls the C functions")]

mod rig;

use std::ffi::{c_int, c_uint, c_void};
use std::path::Path;

use rig::Rig;

const SUCCESS: c_int = 0;
const FUNCTION_NOT_FOUND: c_int = 13;

type Plain = unsafe extern "C" fn() -> c_int;
type ByIndex = unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_int;
type OfDevice = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;

fn open(library: &Path) -> libloading::Library {
    // SAFETY: this is the library that was built with this test, or a copy of it.
    unsafe { libloading::Library::new(library) }.unwrap()
}

fn has(library: &libloading::Library, name: &str) -> bool {
    // SAFETY: the symbol is looked up and not used.
    unsafe { library.get::<*const ()>(name.as_bytes()).is_ok() }
}

/// Opens the library and returns its first GPU.
fn first_gpu(library: &libloading::Library) -> *mut c_void {
    let mut device = std::ptr::null_mut();
    // SAFETY: these are the symbols' types, and the pointer is valid.
    unsafe {
        assert_eq!(library.get::<Plain>(b"nvmlInit_v2").unwrap()(), SUCCESS);
        assert_eq!(library.get::<ByIndex>(b"nvmlDeviceGetHandleByIndex_v2").unwrap()(0, &raw mut device), SUCCESS);
    }
    device
}

#[test]
fn calls_that_were_taken_out_are_no_symbols_and_the_others_answer() {
    let scenario = include_str!("../scenarios/old-driver.toml");
    let table: toml::Table = scenario.parse().unwrap();
    let missing: Vec<&str> = table["calls_missing"].as_array().unwrap().iter().map(|c| c.as_str().unwrap()).collect();
    assert!(missing.contains(&"nvmlDeviceGetMemoryInfo_v2"));
    Rig::alone("calls_that_were_taken_out_are_no_symbols_and_the_others_answer", "old-driver", |rig| {
        let mut bytes = std::fs::read(rig::library()).unwrap();
        nvml_sim::hide(&mut bytes, missing.iter().copied()).unwrap();
        assert!(nvml_sim::hide(&mut bytes, ["nvmlDeviceGetMemoryInfo_v2"]).is_err(), "twice");
        let copy = rig.folder.join("libnvidia-ml.so.1");
        std::fs::write(&copy, bytes).unwrap();
        let (whole, old) = (open(&rig::library()), open(&copy));
        for name in missing {
            assert!(has(&whole, name) && !has(&old, name), "{name}");
        }
        for name in ["nvmlInit_v2", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses_v2"] {
            assert!(has(&old, name), "{name}");
        }
        let mut memory = [0_u64; 3];
        let device = first_gpu(&old);
        // SAFETY: `OfDevice` is the symbol's type, and there is room for three numbers.
        let answer =
            unsafe { old.get::<OfDevice>(b"nvmlDeviceGetMemoryInfo").unwrap()(device, memory.as_mut_ptr().cast()) };
        assert_eq!((answer, memory[0]), (SUCCESS, memory[1] + memory[2]));
    });
}

#[test]
fn the_profilers_streaming_switch_is_a_symbol_that_says_it_is_not_there() {
    Rig::alone("the_profilers_streaming_switch_is_a_symbol_that_says_it_is_not_there", "idle-h200", |_| {
        let library = open(&rig::library());
        let device = first_gpu(&library);
        let mut room = [0_u64; 64];
        for name in ["nvmlGpmQueryIfStreamingEnabled", "nvmlGpmSetStreamingEnabled"] {
            // SAFETY: the symbol takes a device and a pointer, and here there is room for what it could write.
            let answer = unsafe { library.get::<OfDevice>(name.as_bytes()).unwrap()(device, room.as_mut_ptr().cast()) };
            assert_eq!(answer, FUNCTION_NOT_FOUND, "{name}");
        }
        assert!(
            ["nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmMetricsGet"].iter().all(|name| has(&library, name))
        );
    });
}
