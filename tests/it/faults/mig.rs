//! MIG devices fail, change, and cannot be read for a while.

use super::{TWO, faults, reopen, rounds, up};
use crate::harness::{Exporter, Machine, Scrape};

const USED: &str = "gpu_process_memory_used_bytes";

const SLICED: &str = include_str!("../../fixtures/scenarios/mig-training.toml");

/// The highest memory use of the first MIG device.
fn slice_peak(scrape: &Scrape) -> Option<f64> {
    scrape.value("gpu_mig_memory_peak_bytes", &[("profile", "3g.40gb")])
}

fn mig_uuid(scrape: &Scrape, family: &str, pid: &str) -> Option<String> {
    let series = scrape.all(family).find(|series| series.label("pid") == Some(pid))?;
    series.label("mig_uuid").map(str::to_owned)
}

/// An exporter that has seen the high memory use of [`SLICED`] and the low use that follows.
fn with_a_peak(machine: &Machine) -> (Exporter, Scrape) {
    let exporter = machine.export(&["--telemetry.interval=100ms", "--telemetry.slow-interval=10m"]);
    const GIB: f64 = (1u64 << 30) as f64;
    let later = exporter.scrape_until("the end of the high memory", |s| {
        let used = s.value("gpu_mig_memory_used_bytes", &[("profile", "3g.40gb")]);
        slice_peak(s) > Some(30.0 * GIB) && used < Some(2.0 * GIB)
    });
    assert!(mig_uuid(&later, USED, "31").is_some());
    (exporter, later)
}

#[test]
fn a_mig_layout_unreadable_at_an_opening_costs_no_peak_and_is_read_soon() {
    let machine = Machine::new(SLICED);
    let (exporter, before) = with_a_peak(&machine);
    for code in ["UNKNOWN", "NOT_SUPPORTED"] {
        let failures = |s: &Scrape| faults(s, "topology", &code.to_lowercase());
        machine.control(&format!("[[fault]]\ncall = \"nvmlDeviceGetMigMode\"\nkind = \"error\"\ncode = \"{code}\"\n"));
        reopen(&exporter);
        let blind = exporter.scrape_until("the GPU without its layout", |s| {
            up(s, "0") == Some(1.0) && s.all(USED).count() == 1 && failures(s) >= 1.0
        });
        assert_eq!(slice_peak(&blind), None, "a device that is not read is not shown");
        for family in [USED, "gpu_process_info"] {
            assert_eq!(mig_uuid(&blind, family, "31"), mig_uuid(&before, family, "31"), "{code} {family}");
        }
        assert_eq!(blind.all("gpu_info").collect::<Vec<_>>(), before.all("gpu_info").collect::<Vec<_>>());
        machine.control("");
        // The next slow round is ten minutes away.
        let after = exporter.scrape_until("the layout", |s| slice_peak(s).is_some());
        assert_eq!(slice_peak(&after), slice_peak(&before), "{code}");
    }
}

#[test]
fn an_unreadable_mig_mode_without_devices_costs_no_other_opening() {
    let (machine, exporter) = Machine::running(TWO, &["--telemetry.interval=100ms", "--telemetry.slow-interval=10m"]);
    let mode = "call = \"nvmlDeviceGetMigMode\"\ngpu = 1\nkind = \"error\"\ncode = \"UNKNOWN\"";
    machine.control(&format!("[[fault]]\n{mode}\n"));
    reopen(&exporter);
    let blind = exporter.scrape_until("the refusal", |s| {
        up(s, "0") == Some(1.0) && up(s, "1") == Some(1.0) && faults(s, "topology", "unknown") >= 2.0
    });
    machine.control("");
    // After three times as many rounds as so far, the mode has been requested again.
    let goal = 3.0 * rounds(&blind, "telemetry");
    exporter.scrape_until("the next request", |s| rounds(s, "telemetry") >= goal);
    assert_eq!(exporter.log().matches("the driver is open").count(), 2, "{}", exporter.log());
}

