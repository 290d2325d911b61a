//! The listener that serves dcgm-exporter's families: names, units and labels against facts about dcgm-exporter, the
//! containers of shared GPUs and MIG instances, the collectors file, and two listeners at once.
//!
//! The facts come from the templates, the field table and the tests of dcgm-exporter 4.5.3-4.8.2, from its lists of fields up
//! to 4.8.4, from its release notes up to 4.9.0, and from `dcgm_fields.h` of DCGM 4.5.3 to 4.6.1.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use generated_files::assert_committed;

use crate::harness::{Answer, Exporter, Machine, Scrape, Series, assert_refused, bare, ended, eventually, until};

mod facts;
mod files;

/// A shared GPU, one with MIG instances, and one without containers.
pub(crate) const SCENARIO: &str = include_str!("../fixtures/dcgm/scenario.toml");

/// An exporter on the scenario, with a listener for dcgm-exporter's families.
pub(crate) struct Served {
    exporter: Exporter,
    folder: tempfile::TempDir,
}

impl Served {
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::with(SCENARIO, flags)
    }

    pub(crate) fn with(scenario: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scenario.toml");
        fs::write(&path, scenario).unwrap();
        let mut command = bare(flags);
        command
            .arg(format!("--demo={}", path.display()))
            .args(["--kubernetes.node-name=gpu-node-1", "--kubernetes.pod-resources-interval=1s"]);
        Self::by(command, folder)
    }

    /// The exporter that the command starts, with the listener as well.
    fn by(mut command: Command, folder: tempfile::TempDir) -> Self {
        command.arg(format!("--dcgm.listen-address=unix:{}", folder.path().join("dcgm.sock").display()));
        Self { exporter: Exporter::start(command), folder }
    }

    /// An exporter on this machine.
    fn on(machine: &Machine) -> Self {
        Self::on_with(machine, &[])
    }

    /// An exporter on this machine, with these flags.
    pub(crate) fn on_with(machine: &Machine, flags: &[&str]) -> Self {
        Self::by(machine.command(flags), tempfile::tempdir().unwrap())
    }

    /// One request to the listener of dcgm-exporter's families.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.get_with(path, "")
    }

    /// One request with further header lines, each with its line end.
    pub(crate) fn get_with(&self, path: &str, headers: &str) -> Answer {
        Answer::through(&self.folder.path().join("dcgm.sock"), path, headers).unwrap()
    }

    /// The text is empty until the first GPU has been read.
    pub(crate) fn scrape(&self) -> Scrape {
        let text = eventually("a text", || {
            let answer = self.get("/metrics");
            assert_eq!(answer.status, 200);
            Some(answer.body).filter(|body| !body.is_empty())
        });
        Scrape::parse(&text)
    }

    /// A scrape after every lane has read every GPU, and an Xid has occurred. It repeats, because the exporter sees only
    /// those after it has registered for them.
    pub(crate) fn settled(&self) -> Scrape {
        eventually("every value", || {
            let scrape = self.scrape();
            let xid = scrape.series.iter().any(|series| series.label("err_code") == Some("79"));
            let first = |name: &str| scrape.series.iter().any(|series| series.name.starts_with(name));
            let whole =
                first("DCGM_FI_DEV_GPU_UTIL") && first("DCGM_FI_DEV_PCIE_REPLAY") && first("DCGM_FI_DEV_FB_USED");
            let held = scrape.series.iter().any(|series| series.label("pod") == Some("slice"));
            // Two samples are needed for the first figure of the profiling counters.
            let profiled = first("DCGM_FI_PROF_");
            (xid && whole && held && profiled).then_some(scrape)
        })
    }
}

/// The values that the simulator varies.
const VARYING: [&str; 5] = [
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_MEM_COPY_UTIL",
    "DCGM_FI_DEV_MEMORY_UTIL",
    "DCGM_FI_DEV_MEMORY_TEMP",
    "DCGM_FI_PROF_",
];

