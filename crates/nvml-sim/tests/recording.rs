//! The simulator against recordings of a real H200: each call returns the same code.

#![allow(unsafe_code, reason = "the test calls the C functions")]

mod rig;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};

use rig::{Rig, recording};
use workspace_skips::missing;

/// Calls that the recording has and the simulator leaves out: no exporter needs them.
const NOT_SIMULATED: &[&str] = &[
    "nvmlDeviceGetBoardId",
    "nvmlDeviceGetInforomImageVersion",
    "nvmlDeviceGetMultiGpuBoard",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceGetHostVgpuMode",
    "nvmlDeviceGetPowerSource",
    "nvmlDeviceGetGpuOperationMode",
    "nvmlDeviceGetViolationStatus",
    "nvmlDeviceGetPcieSpeed",
    "nvmlDeviceGetPcieLinkMaxSpeed",
    "nvmlDeviceGetDefaultEccMode",
];

/// Large enough and suitably aligned for anything that NVML writes.
#[repr(C, align(16))]
struct Room([u8; 65536]);

type Call = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void) -> c_uint;

struct Library {
    library: libloading::Library,
    device: *mut c_void,
}

impl Library {
    fn open() -> Self {
        // SAFETY: this is the library that was built with this test.
        let library = unsafe { libloading::Library::new(rig::library()) }.unwrap();
        let mut opened = Self { library, device: std::ptr::null_mut() };
        let null = std::ptr::null_mut();
        assert_eq!(opened.call("nvmlInit_v2", [null; 5]), Some(0));
        let mut device: *mut c_void = null;
        let code = opened.call("nvmlDeviceGetHandleByIndex_v2", [null, (&raw mut device).cast(), null, null, null]);
        assert_eq!(code, Some(0));
        opened.device = device;
        opened
    }

    /// Integers and pointers are passed in the same registers, so one type serves every call.
    fn call(&self, name: &str, with: [*mut c_void; 5]) -> Option<c_uint> {
        // SAFETY: the arguments match the call; see `answer`.
        unsafe {
            let call = self.library.get::<Call>(name.as_bytes()).ok()?;
            Some(call(with[0], with[1], with[2], with[3], with[4]))
        }
    }

