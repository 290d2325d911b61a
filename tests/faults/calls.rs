//! Every NVML call that the exporter makes answers every error code that NVML has, one after another, while one exporter
//! runs. A machine has one GPU for each code and one that stays well, so a call meets all codes at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use super::harness::{Exporter, Machine, Scrape, Series, eventually};
use super::{faults, rounds, up};

/// Every code of `nvml.h` but those that tell that the driver itself is out of reach.
const CODES: [&str; 28] = [
    "INVALID_ARGUMENT",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "ALREADY_INITIALIZED",
    "NOT_FOUND",
    "INSUFFICIENT_SIZE",
    "INSUFFICIENT_POWER",
    "TIMEOUT",
    "IRQ_ISSUE",
    "LIBRARY_NOT_FOUND",
    "FUNCTION_NOT_FOUND",
    "CORRUPTED_INFOROM",
    "GPU_IS_LOST",
    "RESET_REQUIRED",
    "OPERATING_SYSTEM",
    "IN_USE",
    "MEMORY",
    "NO_DATA",
    "VGPU_ECC_NOT_SUPPORTED",
    "INSUFFICIENT_RESOURCES",
    "FREQ_NOT_SUPPORTED",
    "ARGUMENT_VERSION_MISMATCH",
    "DEPRECATED",
    "NOT_READY",
    "GPU_NOT_FOUND",
    "INVALID_STATE",
    "RESET_TYPE_NOT_SUPPORTED",
    "UNKNOWN",
];

/// The driver is out of reach: it is opened again.
const OF_THE_DRIVER: [(&str, &str); 3] = [
    ("UNINITIALIZED", "uninitialized"),
    ("DRIVER_NOT_LOADED", "driver_not_loaded"),
    ("LIB_RM_VERSION_MISMATCH", "lib_rm_version_mismatch"),
];

/// Asked of a GPU again and again.
const REPEATED: [&str; 25] = [
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetDecoderUtilization",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetAccountingStats",
    "nvmlDeviceGetBAR1MemoryInfo",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetRetiredPages_v2",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
];

/// Asked of a GPU, or of a MIG device, when the driver is opened.
const AT_OPENING: [&str; 13] = [
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
    "nvmlDeviceGetAccountingMode",
    "nvmlDeviceGetMigMode",
];