fn settle(text: &str) -> String {
    let line = |line: &str| match line.rsplit_once(' ') {
        Some((series, _)) if VARYING.iter().any(|name| line.starts_with(name)) => format!("{series} <…>\n"),
        _ => format!("{line}\n"),
    };
    // Whether the driver has a sample of a process is a matter of chance.
    let sampled = |line: &&str| line.starts_with("DCGM_FI_DEV_GPU_UTIL") && line.contains("pod=");
    text.lines().filter(|line| !sampled(line)).map(line).collect()
}

#[test]
fn every_naming_gives_its_golden_scrape() {
    for (naming, more) in [("exporter-4.8", &[][..]), ("exporter-4.9", &["--dcgm.virtual-gpus=true"][..])] {
        let naming_flag = format!("--dcgm.names={naming}");
        let found = settle(&Served::start(&[&[naming_flag.as_str()], more].concat()).settled().text);
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/dcgm").join(format!("{naming}.prom"));
        assert_committed(&path, &found);
    }
}

/// The series of a family on a GPU, by pod.
fn pods<'s>(scrape: &'s Scrape, name: &'s str, gpu: &'s str) -> Vec<(Option<&'s str>, f64)> {
    let here = scrape.all(name).filter(|series| series.label("gpu") == Some(gpu));
    let mut pods: Vec<_> = here.map(|series| (series.label("pod"), series.value)).collect();
    pods.sort_by(|a, b| a.0.cmp(&b.0));
    pods
}

#[test]
fn a_shared_gpu_belongs_to_no_pod_until_virtual_gpus_are_on() {
    let scrape = Served::start(&[]).settled();
    assert_eq!(pods(&scrape, "DCGM_FI_DEV_POWER_USAGE", "0"), [(None, 214.5)]);
    assert_eq!(pods(&scrape, "DCGM_FI_DEV_FB_USED", "0").len(), 1);

    let scrape = Served::start(&["--dcgm.virtual-gpus=true"]).settled();
    // 15 GiB and a context of 520 MiB for each of two processes; 60 GiB and a context; 24 MiB belong to no process.
    let used = [("notebook", 0.0), ("serve-0", 61_960.0), ("train-0", 31_760.0)];
    let whole = used.iter().map(|(_, mib)| mib).sum::<f64>() + 24.0;
    let mut expected = vec![(None, whole)];
    expected.extend(used.map(|(pod, mib)| (Some(pod), mib)));
    assert_eq!(pods(&scrape, "DCGM_FI_DEV_FB_USED", "0"), expected);
    // Every other value is that of the whole GPU, once for each container.
    let power = ["notebook", "serve-0", "train-0"].map(|pod| (Some(pod), 214.5));
    assert_eq!(pods(&scrape, "DCGM_FI_DEV_POWER_USAGE", "0"), power);
    let shares: BTreeSet<_> = scrape.all("DCGM_FI_DEV_SM_CLOCK").filter_map(|series| series.label("vgpu")).collect();
    assert_eq!(shares, BTreeSet::from(["0", "1", "2"]));
    // A GPU without containers is still there.
    assert_eq!(pods(&scrape, "DCGM_FI_DEV_GPU_TEMP", "2"), [(None, 60.0)]);
}

#[test]
fn a_mig_instance_has_its_own_memory_and_the_values_of_its_gpu() {
    let scrape = Served::start(&[]).settled();
    let instance = |id: &'static str| [("gpu", "1"), ("GPU_I_ID", id)];
    assert_eq!(scrape.value("DCGM_FI_DEV_FB_USED", &instance("1")), Some(21_008.0));
    assert_eq!(scrape.value("DCGM_FI_DEV_FB_USED", &instance("3")), Some(0.0));
    assert_eq!(scrape.value("DCGM_FI_DEV_GPU_TEMP", &instance("3")), Some(35.0));
    let pod =
        |series: &Series| (series.label("GPU_I_PROFILE").map(str::to_owned), series.label("pod").map(str::to_owned));
    let used: BTreeSet<_> =
        scrape.all("DCGM_FI_DEV_FB_USED").filter(|s| s.label("gpu") == Some("1")).map(pod).collect();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(used, BTreeSet::from([(text("3g.40gb"), text("slice")), (text("2g.20gb"), None)]));
    // NVML does not report the utilization of an instance, and the snapshot holds Xids per GPU.
    assert_eq!(scrape.all("DCGM_FI_DEV_GPU_UTIL").filter(|series| series.label("gpu") == Some("1")).count(), 0);
    let xids = scrape.all("DCGM_FI_DEV_XID_ERRORS").filter(|series| series.label("gpu") == Some("1"));
    assert!(xids.map(|series| (series.label("GPU_I_ID"), series.value)).eq([(None, 0.0)]));
}