    /// Makes a call as the recorder did.
    fn answer(&self, name: &str) -> Option<c_uint> {
        let mut rooms: Vec<Box<Room>> = (0..4).map(|_| Box::new(Room([0; 65536]))).collect();
        let at: Vec<*mut c_void> = rooms.iter_mut().map(|room| (&raw mut room.0).cast()).collect();
        let int = |value: usize| std::ptr::without_provenance_mut::<c_void>(value);
        let none = std::ptr::null_mut();
        let put = |to: *mut c_void, value: u32| {
            // SAFETY: a buffer of our own.
            unsafe { to.cast::<u32>().write(value) };
        };
        let d = self.device;
        // A struct that begins with its size and its version.
        let versioned = |size: u32, version: u32| {
            put(at[0], size | version << 24);
            [d, at[0], none, none, none]
        };
        let with = match name {
            "nvmlInit" | "nvmlInit_v2" | "nvmlInitWithFlags" | "nvmlShutdown" => [none; 5],
            "nvmlSystemGetDriverVersion" | "nvmlSystemGetNVMLVersion" => [at[0], int(96), none, none, none],
            "nvmlSystemGetCudaDriverVersion"
            | "nvmlSystemGetCudaDriverVersion_v2"
            | "nvmlDeviceGetCount"
            | "nvmlDeviceGetCount_v2"
            | "nvmlEventSetCreate" => [at[0], none, none, none, none],
            "nvmlDeviceGetHandleByIndex" | "nvmlDeviceGetHandleByIndex_v2" => [none, at[0], none, none, none],
            "nvmlDeviceGetHandleByUUID" | "nvmlDeviceGetHandleByPciBusId_v2" => {
                let question = if name.contains("UUID") { "nvmlDeviceGetUUID" } else { "nvmlDeviceGetPciInfo_v3" };
                assert_eq!(self.call(question, [d, at[1], int(96), none, none]), Some(0));
                let id = if name.contains("UUID") { at[1] } else { at[1].wrapping_byte_add(36) };
                [id, at[0], none, none, none]
            }
            "nvmlDeviceGetName"
            | "nvmlDeviceGetUUID"
            | "nvmlDeviceGetSerial"
            | "nvmlDeviceGetBoardPartNumber"
            | "nvmlDeviceGetVbiosVersion" => [d, at[0], int(96), none, none],
            "nvmlDeviceGetPciInfoExt" => versioned(64, 1),
            "nvmlDeviceGetMemoryInfo_v2" => versioned(40, 2),
            "nvmlDeviceGetAddressingMode" => versioned(8, 1),
            "nvmlDeviceGetTemperatureV" => versioned(12, 1),
            "nvmlDeviceGetGpuInstanceProfileInfoV" => {
                put(at[1], 152 | 2 << 24);
                [d, none, at[1], none, none]
            }
            // A list: a pointer to its length, then one to its rows.
            name if name.contains("RunningProcesses") || name == "nvmlDeviceGetAccountingPids" => {
                put(at[0], 1024);
                [d, at[0], at[1], none, none]
            }
            "nvmlDeviceGetProcessUtilization" => [d, none, at[0], none, none],
            // One field, the memory temperature (NVML_FI_DEV_MEMORY_TEMP), as the recorder requests it.
            "nvmlDeviceGetFieldValues" => {
                put(at[0], 82);
                [d, int(1), at[0], none, none]
            }
            "nvmlDeviceGetRetiredPages" | "nvmlDeviceGetRetiredPages_v2" => {
                put(at[0], 256);
                [d, none, at[0], at[1], at[2]]
            }
            // A number (here 0), then a pointer for the result.
            "nvmlDeviceGetTemperature"
            | "nvmlDeviceGetTemperatureThreshold"
            | "nvmlDeviceGetClockInfo"
            | "nvmlDeviceGetMaxClockInfo"
            | "nvmlDeviceGetApplicationsClock"
            | "nvmlDeviceGetMaxCustomerBoostClock"
            | "nvmlDeviceGetPcieThroughput"
            | "nvmlDeviceGetFanSpeed_v2"
            | "nvmlDeviceGetGpuInstanceProfileInfo"
            | "nvmlDeviceGetMigDeviceHandleByIndex" => [d, none, at[0], none, none],
            "nvmlDeviceGetAccountingStats" => [d, int(std::process::id() as usize), at[0], none, none],
            "nvmlDeviceGetClock" | "nvmlDeviceGetTotalEccErrors" | "nvmlDeviceGetDetailedEccErrors" => {
                [d, none, none, at[0], none]
            }
            // Corrected or uncorrected, volatile, device memory.
            "nvmlDeviceGetMemoryErrorCounter" => [d, int(1), none, int(2), at[0]],
            "nvmlDeviceRegisterEvents" | "nvmlEventSetWait" | "nvmlEventSetWait_v2" | "nvmlEventSetFree" => {
                assert_eq!(self.call("nvmlEventSetCreate", [at[0], none, none, none, none]), Some(0));
                // SAFETY: written just now.
                let set = unsafe { at[0].cast::<*mut c_void>().read() };
                match name {
                    "nvmlDeviceRegisterEvents" => [d, int(8), set, none, none],
                    "nvmlEventSetFree" => [set, none, none, none, none],
                    _ => [set, at[1], none, none, none],
                }
            }
            _ => [d, at[0], at[1], at[2], at[3]],
        };
        self.call(name, with)
    }
}

