//! The machines: a healthy one, and those that get into trouble, with the alerts that each of these should raise.

use super::FAST;
use super::receiver::Notice;
use crate::harness::{Exporter, Machine};

/// A load that keeps a GPU half full and busy, as it should be.
pub(crate) const STEADY: &str = r#"
seed = 1
[[gpu]]
model = "H200"
count = 2
[[process]]
gpus = [0, 1]
start = "-3h"
user = "ada"
command = ["/usr/bin/python3", "serve.py"]
cgroup = "0::/system.slice/slurmstepd.scope/job_11/step_0/user/task_0"
memory = "40GiB"
utilization = 0.6
"#;

/// A load that must raise no alert: memory that goes up and down, and a job that fills a GPU as it starts and
/// then stays at that level.
pub(crate) const BUSY: &str = r#"
[[process]]
gpu = 0
start = "-3h"
command = ["/usr/bin/python3", "train.py"]
memory = [{ kind = "sawtooth", low = "10GiB", high = "60GiB", every = "6s", for = "1h" }]
utilization = 0.3
[[process]]
gpu = 1
start = "10s"
command = ["/usr/bin/python3", "load.py"]
memory = [{ kind = "ramp", from = "0B", to = "60GiB", for = "16s" }, { kind = "constant", value = "60GiB" }]
utilization = 0.3
"#;

/// A peak that lasts 60 ms; scrapes are 500 ms apart.
const PEAK: &str = r#"
[[process]]
pid = 777
gpu = 0
command = ["burst"]
memory = [{ kind = "spike", base = "0B", peak = "98GiB", hold = "60ms", after = "10ms" }]
"#;

const LEAK: &str = r#"
[[process]]
pid = 4711
gpu = 1
user = "ada"
command = ["/usr/bin/python3", "leaky.py"]
cgroup = "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0"
memory = [{ kind = "leak", base = "1GiB", rate = "563MiB", limit = "75GiB" }]
utilization = 0.2
"#;

const ORPHAN: &str = "[[process]]\ngpu = 1\ntype = []\nmemory = \"6GiB\"\n";

const LOST: &str = "[[fault]]\ncall = \"*\"\ngpu = 1\nkind = \"error\"\ncode = \"GPU_IS_LOST\"\n";

/// The alert for missed ticks. It is accepted, because a busy test machine may really fail to sample 100 times a
/// second.
pub(crate) const STARVED: &str = "VramExporterMissedTicks";
/// The alert for incidents. It is accepted, because the memory use that causes another alert may be an incident too.
const INCIDENT: &str = "GpuMemoryIncident";

/// All machines that get into trouble; the one with the peak comes first.
pub(crate) fn all() -> [Case; 4] {
    [
        Case::start(PEAK, "0", &[Expected { name: "GpuMemoryPeakNearLimit", severity: "warning", labels: &[] }]),
        Case::start(
            LEAK,
            "1",
            &[
                Expected {
                    name: "GpuProcessMemoryLeak",
                    severity: "warning",
                    labels: &[
                        ("process", "leaky.py"),
                        ("pid", "4711"),
                        ("type", "compute"),
                        ("workload", "slurm:12"),
                        ("user", "ada"),
                    ],
                },
                Expected { name: "GpuMemoryExhaustionPredicted", severity: "critical", labels: &[] },
            ],
        ),
        Case::start(ORPHAN, "1", &[Expected { name: "GpuMemoryUnattributed", severity: "warning", labels: &[] }]),
        Case::start(LOST, "1", &[Expected { name: "GpuLost", severity: "critical", labels: &[] }]),
    ]
}

/// An alert that a machine in trouble should raise.
struct Expected {
    name: &'static str,
    severity: &'static str,
    /// Labels in addition to those that every alert about a GPU has.
    labels: &'static [(&'static str, &'static str)],
}

/// A machine, and the trouble that it gets into.
pub(crate) struct Case {
    pub(crate) trouble: &'static str,
    /// The GPU that is in trouble.
    pub(crate) gpu: &'static str,
    expected: &'static [Expected],
    uuid: String,
    pub(crate) machine: Machine,
    pub(crate) exporter: Exporter,
}

impl Case {
    fn start(trouble: &'static str, gpu: &'static str, expected: &'static [Expected]) -> Self {
        let machine = Machine::new(STEADY);
        let exporter = machine.export(&FAST);
        let scrape = exporter.scrape();
        let mut infos = scrape.all("gpu_info");
        let info = infos.find(|info| info.label("gpu") == Some(gpu)).unwrap();
        let uuid = info.label("uuid").unwrap().to_owned();
        Self { trouble, gpu, expected, uuid, machine, exporter }
    }

    pub(crate) fn instance(&self) -> String {
        self.exporter.address.to_string()
    }

    /// Whether each of its alerts was received.
    pub(crate) fn has_fired(&self, notices: &[Notice]) -> bool {
        // If the simulator rejected its control file, the trouble never occurred.
        assert!(!self.exporter.log().contains("nvml-sim: "), "{}", self.exporter.log());
        self.expected.iter().all(|expected| self.of(expected, notices).any(|notice| notice.firing))
    }

    /// Whether the last notice for each of its alerts reports that the alert has ended.
    pub(crate) fn is_over(&self, notices: &[Notice]) -> bool {
        self.expected.iter().all(|expected| self.of(expected, notices).last().is_some_and(|last| !last.firing))
    }

    /// The notices for one of its alerts, in order.
    fn of<'n>(&self, expected: &Expected, notices: &'n [Notice]) -> impl Iterator<Item = &'n Notice> {
        let (instance, name) = (self.instance(), expected.name);
        notices.iter().filter(move |notice| notice.label("instance") == instance && notice.name() == name)
    }

    /// Checks that every label of every notice is as it should be, and that nothing unexpected was received.
    pub(crate) fn check(&self, notices: &[Notice]) {
        let instance = self.instance();
        let own = notices.iter().filter(|notice| notice.label("instance") == instance);
        for notice in own.filter(|notice| ![STARVED, INCIDENT].contains(&notice.name())) {
            let expected = self.expected.iter().find(|expected| expected.name == notice.name());
            let expected = expected.unwrap_or_else(|| panic!("unexpected: {notice:?}"));
            let always =
                [("job", "vram-exporter"), ("gpu", self.gpu), ("uuid", &self.uuid), ("severity", expected.severity)];
            for (label, value) in always.iter().chain(expected.labels) {
                assert_eq!(notice.label(label), *value, "{label} of {notice:?}");
            }
            let text = |name: &str| notice.annotations.get(name).map_or("", String::as_str);
            for needed in [&format!("GPU {}", self.gpu), &instance] {
                assert!(text("summary").contains(needed), "{needed} in {notice:?}");
            }
            assert!(!text("description").is_empty(), "{notice:?}");
            let all: String = notice.annotations.values().map(String::as_str).collect();
            assert!(!all.contains("<no value>") && !all.contains("<error"), "{notice:?}");
        }
        for expected in self.expected {
            let first = self.of(expected, notices).next();
            assert!(first.is_some_and(|first| first.firing), "{} begins by firing", expected.name);
        }
        assert!(self.is_over(notices), "{notices:#?}");
    }
}