#[test]
fn profiling_fields_are_those_of_the_gpu_or_the_instance_and_absent_before_hopper() {
    let scrape = Served::start(&[]).settled();
    let profiled = scrape.series.iter().filter(|series| series.name.starts_with("DCGM_FI_PROF_"));
    let gpus: BTreeSet<_> = profiled.filter_map(|series| series.label("gpu")).collect();
    assert_eq!(gpus, BTreeSet::from(["0"]), "an A100 and an L4 have no profiling counters");

    let instances = SCENARIO.replace("A100-80GB", "H100");
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("counters.csv");
    let fields = ["PIPE_FP32_ACTIVE", "SM_OCCUPANCY", "DRAM_ACTIVE", "PCIE_RX_BYTES", "NVLINK_TX_BYTES"];
    fs::write(&list, fields.map(|field| format!("DCGM_FI_PROF_{field}, gauge, Text\n")).concat()).unwrap();
    let served = Served::with(&instances, &[&format!("--dcgm.collectors-file={}", list.display())]);
    let expected = [Some("1"), Some("3")];
    let scrape = eventually("figures of both instances", || {
        let scrape = served.scrape();
        let instances = |name| {
            let series = scrape.all(name).filter(|series| series.label("gpu") == Some("1"));
            series.map(|series| series.label("GPU_I_ID")).eq(expected)
        };
        // The GPU and its instances are sampled one after the other.
        let whole = instances("DCGM_FI_PROF_DRAM_ACTIVE") && instances("DCGM_FI_PROF_PCIE_RX_BYTES");
        whole.then_some(scrape)
    });
    for field in fields {
        let name = format!("DCGM_FI_PROF_{field}");
        let values: Vec<_> = scrape.all(&name).map(|series| series.value).collect();
        let limit = if field.ends_with("BYTES") { f64::MAX } else { 1.0 };
        assert!(values.iter().all(|value| (0.0..=limit).contains(value)), "{name}: {values:?}");
    }
    // A link belongs to the GPU: each instance shows the GPU's traffic.
    let links = scrape.all("DCGM_FI_PROF_PCIE_RX_BYTES").filter(|series| series.label("gpu") == Some("1"));
    let links: Vec<_> = links.map(|series| series.value).collect();
    assert!(links.len() == 2 && links[0] == links[1], "{links:?}");

    let without = Served::start(&["--profiling.enabled=false"]);
    let scrape = eventually("a reading", || {
        Some(without.scrape()).filter(|scrape| scrape.all("DCGM_FI_DEV_PCIE_REPLAY_COUNTER").count() > 0)
    });
    assert!(scrape.series.iter().all(|series| !series.name.starts_with("DCGM_FI_PROF_")));
}

#[test]
fn what_nvml_does_not_tell_is_absent() {
    let machine = Machine::built_in("unified-memory");
    let unified = Served::on(&machine);
    let scrape = eventually("a scrape", || {
        Some(unified.scrape()).filter(|scrape| scrape.all("DCGM_FI_DEV_GPU_TEMP").count() == 1)
    });
    assert!(scrape.series.iter().all(|series| !series.name.contains("_FB_")), "{}", scrape.text);
    assert_eq!(scrape.all("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION").count(), 0, "only with telemetry.energy");

    let energetic = Served::start(&["--telemetry.energy=true", "--telemetry.slow-interval=1s"]);
    let energy = eventually("energy", || {
        energetic.scrape().all("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION").map(|series| series.value).next()
    });
    assert!(energy > 0.0 && energy.fract() == 0.0, "{energy}");
}

