//! Energy that is apportioned, with made-up readings.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::super::retention::Retention;
use super::super::table::tests::{list, listed};
use super::*;
use crate::nvml::UtilizationSample;
use crate::snapshot::{Energy, Gpu, Owner, WorkloadKind, WorkloadUse};

const LINGER: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

/// A GPU over time, as the lane sees it.
struct Scene {
    start: (Instant, SystemTime),
    seconds: u32,
    table: ProcessTable,
    workloads: Workloads,
    ledger: EnergyLedger,
    energy: Energy,
}

impl Scene {
    fn new(limit: usize) -> Self {
        let retention = Retention { peak_window: SECOND, linger: LINGER, limit };
        let start = (Instant::now(), SystemTime::now());
        Self {
            start,
            seconds: 0,
            table: ProcessTable::new(retention),
            workloads: Workloads::new(retention),
            ledger: EnergyLedger::default(),
            energy: Energy { counted_since: start.1, joules: 0.0, unmeasured: 0.0 },
        }
    }

    fn now(&self) -> (Instant, SystemTime) {
        let passed = SECOND * self.seconds;
        (self.start.0 + passed, self.start.1 + passed)
    }

    /// A list with these pids and the memory of each. The workload of a pid is its number without the last digit; a pid below 10
    /// has none.
    fn list(&mut self, pids: &[(u32, u64)]) -> &mut Self {
        let at = self.now().0;
        let entries: Vec<_> = pids.iter().map(|&(pid, used)| listed(pid, used)).collect();
        let list = list(&entries, at);
        let owners = pids.iter().map(|(pid, _)| {
            let workload = (pid / 10 > 0).then(|| Arc::new(unit(pid / 10)));
            Arc::new(Owner { start_ticks: Some(u64::from(*pid)), workload, ..Owner::default() })
        });
        self.table.fold(&list, &owners.collect::<Vec<_>>(), Some(&[]));
        let members: Vec<_> = self.table.members().collect();
        self.workloads.fold(&members, &[], at);
        drop(self.workloads.show(at, true));
        self
    }

    /// A second at this power in which the GPU was busy for a share of the time, with a sample of each pid at its end; `None`
    /// if the driver gives no samples.
    fn second(&mut self, watts: f64, utilization: Option<f64>, samples: Option<&[(u32, f64)]>) -> &mut Self {
        self.seconds += 1;
        let asked_at = self.now();
        let since = asked_at.1.duration_since(SystemTime::UNIX_EPOCH).unwrap() - SECOND / 10;
        let timestamp = u64::try_from(since.as_micros()).unwrap();
        let sample = |&(pid, sm): &(u32, f64)| UtilizationSample { pid, timestamp, sm, active: sm > 0.0 };
        let samples = samples.map(|samples| samples.iter().map(sample).collect());
        self.ledger.see(&self.table, &Work { gpu: Arc::new(Gpu::default()), samples, asked_at });
        self.spend(watts, utilization)
    }

    fn spend(&mut self, watts: f64, utilization: Option<f64>) -> &mut Self {
        self.energy.joules += watts;
        let spent = Spent { gpu: Arc::default(), energy: Some(self.energy), utilization, has_samples: true };
        self.ledger.apportion(&spent, &mut self.workloads);
        self
    }

    fn shown(&mut self) -> Vec<WorkloadUse> {
        let now = self.now().0;
        self.workloads.show(now, self.ledger.shown().is_some()).0
    }

    /// The joules of each workload by its number, and those that are idle and of others.
    fn joules(&mut self) -> (BTreeMap<u32, f64>, f64, f64) {
        let rest = self.ledger.shown().unwrap();
        let shown = self.shown();
        let number = |entry: &WorkloadUse| entry.workload.name.trim_start_matches("unit:").parse().unwrap();
        let each = shown.iter().map(|entry| (number(entry), entry.energy.unwrap().joules));
        (each.collect(), rest.idle, rest.other)
    }
}

fn unit(number: u32) -> Workload {
    Workload { name: format!("unit:{number}"), kind: WorkloadKind::Systemd, pod: None }
}

#[test]
fn a_workload_has_its_share_of_the_time() {
    let mut scene = Scene::new(9);
    // The first samples may be of an earlier time.
    scene.list(&[(10, 5), (20, 4), (21, 3)]).second(100.0, Some(1.0), Some(&[(10, 1.0)]));
    assert_eq!(scene.joules(), (BTreeMap::from([(1, 0.0), (2, 0.0)]), 0.0, 100.0));
    scene.second(400.0, Some(1.0), Some(&[(10, 0.5), (20, 0.25), (21, 0.25)]));
    assert_eq!(scene.joules(), (BTreeMap::from([(1, 200.0), (2, 200.0)]), 0.0, 100.0));
    // A fifth of the time is idle; nobody's are the kernels of a process without a workload and of one that is not listed.
    scene.list(&[(10, 5), (20, 4), (21, 3), (3, 9)]);
    scene.second(100.0, Some(0.75), Some(&[(10, 0.5), (3, 0.125), (999, 0.125)]));
    assert_eq!(scene.joules(), (BTreeMap::from([(1, 250.0), (2, 200.0)]), 25.0, 125.0));
    // Clients of MPS run at the same time.
    scene.second(100.0, Some(0.9), Some(&[(10, 1.0), (20, 0.5), (21, 0.5)]));
    assert_eq!(scene.joules(), (BTreeMap::from([(1, 300.0), (2, 250.0)]), 25.0, 125.0));
}

