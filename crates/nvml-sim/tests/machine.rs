//! The simulated machine, queried through the real nvml-wrapper.

#![allow(unsafe_code, reason = "the test calls the C functions")]

mod rig;

use std::time::{Duration, Instant};

use nvml_sim::internals::GetMemoryLimits;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use rig::{Rig, eventually};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const TWO: &str = r#"
seed = 3
[[gpu]]
model = "H200"
count = 2
[[process]]
pid = 42
gpu = 1
user = "ada"
command = ["/usr/bin/python3", "train.py"]
cgroup = "0::/system.slice/train.service"
memory = "1GiB"
utilization = 0.5
"#;

fn used(memory: &UsedGpuMemory) -> Option<u64> {
    match memory {
        UsedGpuMemory::Used(bytes) => Some(*bytes),
        UsedGpuMemory::Unavailable => None,
    }
}

#[test]
fn memory_adds_up_and_the_processes_own_all_but_the_overhead() {
    Rig::alone("memory_adds_up_and_the_processes_own_all_but_the_overhead", "demo", |rig| {
        let nvml = rig.nvml();
        // GPU 1 has memory that no process owns.
        let unowned = |index| if index == 1 { 5 * GIB } else { 0 };
        for index in 0..nvml.device_count().unwrap() {
            let gpu = nvml.device_by_index(index).unwrap();
            // Memory may change between two calls: values are compared only if `used` is the same before and after.
            for _ in 0..20 {
                eventually("a moment without a change", || {
                    let memory = gpu.memory_info().unwrap();
                    assert_eq!((memory.total, memory.reserved), (150_754_820_096, 644_939_776));
                    assert_eq!(memory.total, memory.reserved + memory.used + memory.free, "{index}");
                    let processes = gpu.running_compute_processes().unwrap();
                    let owned: u64 = processes.iter().map(|p| used(&p.used_gpu_memory).unwrap()).sum();
                    let same = gpu.memory_info().unwrap().used == memory.used;
                    let all = owned + processes.len() as u64 * 8 * MIB + unowned(index);
                    same.then(|| assert_eq!(memory.used, all, "{index}"))
                });
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
}

#[test]
fn one_process_is_told_exactly() {
    Rig::alone("one_process_is_told_exactly", TWO, |rig| {
        let nvml = rig.nvml();
        assert_eq!(nvml.sys_driver_version().unwrap(), "580.159.04");
        assert_eq!(nvml.sys_nvml_version().unwrap(), "13.580.159.04");
        let [idle, busy] = [0, 1].map(|index| nvml.device_by_index(index).unwrap());
        assert_eq!(idle.memory_info().unwrap().used, 0);
        assert!(idle.running_compute_processes().unwrap().is_empty());
        assert!(matches!(idle.process_utilization_stats(0), Err(NvmlError::NotFound)));
        assert_eq!(busy.memory_info().unwrap().used, GIB + 528 * MIB);
        let processes = busy.running_compute_processes().unwrap();
        assert_eq!(processes.len(), 1);
        assert_eq!((processes[0].pid, used(&processes[0].used_gpu_memory)), (42, Some(GIB + 520 * MIB)));
        assert_eq!((processes[0].gpu_instance_id, processes[0].compute_instance_id), (None, None));
        assert!(busy.running_graphics_processes().unwrap().is_empty());
        assert_eq!(nvml.sys_process_name(42, 64).unwrap(), "/usr/bin/python3");
        let sample = eventually("a sample", || busy.process_utilization_stats(0).ok());
        assert_eq!((sample[0].pid, sample[0].sm_util), (42, 50));
        assert!(matches!(busy.process_utilization_stats(u64::MAX), Err(NvmlError::NotFound)));
        assert!(busy.power_usage().unwrap() > idle.power_usage().unwrap() + 100_000);
        assert!(busy.temperature(TemperatureSensor::Gpu).unwrap() >= idle.temperature(TemperatureSensor::Gpu).unwrap());
        assert_ne!(idle.uuid().unwrap(), busy.uuid().unwrap());
        assert_eq!(nvml.device_by_uuid(busy.uuid().unwrap()).unwrap().index().unwrap(), 1);
        assert_eq!(nvml.device_by_pci_bus_id(busy.pci_info().unwrap().bus_id).unwrap().index().unwrap(), 1);
        assert!(matches!(nvml.device_by_index(2), Err(NvmlError::InvalidArg)));
        let (first, second) = (busy.total_energy_consumption().unwrap(), {
            std::thread::sleep(Duration::from_millis(50));
            busy.total_energy_consumption().unwrap()
        });
        assert!(second > first, "{first} {second}");
    });
}

#[test]
fn limited_clocks_are_told_as_a_state_and_as_a_time() {
    Rig::alone("limited_clocks_are_told_as_a_state_and_as_a_time", "throttled", |rig| {
        let nvml = rig.nvml();
        let devices = [0, 1, 2, 3].map(|index| nvml.device_by_index(index).unwrap());
        let seconds = |field: u32, device: &nvml_wrapper::Device<'_>| {
            let read = device.field_values_for(&[FieldId(field)]).unwrap().remove(0).unwrap();
            match read.value.unwrap() {
                SampleValue::U64(nanoseconds) => nanoseconds as f64 / 1e9,
                other => panic!("{other:?}"),
            }
        };
        let began = Instant::now();
        let before = [74, 75].map(|field| devices.each_ref().map(|device| seconds(field, device)));
        std::thread::sleep(Duration::from_millis(1_300));
        let most = began.elapsed().as_secs_f64() + 0.001;
        let [capped, hot] = [(74, 0), (75, 1)].map(|(field, row)| {
            let grown = |index: usize| seconds(field, &devices[index]) - before[row][index];
            [0, 1, 2, 3].map(grown)
        });
        assert!(capped[0] > 0.5 && hot[1] > 1.0 && hot[2] > 1.0, "{capped:?} {hot:?}");
        assert!(capped.iter().chain(&hot).all(|&grown| grown <= most), "{capped:?} {hot:?} {most}");
        assert_eq!((capped[3], hot[0], hot[3]), (0.0, 0.0, 0.0));
        let reasons = |index: usize| devices[index].current_throttle_reasons().unwrap();
        assert_eq!(reasons(1), ThrottleReasons::SW_THERMAL_SLOWDOWN);
        assert_eq!(reasons(2), ThrottleReasons::HW_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN);
        assert_eq!(reasons(3), ThrottleReasons::NONE);
        let clock = |index: usize| devices[index].clock_info(Clock::SM).unwrap();
        assert!(clock(2) < clock(1) && clock(1) < clock(0) && clock(0) < clock(3));
    });
}

#[test]
fn mig_devices_have_memory_and_processes_of_their_own() {
    Rig::alone("mig_devices_have_memory_and_processes_of_their_own", "mig-a100", |rig| {
        let nvml = rig.nvml();
        let parent = nvml.device_by_index(0).unwrap();
        assert_eq!(parent.mig_mode().unwrap().current, 1);
        assert_eq!(parent.mig_device_count().unwrap(), 7);
        assert!(matches!(parent.utilization_rates(), Err(NvmlError::NotSupported)));
        assert!(matches!(parent.process_utilization_stats(0), Err(NvmlError::NotSupported)));
        assert!(matches!(parent.mig_device_by_index(1), Err(NvmlError::NotFound)));
        assert!(matches!(parent.mig_device_by_index(6), Err(NvmlError::NotFound)));
        let mut sum = 0;
        let mut listed = 0;
        let bar1 = parent.bar1_memory_info().unwrap();
        assert_eq!(bar1.total, 128 << 30);
        for (index, profile, processes, window) in
            [(0, "3g.40gb", 1, 65_535), (2, "2g.20gb", 2, 32_767), (3, "1g.10gb", 0, 16_383)]
        {
            let mig = parent.mig_device_by_index(index).unwrap();
            assert_eq!(mig.name().unwrap(), format!("NVIDIA A100-SXM4-80GB MIG {profile}"));
            assert!(mig.uuid().unwrap().starts_with("MIG-"));
            let memory = mig.memory_info().unwrap();
            assert_eq!(memory.total, memory.reserved + memory.used + memory.free);
            sum += memory.used;
            let bar1 = mig.bar1_memory_info().unwrap();
            assert_eq!((bar1.total >> 20, bar1.used > 0), (window, processes > 0), "{profile}");
            assert_eq!(bar1.total, bar1.used + bar1.free);
            let list = mig.running_compute_processes().unwrap();
            assert_eq!(list.len(), processes, "{profile}");
            assert!(list.iter().all(|process| process.gpu_instance_id.is_some()));
            listed += list.len();
        }
        assert_eq!(parent.memory_info().unwrap().used, sum);
        assert_eq!(parent.running_compute_processes().unwrap().len(), listed);
        let whole = nvml.device_by_index(1).unwrap();
        assert_eq!(whole.mig_mode().unwrap().current, 0);
        assert!(matches!(whole.mig_device_by_index(0), Err(NvmlError::NotFound)));
        assert!(whole.utilization_rates().is_ok());
    });
}

#[test]
fn a_fault_is_switched_on_and_off_while_the_library_is_open() {
    Rig::alone("a_fault_is_switched_on_and_off_while_the_library_is_open", TWO, |rig| {
        let nvml = rig.nvml();
        let [first, second] = [0, 1].map(|index| nvml.device_by_index(index).unwrap());
        rig.control("[[fault]]\ncall = \"*\"\ngpu = 1\nkind = \"error\"\ncode = \"GPU_IS_LOST\"\n");
        eventually("the loss", || matches!(second.memory_info(), Err(NvmlError::GpuLost)).then_some(()));
        assert!(matches!(nvml.device_by_index(1), Err(NvmlError::GpuLost)));
        assert!(first.memory_info().is_ok());
        rig.control("[[fault]]\nkind = \"absent\"\ngpu = 0\n");
        eventually("one GPU less", || (nvml.device_count().unwrap() == 1).then_some(()));
        assert!(matches!(first.memory_info(), Err(NvmlError::GpuLost)));
        assert_eq!(nvml.device_by_index(0).unwrap().uuid().unwrap(), second.uuid().unwrap());
        rig.control("[[fault]]\ncall = \"nvmlDeviceGetName\"\nkind = \"slow\"\ndelay = \"150ms\"\n");
        eventually("two GPUs", || (nvml.device_count().unwrap() == 2).then_some(()));
        let begin = Instant::now();
        first.name().unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(150));
        rig.control("[[fault]]\ncall = \"nvmlInit_v2\"\nkind = \"error\"\ncode = \"DRIVER_NOT_LOADED\"\n");
        eventually("a failed opening", || {
            first.memory_info().unwrap();
            let opened = nvml_wrapper::Nvml::builder().lib_path(rig::library().as_os_str()).init();
            matches!(opened, Err(NvmlError::DriverNotLoaded)).then_some(())
        });
        // A mistake in the file changes nothing.
        rig.control("[[fault]]\ncall = \"nvmlDeviceGetNam\"\nkind = \"hang\"\n");
        std::thread::sleep(Duration::from_millis(30));
        assert!(first.name().is_ok());
        rig.control("");
        eventually("all is well", || {
            first.memory_info().unwrap();
            nvml_wrapper::Nvml::builder().lib_path(rig::library().as_os_str()).init().ok().map(drop)
        });
    });
}

#[test]
fn a_call_hangs_until_the_fault_is_over_and_the_other_gpu_goes_on() {
    Rig::alone("a_call_hangs_until_the_fault_is_over_and_the_other_gpu_goes_on", TWO, |rig| {
        let nvml = rig.nvml();
        let [first, second] = [0, 1].map(|index| nvml.device_by_index(index).unwrap());
        rig.control("[[fault]]\ncall = \"nvmlDeviceGetMemoryInfo_v2\"\ngpu = 0\nkind = \"hang\"\n");
        std::thread::sleep(Duration::from_millis(20));
        second.memory_info().unwrap();
        std::thread::scope(|scope| {
            let hung = scope.spawn(|| first.memory_info().map(|memory| memory.used));
            for _ in 0..100 {
                assert!(second.memory_info().is_ok());
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!hung.is_finished());
            rig.control("");
            assert_eq!(hung.join().unwrap().unwrap(), 0);
        });
    });
}

#[test]
fn a_list_that_grows_defeats_a_program_that_asks_only_twice() {
    Rig::alone("a_list_that_grows_defeats_a_program_that_asks_only_twice", TWO, |rig| {
        let nvml = rig.nvml();
        let gpu = nvml.device_by_index(1).unwrap();
        assert_eq!(gpu.running_compute_processes().unwrap().len(), 1);
        rig.control("[[fault]]\ncall = \"nvmlDeviceGetComputeRunningProcesses_v3\"\nkind = \"grow\"\nby = 30\n");
        let first = eventually("growth", || gpu.running_compute_processes().err());
        assert!(matches!(first, NvmlError::InsufficientSize(_)), "{first:?}");
        assert_eq!(gpu.memory_info().unwrap().used, GIB + 528 * MIB);
    });
}

#[test]
fn processes_come_and_go_by_the_control_file_and_proc_holds_them() {
    Rig::alone("processes_come_and_go_by_the_control_file_and_proc_holds_them", TWO, |rig| {
        let nvml = rig.nvml();
        let gpu = nvml.device_by_index(1).unwrap();
        let pids = || gpu.running_compute_processes().unwrap().iter().map(|p| p.pid).collect::<Vec<_>>();
        let held = || {
            let all = procfs::process::all_processes_with_root(rig.procfs()).unwrap();
            let mut pids: Vec<u32> = all.map(|process| process.unwrap().pid() as u32).collect();
            pids.sort_unstable();
            pids
        };
        assert_eq!(pids(), [42]);
        assert_eq!(held(), [42]);
        rig.control("[[process]]\npid = 9\ngpu = 1\nmemory = \"2GiB\"\n");
        eventually("the second", || (pids() == [42, 9]).then_some(()));
        assert_eq!(held(), [9, 42]);
        assert_eq!(gpu.memory_info().unwrap().used, 3 * GIB + 2 * 528 * MIB);
        rig.control("");
        eventually("its end", || (pids() == [42]).then_some(()));
        assert_eq!(held(), [42]);
    });
}

#[test]
fn memory_that_no_process_owns_is_used_and_nothing_tells_of_an_owner() {
    Rig::alone("memory_that_no_process_owns_is_used_and_nothing_tells_of_an_owner", TWO, |rig| {
        let nvml = rig.nvml();
        let [idle, busy] = [0, 1].map(|index| nvml.device_by_index(index).unwrap());
        let power = idle.power_usage().unwrap();
        rig.control("[[process]]\npid = 9\ngpus = [0, 1]\ntype = []\nmemory = \"4GiB\"\n");
        eventually("the memory", || (idle.memory_info().unwrap().used == 4 * GIB).then_some(()));
        assert_eq!(busy.memory_info().unwrap().used, 5 * GIB + 528 * MIB);
        for (gpu, processes) in [(&idle, 0), (&busy, 1)] {
            assert_eq!(gpu.running_compute_processes().unwrap().len(), processes);
            assert!(gpu.running_graphics_processes().unwrap().is_empty());
        }
        assert!(matches!(nvml.sys_process_name(9, 64), Err(NvmlError::NotFound)));
        assert!(!rig.procfs().join("9").exists() && rig.procfs().join("42").is_dir());
        assert!(idle.power_usage().unwrap() < power + 10_000, "memory alone creates no context and draws no power");
        rig.control("");
        eventually("its end", || (idle.memory_info().unwrap().used == 0).then_some(()));
    });
}

#[test]
fn xids_are_told_once_and_in_order() {
    Rig::alone("xids_are_told_once_and_in_order", TWO, |rig| {
        let nvml = rig.nvml();
        let [first, second] = [0, 1].map(|index| nvml.device_by_index(index).unwrap());
        let set = nvml.create_event_set().unwrap();
        let set = first.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
        let set = second.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
        assert!(matches!(set.wait(0), Err(NvmlError::Timeout)));
        rig.control("[[xid]]\ngpu = 1\ncode = 79\n[[xid]]\ngpu = 1\ncode = 31\n[[xid]]\ngpu = 0\ncode = 13\n");
        let mut reported = Vec::new();
        for _ in 0..3 {
            let event = set.wait(10_000).unwrap();
            let Some(XidError::Value(code)) = event.event_data else { panic!("no code") };
            reported.push((event.device.index().unwrap(), code));
        }
        assert_eq!(reported, [(1, 79), (1, 31), (0, 13)]);
        assert!(matches!(set.wait(20), Err(NvmlError::Timeout)));
    });
}

#[test]
fn the_driver_s_accounting_knows_the_exact_maximum() {
    const SPIKE: &str = r#"
[[gpu]]
model = "A100-40GB"
accounting = true
[[process]]
pid = 7
memory = [{ kind = "spike", base = "1GiB", peak = "9GiB", hold = "1ms", after = "30ms" }]
[[process]]
pid = 8
start = "-3s"
end = "20ms"
memory = "2GiB"
"#;
    Rig::alone("the_driver_s_accounting_knows_the_exact_maximum", SPIKE, |rig| {
        let nvml = rig.nvml();
        let gpu = nvml.device_by_index(0).unwrap();
        assert!(gpu.is_accounting_enabled().unwrap());
        let stats = eventually("the spike", || {
            gpu.accounting_stats_for(7).ok().filter(|stats| stats.max_memory_usage == Some(9 * GIB + 520 * MIB))
        });
        assert!(stats.is_running);
        let ended = gpu.accounting_stats_for(8).unwrap();
        assert!(!ended.is_running);
        assert_eq!((ended.max_memory_usage, ended.time), (Some(2 * GIB + 520 * MIB), 3020));
        assert!(matches!(gpu.accounting_stats_for(9), Err(NvmlError::NotFound)));
    });
}

#[test]
fn a_driver_that_is_too_old_lacks_calls() {
    Rig::alone("a_driver_that_is_too_old_lacks_calls", "old-driver", |rig| {
        let nvml = rig.nvml();
        let gpu = nvml.device_by_index(0).unwrap();
        let missing = gpu.memory_info().unwrap_err();
        assert!(format!("{missing:?}").contains("FunctionNotFound"), "{missing:?}");
        assert_eq!(gpu.running_compute_processes_v2().unwrap().len(), 1);
    });
}

#[test]
fn a_board_with_a_display_lowers_its_link_while_it_is_idle() {
    const LINKS: &str = r#"
[[gpu]]
model = "RTX 4090"
count = 2
link = { generation = 3, width = 8 }
[[gpu]]
model = "H200"
link = { max_generation = 4 }
[[process]]
gpu = 1
"#;
    Rig::alone("a_board_with_a_display_lowers_its_link_while_it_is_idle", LINKS, |rig| {
        let nvml = rig.nvml();
        let link = |index| {
            let gpu = nvml.device_by_index(index).unwrap();
            let now = (gpu.current_pcie_link_gen().unwrap(), gpu.current_pcie_link_width().unwrap());
            (now, (gpu.max_pcie_link_gen().unwrap(), gpu.max_pcie_link_width().unwrap()))
        };
        assert_eq!(link(0), ((1, 8), (4, 16)));
        assert_eq!(link(1), ((3, 8), (4, 16)));
        assert_eq!(link(2), ((4, 16), (4, 16)), "what the machine allows");
    });
}

#[test]
fn unified_memory_is_not_told() {
    Rig::alone("unified_memory_is_not_told", "unified-memory", |rig| {
        let nvml = rig.nvml();
        let gpu = nvml.device_by_index(0).unwrap();
        assert!(matches!(gpu.memory_info(), Err(NvmlError::NotSupported)));
        assert_eq!(used(&gpu.running_compute_processes().unwrap()[0].used_gpu_memory), Some(24 * GIB + 520 * MIB));
        assert_eq!(used(&gpu.running_graphics_processes().unwrap()[0].used_gpu_memory), None);
    });
}

const LIMITED: &str = r#"
driver = { version = "610.43.02", cuda = 13050 }
[[gpu]]
model = "H200"
count = 2
[[process]]
pid = 42
cgroup = "0::/system.slice/train.service/worker"
memory = "1GiB"
[[process]]
pid = 43
cgroup = "0::/system.slice/train.service2"
memory = "1GiB"
[[memory_limit]]
cgroup = "/system.slice/train.service"
hard = "8GiB"
soft = "2GiB"
[[memory_limit]]
gpu = 1
cgroup = "/system.slice"
soft = "3GiB"
"#;

/// What the call returns for a cgroup: the code, and the soft limit, the hard limit and the bytes in use.
fn memory_limits(nvml: &nvml_wrapper::Nvml, gpu: u32, path: &str) -> (u32, [u64; 3]) {
    type Call = unsafe extern "C" fn(*mut std::ffi::c_void, *mut GetMemoryLimits) -> u32;
    let path = std::ffi::CString::new(path).unwrap();
    let mut limits = GetMemoryLimits { name_space: path.as_ptr(), soft_limit: 7, hard_limit: 7, current_used: 7 };
    // SAFETY: this is the symbol's type, and the handle, the struct and the string in it are valid during the call.
    let code = unsafe {
        let library = libloading::Library::new(rig::library()).unwrap();
        let call = library.get::<Call>(b"nvmlDeviceGetMemoryLimits_v1").unwrap();
        call(nvml.device_by_index(gpu).unwrap().handle().cast(), &raw mut limits)
    };
    (code, [limits.soft_limit, limits.hard_limit, limits.current_used])
}

#[test]
fn a_cgroup_has_the_limits_of_the_scenario_or_of_the_control_file() {
    const UNTOUCHED: [u64; 3] = [7; 3];
    Rig::alone("a_cgroup_has_the_limits_of_the_scenario_or_of_the_control_file", LIMITED, |rig| {
        let nvml = rig.nvml();
        let of = |gpu, path: &str| memory_limits(&nvml, gpu, path);
        let context = 520 * MIB;
        let service = "/sys/fs/cgroup/system.slice/train.service";
        assert_eq!(of(0, service), (0, [2 * GIB, 8 * GIB, GIB + context]));
        assert_eq!(of(1, "/sys/fs/cgroup/system.slice"), (0, [3 * GIB, u64::MAX, 0]));
        let (not_found, operating_system) = (6, 17);
        for path in [&format!("{service}2"), &format!("{service}/worker"), "/sys/fs/cgroup/system.slice"] {
            assert_eq!(of(0, path), (not_found, UNTOUCHED), "{path}");
        }
        for path in ["", "/system.slice/train.service", &format!("{service}/work"), "/sys/fs/cgroup/user.slice"] {
            assert_eq!(of(0, path), (operating_system, UNTOUCHED), "{path}");
        }
        rig.control("[[memory_limit]]\ncgroup = \"/system.slice/train.service\"\nhard = \"4GiB\"\n");
        eventually("the limit of the control file", || (of(0, service).1[..2] == [0, 4 * GIB]).then_some(()));
        rig.control("");
        eventually("the limit of the scenario", || (of(0, service).1[..2] == [2 * GIB, 8 * GIB]).then_some(()));
    });
}

#[test]
fn an_older_driver_does_not_have_the_limits_of_cgroups() {
    Rig::alone("an_older_driver_does_not_have_the_limits_of_cgroups", TWO, |rig| {
        let answer = memory_limits(&rig.nvml(), 1, "/sys/fs/cgroup/system.slice/train.service");
        assert_eq!(answer, (13, [7; 3]), "FUNCTION_NOT_FOUND");
    });
}

const GUESTS: &str = r#"
[[gpu]]
model = "L4"
vgpu_host = true
[[gpu]]
model = "L4"
[[vgpu]]
vm = "a84d1c2e-0f3b-4c5d-8e9f-000000000001"
memory = "3GiB"
[[vgpu]]
vm = "7"
memory = "1GiB"
"#;

/// The id of each vGPU's virtual machine, its type, and the bytes of its frame buffer; or the code that the driver returned.
fn guests(nvml: &nvml_wrapper::Nvml, gpu: u32) -> Result<Vec<(String, u32, u64)>, u32> {
    use nvml_wrapper_sys::bindings::NvmlLib;
    let lib: &NvmlLib = nvml.lib();
    let is_ok = |code: u32| if code == 0 { Ok(()) } else { Err(code) };
    // SAFETY: the handle is valid, and every pointer points to what the call fills.
    unsafe {
        let device = nvml.device_by_index(gpu).unwrap();
        let mut count = 0;
        let active = lib.nvmlDeviceGetActiveVgpus.as_ref().unwrap();
        let code = active(device.handle(), &raw mut count, std::ptr::null_mut());
        assert!(code != 0 || count == 0);
        let mut ids = vec![0; count as usize];
        is_ok(active(device.handle(), &raw mut count, ids.as_mut_ptr()))?;
        let of = |id: u32| {
            let (mut text, mut kind, mut used) = ([0; 80], 9, 0);
            is_ok(lib.nvmlVgpuInstanceGetVmID.as_ref().unwrap()(id, text.as_mut_ptr(), 80, &raw mut kind))?;
            is_ok(lib.nvmlVgpuInstanceGetFbUsage.as_ref().unwrap()(id, &raw mut used))?;
            Ok((std::ffi::CStr::from_ptr(text.as_ptr()).to_str().unwrap().to_owned(), kind, used))
        };
        ids.into_iter().map(of).collect()
    }
}

#[test]
fn a_vgpu_host_lists_its_guests_and_another_gpu_has_none() {
    Rig::alone("a_vgpu_host_lists_its_guests_and_another_gpu_has_none", GUESTS, |rig| {
        let nvml = rig.nvml();
        let first = ("a84d1c2e-0f3b-4c5d-8e9f-000000000001".to_owned(), 1, 3 * GIB);
        assert_eq!(guests(&nvml, 0), Ok(vec![first.clone(), ("7".to_owned(), 0, GIB)]));
        assert_eq!(guests(&nvml, 1), Err(3), "NOT_SUPPORTED");
        rig.control("[[vgpu]]\nvm = \"8\"\nmemory = \"2GiB\"\n");
        let third = ("8".to_owned(), 0, 2 * GIB);
        eventually("the guest of the control file", || {
            (guests(&nvml, 0).unwrap().get(2) == Some(&third)).then_some(())
        });
        rig.control("");
        eventually("two guests", || (guests(&nvml, 0).unwrap().len() == 2).then_some(()));
        // A vGPU that is gone.
        let mut used = 0;
        // SAFETY: the pointer points to an integer of the right type.
        let code = unsafe { nvml.lib().nvmlVgpuInstanceGetFbUsage.as_ref().unwrap()(12, &raw mut used) };
        assert_eq!(code, 6, "NOT_FOUND");
    });
}