impl Library {
    /// Makes a call with a different argument, as the recorder did; `None` for a variant that this test leaves out.
    fn variant(&self, name: &str) -> Option<c_uint> {
        let mut rooms: Vec<Box<Room>> = (0..2).map(|_| Box::new(Room([0; 65536]))).collect();
        let at: Vec<*mut c_void> = rooms.iter_mut().map(|room| (&raw mut room.0).cast()).collect();
        let (d, none) = (self.device, std::ptr::null_mut());
        let int = |value: usize| std::ptr::without_provenance_mut::<c_void>(value);
        // SAFETY: a buffer of our own.
        let put = |value: u32| unsafe { at[0].cast::<u32>().write(value) };
        let (call, variant) = name.split_once('/')?;
        let with = match (call, variant) {
            (_, "index-99") => [int(99), at[0], none, none, none],
            ("nvmlDeviceGetHandleByUUID", "absent") => [c"GPU-0".as_ptr().cast_mut().cast(), at[0], none, none, none],
            ("nvmlDeviceGetHandleByPciBusId_v2", "absent") => {
                [c"FFFFFFFF:7F:00.0".as_ptr().cast_mut().cast(), at[0], none, none, none]
            }
            (_, "short-buffer") => [d, at[0], int(4), none, none],
            (_, "version-0") => [d, at[0], none, none, none],
            (_, "version-1") => {
                put(40 | 1 << 24);
                [d, at[0], none, none, none]
            }
            (_, "null") => [d, none, none, none, none],
            (_, "count-only") => [d, at[0], none, none, none],
            (_, "room-1") => {
                put(1);
                [d, at[0], at[1], none, none]
            }
            ("nvmlDeviceGetTemperatureThreshold" | "nvmlDeviceGetClockInfo" | "nvmlDeviceGetMaxClockInfo", which) => {
                let number = ["shutdown", "slowdown", "memory-max", "gpu-max"].iter().position(|&w| w == which);
                let number = number.or(["graphics", "sm", "memory", "video"].iter().position(|&w| w == which))?;
                [d, int(number), at[0], none, none]
            }
            ("nvmlDeviceGetMemoryErrorCounter", place) => {
                let places = ["l1", "l2", "device-memory", "register-file", "texture", "shared", "cbu", "sram"];
                [d, int(1), none, int(places.iter().position(|&p| p == place)?), at[0]]
            }
            _ => return None,
        };
        self.call(call, with)
    }
}

/// The recorder requests the name of a live process; on an idle GPU, that process is the recorder itself.
const OF_A_PROCESS: &str = "nvmlSystemGetProcessName";

fn code_name(library: &Library, code: c_uint) -> String {
    type Text = unsafe extern "C" fn(c_int) -> *const std::ffi::c_char;
    // SAFETY: `Text` is the symbol's type, and the text that it returns is static.
    let text = unsafe {
        let text = library.library.get::<Text>(b"nvmlErrorString").unwrap();
        std::ffi::CStr::from_ptr(text(code as c_int))
    };
    text.to_str().unwrap().to_owned()
}

fn hold(scenario: &str, file: &str) {
    let recorded: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(recording(file)).unwrap()).unwrap();
    let texts = recorded["error_strings"].as_object().unwrap();
    let library = Library::open();
    let mut differ = BTreeMap::new();
    let mut held = 0;
    for (name, wanted) in recorded["calls"].as_object().unwrap() {
        let wanted = wanted.as_str().unwrap();
        if name == OF_A_PROCESS || name == "nvmlShutdown" {
            continue;
        }
        let Some(code) = library.answer(name) else {
            assert!(NOT_SIMULATED.contains(&name.as_str()), "{name} is recorded but not simulated");
            continue;
        };
        assert!(!NOT_SIMULATED.contains(&name.as_str()), "{name} is simulated but listed in NOT_SIMULATED");
        held += 1;
        let found = code_name(&library, code);
        if found != texts[wanted].as_str().unwrap() {
            differ.insert(name.clone(), (wanted.to_owned(), found));
        }
    }
    assert!(differ.is_empty(), "{scenario} is not as recorded: {differ:#?}");
    assert!(held > 80, "only {held} calls were compared");
    for (name, wanted) in recorded["variants"].as_object().unwrap() {
        if let Some(code) = library.variant(name) {
            held += 1;
            assert_eq!(code_name(&library, code), texts[wanted.as_str().unwrap()].as_str().unwrap(), "{name}");
        }
    }
    assert!(held > 110, "only {held} calls and variants were compared");
    for (name, text) in texts {
        let known = (0..1000).any(|code| code_name(&library, code) == text.as_str().unwrap());
        assert!(known, "no code has the text of {name}");
    }
}

#[test]
fn an_idle_h200_answers_as_recorded() {
    if !missing("the recording of an idle H200", recording("h200-idle.json").is_file()) {
        let test = "an_idle_h200_answers_as_recorded";
        Rig::alone(test, "idle-h200", |_| hold("idle-h200", "h200-idle.json"));
    }
}

#[test]
fn a_busy_h200_answers_as_recorded() {
    if !missing("the recording of a busy H200", recording("h200-busy.json").is_file()) {
        let test = "a_busy_h200_answers_as_recorded";
        Rig::alone(test, "busy-h200", |_| hold("busy-h200", "h200-busy.json"));
    }
}
