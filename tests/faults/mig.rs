//! MIG devices fail, change, and cannot be read for a while.

use super::harness::{Machine, Scrape};
use super::{faults, rounds, up};

/// A GPU with two MIG devices, and a process on the first that held 30 GiB for the first two seconds.
const SLICED: &str = r#"
seed = 1
[[gpu]]
model = "A100-80GB"
mig = ["3g.40gb", "", "2g.20gb"]
[[process]]
pid = 31
mig = 0
command = ["train"]
cgroup = "0::/system.slice/train.service"
memory = [{ kind = "constant", value = "30GiB", for = "2s" }, { kind = "constant", value = "1GiB" }]
"#;

#[test]
fn a_mig_device_that_fails_for_good_is_asked_and_counted_once_a_second_and_comes_back() {
    let machine = Machine::new(SLICED);
    let exporter = machine.export(&["--memory.stale-after=2s"]);
    let profiles = |s: &Scrape| s.all("gpu_mig_memory_used_bytes").count();
    exporter.scrape_until("both devices", |s| profiles(s) == 2);
    for code in ["GPU_IS_LOST", "UNKNOWN"] {
        let call = "call = \"nvmlDeviceGetMemoryInfo_v2\"\ngpu = 0\nmig = 2";
        machine.control(&format!("[[fault]]\n{call}\nkind = \"error\"\ncode = \"{code}\"\n"));
        let told = |s: &Scrape| faults(s, "memory", &code.to_lowercase());
        let gone = exporter.scrape_until("one device", |s| profiles(s) == 1 && told(s) >= 1.0);
        assert_eq!(up(&gone, "0"), Some(1.0));
        let goal = rounds(&gone, "memory") + 300.0;
        let later = exporter.scrape_until("three hundred ticks", |s| rounds(s, "memory") >= goal);
        let ticks = rounds(&later, "memory") - rounds(&gone, "memory");
        let counted = told(&later) - told(&gone);
        assert!(counted >= 1.0 && counted <= ticks / 20.0, "{code}: {counted} in {ticks} ticks");
        machine.control("");
        exporter.scrape_until("both devices again", |s| profiles(s) == 2);
    }
}