#[test]
fn a_gpu_lost_for_one_opening_keeps_the_peaks_of_its_mig_devices() {
    let machine = Machine::new(SLICED);
    let (exporter, before) = with_a_peak(&machine);
    machine.control("[[fault]]\ncall = \"*\"\ngpu = 0\nkind = \"error\"\ncode = \"GPU_IS_LOST\"\n");
    exporter.scrape_until("the loss", |s| up(s, "0") == Some(0.0));
    reopen(&exporter);
    exporter.scrape_until("the opening without it", |s| up(s, "0") == Some(0.0) && s.all("gpu_info").count() == 1);
    machine.control("");
    reopen(&exporter);
    let after = exporter.scrape_until("the GPU is back", |s| slice_peak(s).is_some());
    assert_eq!(slice_peak(&after), slice_peak(&before));
}

#[test]
fn processes_on_a_recreated_mig_device_never_have_the_previous_uuid() {
    const SUM: &str = "gpu_workload_memory_used_bytes";
    let machine = Machine::new(&SLICED.replace("command = [\"train\"]", "command = [\"train\"]\nend = \"15s\""));
    let exporter = machine.export(&[]);
    let old = exporter.scrape_until("the process", |s| slice_peak(s).is_some() && mig_uuid(s, USED, "31").is_some());
    let old = mig_uuid(&old, USED, "31");
    exporter.scrape_until("its end", |s| mig_uuid(s, USED, "31").is_none());
    // New devices get the ids of the previous ones, and a process starts on one at once.
    let next = "pid = 32\nmig = 0\nmemory = \"35GiB\"\ncgroup = \"0::/system.slice/train.service\"";
    machine.control(&format!("[[fault]]\nkind = \"recut\"\ngpu = 0\n[[process]]\n{next}\n"));
    let old = old.as_deref().unwrap();
    let new = exporter.scrape_until("the next process", |s| {
        let mig = mig_uuid(s, USED, "32");
        assert_ne!(mig.as_deref(), Some(old), "{}", s.text);
        assert_eq!(s.value(SUM, &[("mig_uuid", old)]), None);
        mig.is_some()
    });
    const GIB: f64 = (1u64 << 30) as f64;
    let peak = |uuid| new.value("gpu_workload_memory_peak_bytes", &[("mig_uuid", uuid)]).unwrap();
    assert!((30.0 * GIB..35.0 * GIB).contains(&peak(old)), "{}", new.text);
    assert!(peak(&mig_uuid(&new, USED, "32").unwrap()) >= 35.0 * GIB, "{}", new.text);
    assert_eq!(new.all(SUM).count(), 1, "{}", new.text);
    let device = [("mig_uuid", mig_uuid(&new, USED, "32").unwrap())];
    let [(label, uuid)] = &device;
    exporter.scrape_until("its device", |s| s.value("gpu_mig_memory_used_bytes", &[(label, uuid)]).is_some());
}

#[test]
fn a_mig_device_that_fails_is_tried_once_a_second_and_recovers() {
    let (machine, exporter) = Machine::running(SLICED, &["--memory.stale-after=2s"]);
    let profiles = |s: &Scrape| s.all("gpu_mig_memory_used_bytes").count();
    exporter.scrape_until("both devices", |s| profiles(s) == 2);
    for code in ["GPU_IS_LOST", "UNKNOWN"] {
        let call = "call = \"nvmlDeviceGetMemoryInfo_v2\"\ngpu = 0\nmig = 2";
        machine.control(&format!("[[fault]]\n{call}\nkind = \"error\"\ncode = \"{code}\"\n"));
        let failures = |s: &Scrape| faults(s, "memory", &code.to_lowercase());
        let gone = exporter.scrape_until("one device", |s| profiles(s) == 1 && failures(s) >= 1.0);
        assert_eq!(up(&gone, "0"), Some(1.0));
        let goal = rounds(&gone, "memory") + 300.0;
        let later = exporter.scrape_until("three hundred ticks", |s| rounds(s, "memory") >= goal);
        let ticks = rounds(&later, "memory") - rounds(&gone, "memory");
        let counted = failures(&later) - failures(&gone);
        assert!(counted >= 1.0 && counted <= ticks / 20.0, "{code}: {counted} in {ticks} ticks");
        machine.control("");
        exporter.scrape_until("both devices again", |s| profiles(s) == 2);
    }
}