/// What these would tell is left out without a word: who refuses them tells neither its device file nor its Xid errors, and
/// those that were counted before stay.
const SILENT: [&str; 3] = ["nvmlDeviceGetMinorNumber", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"];

/// Asked of the driver and of no GPU.
const OF_NO_GPU: [&str; 7] = [
    "nvmlInit_v2",
    "nvmlDeviceGetCount_v2",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlEventSetCreate",
    "nvmlEventSetWait_v2",
];

/// Asked only where the call above is not there.
const FALLBACKS: [&str; 5] = [
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v2",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    "nvmlSystemGetCudaDriverVersion",
];

/// A reading is not shown when it is older than a few of these: with MIG, a round of so many GPUs takes longer.
const RHYTHM: [&str; 2] = ["--telemetry.interval=100ms", "--telemetry.slow-interval=100ms"];
const RHYTHM_WITH_MIG: [&str; 2] = ["--telemetry.interval=500ms", "--telemetry.slow-interval=500ms"];

const QUICKLY: [&str; 2] = ["--telemetry.energy=true", "--process.interval=100ms"];

/// A GPU for each code behind one that stays well; each with a process whose memory does not change.
fn machine(model: &str, mig: &str) -> Machine {
    let count = CODES.len() + 1;
    let gpus = format!("seed = 1\n[[gpu]]\nmodel = \"{model}\"\ncount = {count}\naccounting = true\n{mig}");
    let slot = if mig.is_empty() { "" } else { "mig = 0\n" };
    let process =
        |gpu| format!("[[process]]\npid = {}\ngpu = {gpu}\n{slot}memory = \"2GiB\"\nutilization = 0.5\n", 100 + gpu);
    Machine::new(&(gpus + &(0..count).map(process).collect::<String>()))
}

/// There only while the driver has a sample since it was last asked, which is not at every tenth of a second.
const COMES_AND_GOES: &str = "gpu_process_sm_utilization_ratio";

/// The sum of each family on each GPU. Families that stand on several series of a GPU are one.
fn told(scrape: &Scrape) -> BTreeMap<(String, String), f64> {
    let mut told = BTreeMap::new();
    let lasting = |series: &&Series| series.name.starts_with("gpu_") && series.name != COMES_AND_GOES;
    for series in scrape.series.iter().filter(lasting) {
        if let Some(gpu) = series.label("gpu") {
            *told.entry((gpu.to_owned(), series.name.clone())).or_default() += series.value;
        }
    }
    told
}

/// Families whose 0 is a value as good as any other: they rise from it, or say that a GPU does not answer.
fn may_fall_to_zero(family: &str) -> bool {
    let counts = family.ends_with("_total") || family.ends_with("_seconds");
    counts
        || ["gpu_up", "gpu_process_memory_window_peak_bytes", "gpu_workload_memory_window_peak_bytes"].contains(&family)
}

/// Whether nothing is told that was not told before the call failed, and nothing known became 0.
fn is_nothing_invented(good: &BTreeMap<(String, String), f64>, now: &Scrape, what: &str) {
    for ((gpu, family), value) in told(now) {
        let before = good.get(&(gpu.clone(), family.clone()));
        assert!(before.is_some(), "{what}: {family} of GPU {gpu} was never told before");
        let vanished = value == 0.0 && before != Some(&0.0) && !may_fall_to_zero(&family);
        assert!(!vanished, "{what}: {family} of GPU {gpu} is said to be 0");
    }
}

/// Lets every lane do some rounds in which it meets what was switched on before.
fn some_rounds(exporter: &Exporter) -> Scrape {
    let begin = exporter.scrape();
    let done = |s: &Scrape, lane, more| rounds(s, lane) >= rounds(&begin, lane) + more;
    exporter.scrape_until("some rounds of every lane", |s| {
        done(s, "memory", 5.0) && done(s, "process", 3.0) && done(s, "telemetry", 3.0)
    })
}

/// Closes the driver and opens it again at once, with no back-off.
fn reopen(exporter: &Exporter) {
    exporter.signal(Signal::SIGUSR1);
    let down = |s: &Scrape| s.value("vram_exporter_nvml_up", &[]) == Some(0.0);
    exporter.scrape_until("the driver is let go", down);
    eventually("the driver is closed", || {
        exporter.get("/readyz").ok().filter(|answer| answer.body.contains("at the latest"))
    });
    exporter.signal(Signal::SIGUSR1);
}

fn fault_of_each_code(call: &str) -> String {
    let fault =
        |(gpu, code)| format!("[[fault]]\ncall = \"{call}\"\ngpu = {}\nkind = \"error\"\ncode = \"{code}\"\n", gpu + 1);
    CODES.iter().enumerate().map(fault).collect()
}

/// The first GPU meets no fault: all of it is told, as before.
fn is_first_gpu_well(good: &BTreeMap<(String, String), f64>, now: &Scrape, what: &str) {
    let families = |told: &BTreeMap<(String, String), f64>| -> BTreeSet<String> {
        told.keys().filter(|(gpu, _)| gpu == "0").map(|(_, family)| family.clone()).collect()
    };
    let (before, now_told) = (families(good), families(&told(now)));
    assert_eq!(up(now, "0"), Some(1.0), "{what}");
    assert_eq!(before.difference(&now_told).collect::<Vec<_>>(), Vec::<&String>::new(), "{what}");
}

/// Waits until everything is told, and gives it.
fn whole(exporter: &Exporter) -> Scrape {
    let gpus = CODES.len() + 1;
    some_rounds(exporter);
    let scrape = exporter.scrape_until("all of every GPU", |s| {
        let now = told(s);
        let first = now.keys().filter(|(gpu, _)| gpu == "0").count();
        let same = |gpu: usize| now.keys().filter(|(of, _)| *of == gpu.to_string()).count() == first;
        s.all("gpu_up").filter(|up| up.value == 1.0).count() == gpus
            && s.all("gpu_process_memory_used_bytes").count() == gpus
            && (1..gpus).all(same)
    });
    assert_eq!(exporter.get("/healthz").unwrap().status, 200);
    scrape
}

/// Faults that were counted, and how much is told of the GPUs: series and labels. Who meets a refusal counts it or tells less.
fn counted_and_told(scrape: &Scrape) -> (f64, usize) {
    let counted = scrape.all("vram_exporter_faults_total").map(|fault| fault.value).sum();
    let told = scrape.series.iter().filter(|s| s.name.starts_with("gpu_") && s.name != COMES_AND_GOES);
    (counted, told.map(|series| 1 + series.labels.len()).sum())
}

/// All codes in each call, the exporter being one and the same; afterwards all is as it was.
fn meets_all_codes(machine: &Machine, rhythm: [&str; 2], repeated: &[&str], at_opening: &[&str]) {
    let exporter = machine.export(&[&QUICKLY[..], &rhythm].concat());
    let good = whole(&exporter);
    let names = |scrape: &Scrape| told(scrape).into_keys().collect::<BTreeSet<_>>();
    let told_well = told(&good);
    let all_told = counted_and_told(&good).1;
    let mut unfelt = Vec::new();
    for call in repeated {
        let counted_before = counted_and_told(&exporter.scrape()).0;
        machine.control(&fault_of_each_code(call));
        let now = some_rounds(&exporter);
        is_first_gpu_well(&told_well, &now, call);
        is_nothing_invented(&told_well, &now, call);
        let (counted, told) = counted_and_told(&now);
        unfelt.extend((counted <= counted_before && told >= all_told).then_some(*call));
    }
    for call in at_opening {
        let counted_before = counted_and_told(&exporter.scrape()).0;
        machine.control(&fault_of_each_code(call));
        reopen(&exporter);
        exporter.scrape_until("the driver is open", |s| up(s, "0") == Some(1.0));
        some_rounds(&exporter);
        let now = exporter.scrape_until("the first GPU is whole", |s| {
            let now = told(s);
            told_well.keys().filter(|(gpu, _)| gpu == "0").all(|key| now.contains_key(key))
        });
        is_first_gpu_well(&told_well, &now, call);
        is_nothing_invented(&told_well, &now, call);
        let (counted, told) = counted_and_told(&now);
        unfelt.extend((counted <= counted_before && told >= all_told).then_some(*call));
    }
    unfelt.retain(|call| !SILENT.contains(call));
    assert_eq!(unfelt, Vec::<&str>::new(), "nobody met these refusals");
    machine.control("");
    // By itself: no GPU is given up for what it once refused.
    let after = exporter.scrape_until("all is as it was", |s| names(s) == names(&good));
    assert!(after.all("gpu_up").all(|gpu| gpu.value == 1.0));
    for lane in ["memory", "process", "telemetry", "library"] {
        assert_eq!(faults(&after, lane, "died"), 0.0);
    }
    assert_eq!(exporter.get("/healthz").unwrap().status, 200);
    assert!(!exporter.log().contains("control.toml"), "a fault was not understood: {}", exporter.log());
    assert!(exporter.terminate().success());
}

#[test]
fn every_code_in_every_call_on_a_gpu_costs_what_that_call_tells_and_comes_back() {
    let on_whole_gpus = |call: &&&str| !call.contains("MigDevice") && !call.contains("InstanceId");
    let repeated: Vec<&str> = REPEATED.iter().filter(on_whole_gpus).copied().collect();
    let at_opening: Vec<&str> = AT_OPENING.iter().filter(on_whole_gpus).copied().collect();
    meets_all_codes(&machine("H200", ""), RHYTHM, &repeated, &at_opening);
}

#[test]
fn every_code_in_every_call_on_a_gpu_with_mig_costs_what_that_call_tells_and_comes_back() {
    let of_mig = |call: &&&str| {
        call.contains("Mig") || call.contains("InstanceId") || call.contains("Memory") || call.contains("Running")
    };
    let repeated: Vec<&str> = REPEATED.iter().filter(of_mig).copied().collect();
    let at_opening: Vec<&str> = AT_OPENING.iter().filter(of_mig).copied().collect();
    meets_all_codes(
        &machine("H100", "mig = [\"3g.40gb\", \"\", \"2g.20gb\"]\n"),
        RHYTHM_WITH_MIG,
        &repeated,
        &at_opening,
    );
}

#[test]
fn every_code_in_every_call_on_no_gpu_leaves_what_was_told_or_says_why_there_is_nothing() {
    let machine = Machine::new(super::TWO);
    let exporter = machine.export(&[&QUICKLY[..], &RHYTHM].concat());
    some_rounds(&exporter);
    let good = told(&exporter.scrape_until("the process", |s| s.all("gpu_process_idle_seconds").count() == 1));
    for (call, code) in OF_NO_GPU.iter().flat_map(|call| CODES.iter().map(move |code| (call, code))) {
        let what = format!("{call} {code}");
        machine.control(&format!("[[fault]]\ncall = \"{call}\"\nkind = \"error\"\ncode = \"{code}\"\n"));
        reopen(&exporter);
        let now = exporter.scrape_until("a driver or a reason", |s| {
            let open = s.value("vram_exporter_nvml_up", &[]) == Some(1.0);
            let ready = exporter.get("/readyz").unwrap();
            (open && up(s, "0") == Some(1.0))
                || (!open && ready.status == 503 && ready.body.contains("failed"))
                || (!open && ready.body.contains("initialised"))
        });
        is_nothing_invented(&good, &now, &what);
        assert_eq!(exporter.get("/healthz").unwrap().status, 200, "{what}");
    }
    machine.control("");
    reopen(&exporter);
    exporter.scrape_until("all is as it was", |s| told(s).keys().eq(good.keys()));
}

#[test]
fn every_code_of_the_driver_in_calls_of_every_lane_closes_it_and_opens_it_again() {
    let machine = Machine::new(super::TWO);
    let exporter = machine.export(&[&QUICKLY[..], &RHYTHM].concat());
    some_rounds(&exporter);
    let good = told(&exporter.scrape_until("the process", |s| s.all("gpu_process_idle_seconds").count() == 1));
    let calls = [
        ("memory", "nvmlDeviceGetMemoryInfo_v2"),
        ("process", "nvmlDeviceGetComputeRunningProcesses_v3"),
        ("telemetry", "nvmlDeviceGetTemperature"),
        ("topology", "nvmlDeviceGetCount_v2"),
    ];
    for ((source, call), (code, reason)) in
        calls.iter().flat_map(|call| OF_THE_DRIVER.iter().map(move |code| (call, code)))
    {
        let before = faults(&exporter.scrape(), source, reason);
        machine.control(&format!("[[fault]]\ncall = \"{call}\"\nkind = \"error\"\ncode = \"{code}\"\n"));
        let closed = exporter.scrape_until("the driver is closed", |s| {
            is_nothing_invented(&good, s, code);
            s.value("vram_exporter_nvml_up", &[]) == Some(0.0)
        });
        assert!(faults(&closed, source, reason) > before, "{call} {code}");
        assert_eq!(told(&closed).len(), 0, "{call} {code}");
        machine.control("");
        // The wait for the next opening grows with each; it is cut short here.
        reopen(&exporter);
        exporter.scrape_until("all is as it was", |s| told(s).keys().eq(good.keys()));
    }
}

/// The names in quotes in the sources of a folder that are NVML's functions.
fn named(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        if path.is_dir() {
            named(&path, found);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let words =
            text.split('"').filter(|word| word.starts_with("nvml") && !word.starts_with("nvmlSim") && word.len() > 5);
        let functions =
            words.filter(|word| word[4..].starts_with(char::is_uppercase) && !word.contains(char::is_whitespace));
        found.extend(functions.map(str::to_owned));
    }
}

#[test]
fn no_call_that_the_exporter_names_is_left_out() {
    let mut found = BTreeSet::new();
    named(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/nvml"), &mut found);
    assert!(found.len() > 30, "{found:?}");
    let known: BTreeSet<&str> = REPEATED.into_iter().chain(AT_OPENING).chain(OF_NO_GPU).chain(FALLBACKS).collect();
    // The binding names the second version of this one.
    let by_another_name = |name: &str| name == "nvmlDeviceGetRetiredPages";
    let left_out: Vec<_> =
        found.iter().filter(|name| !known.contains(name.as_str()) && !by_another_name(name)).collect();
    assert_eq!(left_out, Vec::<&String>::new());
}

#[test]
fn what_was_refused_for_good_is_asked_for_again_while_the_driver_stays_open() {
    let machine = Machine::new(super::TWO);
    let exporter = machine.export(&RHYTHM);
    let temperature = |s: &Scrape| s.value("gpu_temperature_celsius", &[("gpu", "1")]);
    let xids = |s: &Scrape| s.value("gpu_xid_errors_total", &[("gpu", "1"), ("xid", "79")]);
    exporter.scrape_until("both", |s| temperature(s).is_some() && xids(s) == Some(0.0));
    let refused =
        "call = [\"nvmlDeviceGetTemperature\", \"nvmlEventSetWait_v2\"]\nkind = \"error\"\ncode = \"NO_PERMISSION\"";
    machine.control(&format!("[[fault]]\n{refused}\n"));
    let gone = exporter
        .scrape_until("the refusal", |s| temperature(s).is_none() && faults(s, "telemetry", "no_permission") >= 1.0);
    let later = rounds(&gone, "telemetry") + 4.0;
    exporter.scrape_until("more rounds", |s| rounds(s, "telemetry") >= later);
    machine.control("[[xid]]\ngpu = 1\nat = \"0s\"\nevery = \"100ms\"\ncode = 79\n");
    exporter.scrape_until("both again", |s| temperature(s).is_some() && xids(s) >= Some(1.0));
    assert_eq!(exporter.log().matches("the driver is open").count(), 1, "{}", exporter.log());
}