#[test]
fn a_scrape_before_the_first_readings_succeeds_and_has_no_series() {
    let without = bare(&["--nvml.library=/nonexistent/libnvidia-ml.so.1"]);
    let answer = Served::by(without, tempfile::tempdir().unwrap()).get("/metrics");
    assert_eq!((answer.status, answer.whole), (200, true));
    assert!(Scrape::parse(&answer.body).series.is_empty(), "{}", answer.body);
}

#[test]
fn a_lost_gpu_has_its_last_xid_and_no_other_value() {
    let machine = Machine::built_in("idle-h200");
    let served = Served::on(&machine);
    let families = || {
        let text = served.get("/metrics").body;
        let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned));
        names.collect::<BTreeSet<_>>()
    };
    let is_whole = || families().len() > 15 && families().contains("DCGM_FI_DEV_XID_ERRORS");
    // What the GPU keeps when it is lost has been read before.
    until("every value", is_whole);
    machine.control("[[fault]]\ncall = \"*\"\ngpu = 0\nkind = \"error\"\ncode = \"GPU_IS_LOST\"\n");
    until("the GPU is lost", || families().iter().eq(["DCGM_FI_DEV_XID_ERRORS"]));
    machine.control("");
    until("the GPU is back", is_whole);
}

#[test]
fn both_listeners_serve_the_same_reading() {
    let served = Served::start(&[]);
    let renamed = served.settled();
    let own = served.exporter.scrape();
    let used = own.value("gpu_memory_used_bytes", &[("gpu", "0")]).unwrap();
    assert_eq!(renamed.value("DCGM_FI_DEV_FB_USED", &[("gpu", "0")]), Some((used / 1_048_576.0).floor()));
    assert!(own.series.iter().all(|series| !series.name.starts_with("DCGM_")));
    assert!(renamed.series.iter().all(|series| series.name.starts_with("DCGM_")));
    for (path, status) in [("/", 200), ("/health", 200), ("/healthz", 200), ("/readyz", 200), ("/api/v1/gpus", 404)] {
        assert_eq!(served.get(path).status, status, "{path}");
    }
    assert_eq!(served.exporter.get("/health").unwrap().status, 404);
    served.exporter.logged("serving the families of dcgm-exporter");
    assert!(served.exporter.terminate().success());
    assert!(!served.folder.path().join("dcgm.sock").exists(), "the socket file is removed");
}

#[test]
fn a_port_in_use_is_an_error_that_names_the_key() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let mut command = bare(&["--demo=idle-h200", "--web.listen-address=127.0.0.1:0"]);
    let taken = ended(command.arg(format!("--dcgm.listen-address={address}")));
    let hint = format!("cannot listen on {address}; choose another with --dcgm.listen-address");
    assert!(taken.status == Some(1) && taken.err.contains(&hint), "{taken:?}");
    // The log names an address only after every address is bound, so that a client can then connect to each of them.
    assert!(!taken.err.contains("listening"), "{taken:?}");
    let both = ["--web.listen-address=:9400", "--dcgm.listen-address=127.0.0.1:9400", "--check-config"];
    assert_refused(&mut bare(&both), &["dcgm.listen-address", "overlaps"]);
}

#[test]
fn the_web_config_guards_both_listeners() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yml");
    // The test does not know the password behind this hash.
    fs::write(&file, "basic_auth_users:\n  alice: $2y$04$abcdefghijklmnopqrstuuqJXOZsUIgIYQy0wDbIFOuZ0DFaYBRBC\n")
        .unwrap();
    let served = Served::start(&[&format!("--web.config-file={}", file.display())]);
    assert_eq!(served.get("/metrics").status, 401);
    assert_eq!(served.exporter.get("/metrics").unwrap().status, 401);
    assert_eq!(served.get("/healthz").status, 200);
}