#[test]
fn a_gap_in_the_samples_is_no_guess() {
    let mut scene = Scene::new(9);
    scene.list(&[(10, 5)]).second(0.0, Some(1.0), Some(&[]));
    scene.second(100.0, Some(0.5), None);
    assert_eq!(scene.joules(), (BTreeMap::from([(1, 0.0)]), 50.0, 50.0));
    // Without a query since the last time, and without the utilization, nothing is known.
    scene.spend(100.0, Some(0.25)).spend(100.0, None);
    assert_eq!(scene.joules(), (BTreeMap::from([(1, 0.0)]), 125.0, 175.0));
    // A sample that was taken before the query before.
    scene.seconds += 9;
    scene.ledger.asked = Some(scene.now().0 + 2 * SECOND);
    scene.second(100.0, Some(1.0), Some(&[(10, 1.0)]));
    assert_eq!(scene.joules(), (BTreeMap::from([(1, 0.0)]), 125.0, 275.0));
}

#[test]
fn nothing_is_shown_where_the_driver_has_no_samples_or_no_power() {
    let mut scene = Scene::new(9);
    assert_eq!(scene.ledger.shown(), None);
    scene.list(&[(10, 5)]);
    for (energy, has_samples, shown) in [(None, true, false), (Some(scene.energy), false, false), (None, true, true)] {
        let spent = Spent { gpu: Arc::default(), energy, utilization: Some(0.5), has_samples };
        scene.ledger.apportion(&spent, &mut scene.workloads);
        assert_eq!(scene.ledger.shown().is_some(), shown);
        assert_eq!(scene.shown()[0].energy.is_some(), shown);
    }
}

#[test]
fn a_workload_that_ends_keeps_its_joules_and_one_beyond_the_limit_gets_none() {
    let mut scene = Scene::new(1);
    scene.list(&[(10, 5), (20, 4)]).second(0.0, None, Some(&[]));
    scene.second(100.0, Some(1.0), Some(&[(10, 0.5), (20, 0.5)]));
    assert_eq!(scene.joules(), (BTreeMap::from([(1, 50.0)]), 0.0, 50.0));
    scene.list(&[(20, 4)]).second(100.0, Some(1.0), Some(&[(20, 1.0)]));
    assert_eq!(scene.joules(), (BTreeMap::from([(2, 100.0)]), 0.0, 50.0));
    // The first one is back, larger, and goes on with what it had.
    scene.list(&[(10, 5), (20, 4)]).second(100.0, Some(1.0), Some(&[(10, 0.5), (20, 0.5)]));
    assert_eq!(scene.joules(), (BTreeMap::from([(1, 100.0)]), 0.0, 100.0));
    scene.list(&[]);
    scene.seconds += 30;
    assert_eq!(scene.list(&[]).joules().0, BTreeMap::from([(1, 100.0)]));
    scene.seconds += 2;
    assert_eq!(scene.list(&[]).joules().0, BTreeMap::new());
}

/// Numbers that depend on the seed alone.
struct Choices(u64);

impl Choices {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn share(&mut self) -> f64 {
        self.below(101) as f64 / 100.0
    }
}

#[test]
fn whatever_happens_each_joule_is_counted_once_and_no_count_falls() {
    for seed in 1_u64..200 {
        let (mut choices, mut scene) =
            (Choices(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)), Scene::new(1 + seed as usize % 4));
        // The last count of each series that was ever shown, and the sum of their rises.
        let (mut last, mut risen) = (BTreeMap::<String, f64>::new(), 0.0);
        for _ in 0..120 {
            let pids: Vec<_> = (0..40).filter(|_| choices.below(8) == 0).collect();
            let listed: Vec<_> = pids.iter().map(|pid| (*pid, choices.below(100))).collect();
            match choices.below(6) {
                0 | 1 => _ = scene.list(&listed),
                2 => scene.seconds += choices.below(40) as u32,
                _ => {}
            }
            let utilization = (choices.below(9) > 0).then(|| choices.share());
            let samples: Vec<_> = pids.iter().map(|pid| (*pid, choices.share())).collect();
            let watts = choices.below(700) as f64;
            match choices.below(9) {
                0 => _ = scene.spend(watts, utilization),
                1 => _ = scene.second(watts, utilization, None),
                _ => _ = scene.second(watts, utilization, Some(&samples)),
            }
            let RestOfEnergy { idle, other, .. } = scene.ledger.shown().unwrap();
            // A workload that was forgotten begins again at 0, at another time.
            let workloads = scene.shown().into_iter().map(|shown| {
                let share = shown.energy.unwrap();
                (format!("{} since {:?}", shown.workload.name, share.counted_since), share.joules)
            });
            let now: Vec<_> = workloads.chain([("idle".to_owned(), idle), ("other".to_owned(), other)]).collect();
            for (series, joules) in now {
                let before = last.insert(series.clone(), joules).unwrap_or(0.0);
                assert!(joules >= before, "seed {seed}: {series} fell from {before} to {joules}");
                risen += joules - before;
            }
            let whole = scene.energy.joules;
            assert!((risen - whole).abs() < 1e-6, "seed {seed}: {risen} of {whole} J");
        }
    }
}
