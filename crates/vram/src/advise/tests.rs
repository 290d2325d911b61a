//! The whole judgement, from answers of a server.

use super::arguments::{By, Format};
use super::prometheus::{Point, Series};
use super::record::{Basis, Reason, Workload};
use super::*;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const END: u64 = 1_764_000_000;
const H200: u64 = 143_155 * MIB;

/// Answers about a fleet with two H200, `A` and `B`, of which `B` has a MIG device `I`.
#[derive(Default)]
struct Fleet {
    answers: Answers,
}

fn series(labels: &str, points: &[(u64, u64)]) -> Series {
    let pairs = labels.split_whitespace().map(|pair| pair.split_once('=').unwrap());
    let labels = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Series { labels, points: points.iter().map(|&(time, value)| Point { time, value }).collect() }
}

fn span() -> Span {
    Span::new(14 * 86_400, END)
}

impl Fleet {
    fn new() -> Self {
        let mut fleet = Self::default();
        for uuid in ["A", "B"] {
            fleet.answers.gpu_total.push(series(&format!("uuid={uuid}"), &[(END, 143_771 * MIB)]));
            fleet.answers.gpu_reserved.push(series(&format!("uuid={uuid}"), &[(END, 616 * MIB)]));
            fleet.answers.gpu_info.push(series(&format!("uuid={uuid} name=H200"), &[(END, 1)]));
        }
        fleet.answers.mig_total.push(series("uuid=B mig_uuid=I profile=1g.18gb", &[(END, 16_384 * MIB)]));
        fleet
    }

    /// A run with these window peaks at the ends of the last intervals, 100 samples each.
    fn run(mut self, labels: &str, peaks: &[u64]) -> Self {
        let peak = peaks.iter().copied().max().unwrap();
        let times = (1..=peaks.len() as u64).rev().map(|back| END - (back - 1) * 900);
        let points: Vec<_> = times.zip(peaks.iter().copied()).collect();
        let samples: Vec<_> = points.iter().map(|(time, _)| (*time, 100)).collect();
        self.answers.peaks.push(series(labels, &[(END, peak)]));
        self.answers.interval_peaks.push(series(labels, &points));
        self.answers.interval_samples.push(series(labels, &samples));
        self.answers.processes.push(series(labels, &[(END, 1)]));
        self
    }

    fn now(mut self, labels: &str) -> Self {
        self.answers.processes_now.push(series(labels, &[(END, 1)]));
        self
    }

    fn judge(&self) -> Advice {
        self.judge_by(By::Workload)
    }

    fn judge_by(&self, by: By) -> Advice {
        self.judge_in(span(), by)
    }

    fn judge_in(&self, span: Span, by: By) -> Advice {
        self.judge_with(span, by, Enough { samples: 100, span: 3 * 3600 })
    }

    fn judge_with(&self, span: Span, by: By, enough: Enough) -> Advice {
        let arguments = Arguments {
            url: web_client::server_url::ServerUrl::parse("http://p:9090", "", "").unwrap(),
            range: 14 * 86_400,
            time: END,
            by,
            format: Format::Json,
            min_samples: enough.samples,
            min_span: enough.span,
            http_config: None,
            timeout: std::time::Duration::from_secs(1),
        };
        judged(&arguments, span, &self.answers, 1, Vec::new())
    }

    fn only(&self) -> Workload {
        let [workload] = &self.judge().workloads[..] else { panic!("{:?}", self.judge()) };
        workload.clone()
    }
}

/// 20 intervals, of which one is higher.
fn spike(low: u64, high: u64) -> Vec<u64> {
    let mut peaks = vec![low; 20];
    peaks[7] = high;
    peaks
}

#[test]
fn advice_is_the_peak_and_a_margin() {
    let labels = "workload=ml/a-0/main kind=kubernetes uuid=A";
    let fleet = Fleet::new().run(labels, &spike(10 * GIB, 20 * GIB + 1)).now(labels);
    let found = fleet.only();
    assert_eq!((found.workload.as_str(), found.runs, found.devices, found.devices_now), ("ml/a/main", 1, 1, 1));
    assert_eq!((found.samples, found.span_seconds), (2000, 19 * 900));
    assert_eq!((found.first, found.last), (Some(END - 19 * 900), Some(END)));
    assert_eq!((found.peak_bytes, found.driver_peak_bytes, found.basis), (20 * GIB + 1, 20 * GIB + 1, Basis::Driver));
    assert_eq!((found.peak_from, found.peak_until), (Some(END - 13 * 900), Some(END - 12 * 900)));
    assert_eq!((found.intervals, found.intervals_near_peak), (20, 1));
    assert_eq!((found.advice_bytes, found.reason), (Some(23 * GIB + 2), Reason::Peak));
    assert_eq!((found.current_bytes, found.current_source.as_deref()), (Some(H200), Some("device")));
    assert_eq!((found.action, found.freed_bytes), (Action::Lower, H200 - 23 * GIB - 2));
    let advice = fleet.judge();
    assert_eq!((advice.fleet.gpus_now, advice.fleet.gpus_first_fit, advice.fleet.gpus_lower_bound), (1, 1, 1));
    assert_eq!((advice.left_out, advice.warnings.len(), advice.source), (0, 0, "raw"));
}

#[test]
fn too_little_history_gives_no_advice() {
    let labels = "workload=slurm:1 kind=slurm uuid=A";
    let mut fleet = Fleet::new().run(labels, &[GIB; 12]);
    assert_eq!(fleet.only().reason, Reason::TooShort, "12 intervals are at least 2 h 45 min");
    assert_eq!(Fleet::new().run(labels, &[GIB; 13]).only().reason, Reason::Peak);
    for series in &mut fleet.answers.interval_samples {
        series.points.iter_mut().for_each(|point| point.value = 8);
    }
    let found = fleet.only();
    assert_eq!((found.reason, found.advice_bytes, found.units), (Reason::TooFewSamples, None, None));
    assert_eq!((found.action, found.freed_bytes, found.samples), (Action::None, 0, 96));
}

#[test]
fn in_a_long_range_a_short_job_at_a_border_of_two_intervals_has_too_little_history() {
    let interval = Span::interval_of(365 * 86_400);
    assert_eq!(interval, 23_465);
    let judged = |intervals: u64| {
        let span = Span::new(365 * 86_400, END);
        let labels = "workload=slurm:1 kind=slurm uuid=A";
        let mut fleet = Fleet::new().run(labels, &[GIB; 3]);
        let last = span.begin + interval * span.whole();
        let points = |value| (0..intervals).map(|back| (last - back * interval, value)).collect::<Vec<_>>();
        fleet.answers.interval_peaks = vec![series(labels, &points(GIB))];
        fleet.answers.interval_samples = vec![series(labels, &points(100))];
        let found = fleet.judge_in(span, By::Workload).workloads.remove(0);
        (found.span_seconds, found.reason)
    };
    assert_eq!(judged(2), (interval, Reason::TooShort), "it may have been minutes");
    assert_eq!(judged(3), (2 * interval, Reason::Peak), "it was more than one interval");
}

#[test]
fn a_short_history_is_enough_where_that_is_asked_for() {
    let span = Span::new(3600, END);
    assert_eq!(span.interval, 60);
    let labels = "workload=slurm:1 kind=slurm uuid=A";
    let mut fleet = Fleet::new().run(labels, &[GIB; 3]);
    fleet.answers.interval_peaks = vec![series(labels, &[(END, GIB), (END - 60, GIB)])];
    fleet.answers.interval_samples = vec![series(labels, &[(END, 100), (END - 60, 100)])];
    let judged = |seconds| {
        let enough = Enough { samples: 100, span: seconds };
        fleet.judge_with(span, By::Workload, enough).workloads.remove(0).reason
    };
    assert_eq!((judged(60), judged(61)), (Reason::Peak, Reason::TooShort));
}

#[test]
fn zeros_after_the_end_are_not_its_history() {
    let labels = "workload=slurm:1 kind=slurm uuid=A";
    let mut peaks = vec![H200 / 100 * 75; 20];
    peaks[0] = GIB;
    peaks.extend([2 * GIB, 0, 0]);
    let found = Fleet::new().run(labels, &peaks).only();
    assert_eq!((found.preallocates, found.reason), (Some("share_75"), Reason::Preallocated));
    assert_eq!((found.samples, found.intervals, found.last), (2100, 21, Some(END - 2 * 900)));
    assert!(Fleet::new().run(labels, &[0; 20]).judge().workloads.is_empty());
}

#[test]
fn the_pods_of_a_deployment_are_one_workload() {
    let pod = |pod: &str, uuid: &str| format!("workload=ml/{pod}/main kind=kubernetes uuid={uuid}");
    let fleet = Fleet::new()
        .run(&pod("app-7d4b9c8f6-x2zvq", "A"), &spike(GIB, 2 * GIB))
        .run(&pod("app-7d4b9c8f6-c4zvq", "B"), &spike(GIB, 3 * GIB))
        .run(&pod("app-6d4cf56db6-c4zvq", "B"), &spike(GIB, GIB))
        .run(&format!("cluster=east {}", pod("app-7d4b9c8f6-x2zvq", "A")), &spike(GIB, 9 * GIB))
        .run("workload=other uuid=A", &[GIB]);
    let advice = fleet.judge();
    let found: Vec<_> =
        advice.workloads.iter().map(|w| (w.cluster.as_deref(), w.runs, w.devices, w.peak_bytes)).collect();
    assert_eq!(found, [(None, 3, 2, 3 * GIB), (Some("east"), 1, 1, 9 * GIB)]);
    assert_eq!((advice.left_out, advice.warnings.len()), (1, 1), "{:?}", advice.warnings);
    assert_eq!(fleet.judge_by(By::Pod).workloads.len(), 4);
    assert_eq!((fleet.judge_by(By::Job).workloads.len(), fleet.judge_by(By::Job).left_out), (0, 5));
}

#[test]
fn a_client_tells_what_is_needed() {
    let labels = "workload=slurm:1 kind=slurm uuid=A";
    let process = "uuid=A pid=7 process=train.py";
    let mut fleet = Fleet::new().run(labels, &[100 * GIB; 20]);
    assert_eq!(fleet.only().preallocates, None);
    let flat = Fleet::new().run(labels, &[H200 / 100 * 75; 20]).only();
    assert_eq!((flat.preallocates, flat.reason, flat.advice_bytes), (Some("share_75"), Reason::Preallocated, None));

    fleet.answers.owners.push(series(&format!("{labels} {process} user=ada"), &[(END, 1)]));
    fleet.answers.allocated.push(series(&format!("{process} framework=jax"), &[(END, 10 * GIB)]));
    fleet.answers.outside.push(series(process, &[(END, GIB)]));
    fleet.answers.process_peaks.push(series(process, &[(END, 100 * GIB)]));
    let found = fleet.only();
    assert_eq!((found.basis, found.peak_bytes, found.driver_peak_bytes), (Basis::Allocator, 11 * GIB, 100 * GIB));
    assert_eq!((found.allocated_peak_bytes, found.frameworks), (Some(10 * GIB), vec!["jax".to_owned()]));
    assert_eq!((found.out_of_memory, found.reason), (None, Reason::Peak));
    let units = found.units.unwrap();
    assert_eq!((units.outside_bytes, units.outside_assumed), (GIB, false));

    fleet.answers.out_of_memory.push(series(&format!("{process} framework=jax"), &[(END, 2)]));
    let found = fleet.only();
    assert_eq!((found.out_of_memory, found.reason), (Some(2), Reason::FailedAllocations));
    assert_eq!((found.advice_bytes, found.units, found.beyond), (None, None, None));
    assert_eq!(found.action, Action::None);
    let users = fleet.judge_by(By::User).workloads;
    assert_eq!((users[0].workload.as_str(), users[0].kind.as_str(), users[0].peak_bytes), ("ada", "user", 11 * GIB));
}

#[test]
fn what_died_at_the_limit_has_no_number_although_no_client_reports() {
    let labels = "workload=slurm:1 kind=slurm uuid=A";
    let mut fleet = Fleet::new().run(labels, &spike(GIB, 43 * GIB));
    assert_eq!(fleet.only().reason, Reason::Peak);
    fleet.answers.shortages.push(series(labels, &[(END, END - 60)]));
    let found = fleet.only();
    assert_eq!((found.reason, found.last_shortage), (Reason::Shortage, Some(END - 60)));
    assert_eq!((found.advice_bytes, &found.units, found.action), (None, &None, Action::None));
    let [.., change, _] = output::words_of(&found);
    let said = "could not allocate at 2025-11-24 15:59, it may need more than its 43.00 GiB";
    assert!(change.contains(said), "{change}");
}

#[test]
fn what_may_not_fit_has_no_number_and_names_the_next_larger_board() {
    let labels = "workload=slurm:1 kind=slurm uuid=S";
    let small = |peaks: &[u64]| {
        let mut fleet = Fleet::new().run(labels, peaks).now(labels);
        fleet.answers.gpu_total.push(series("uuid=S", &[(END, 40 * GIB)]));
        fleet.answers.gpu_info.push(series("uuid=S name=A100", &[(END, 1)]));
        fleet
    };
    assert_eq!(small(&spike(GIB, 34 * GIB)).only().reason, Reason::Peak);
    let mut fleet = small(&spike(GIB, 39 * GIB));
    let found = fleet.only();
    assert_eq!((found.reason, found.advice_bytes, found.action), (Reason::ExceedsDevice, None, Action::None));
    let beyond = found.beyond.clone().unwrap();
    assert_eq!((beyond.name.as_deref(), beyond.allocatable_bytes), (Some("A100"), 40 * GIB));
    assert_eq!(beyond.larger_board.unwrap().name, "H200");
    let [.., change, _] = output::words_of(&found);
    assert_eq!(
        change,
        "40.00 GiB → none: its peak and 15 % are more than the device has: may not fit one A100; several, or H200"
    );

    let process = "uuid=S pid=7 process=train.py";
    fleet.answers.owners.push(series(&format!("{labels} {process} user=ada"), &[(END, 1)]));
    fleet.answers.allocated.push(series(&format!("{process} framework=jax"), &[(END, 10 * GIB)]));
    fleet.answers.out_of_memory.push(series(&format!("{process} framework=jax"), &[(END, 3)]));
    let [.., change, _] = output::words_of(&fleet.only());
    assert_eq!(
        change,
        "40.00 GiB → none: allocations failed, it may need more than its 39.00 GiB: may not fit one A100; several, or H200, RAISE"
    );
}

#[test]
fn a_rising_floor_is_named_with_its_rate_and_never_lowered() {
    let labels = "workload=slurm:1 kind=slurm uuid=A";
    let leak: Vec<u64> = (0..32).map(|n| 10 * GIB + n * GIB / 4).collect();
    let mut fleet = Fleet::new().run(labels, &leak).now(labels);
    let found = fleet.only();
    assert_eq!((found.reason, found.rising_bytes_per_hour), (Reason::Rising, Some(GIB)));
    assert_eq!((found.advice_bytes, found.action, found.freed_bytes), (None, Action::None, 0));
    let [.., change, _] = output::words_of(&found);
    assert_eq!(change, "139.8 GiB → none: rising by 1.00 GiB an hour");

    // Runs of which each takes more than the one before: nothing rises.
    let steps = (0..8).fold(Fleet::new(), |fleet, n| {
        let (before, after) = (4 * n, 28 - 4 * n);
        let mut peaks = vec![0; before];
        peaks.extend([(10 + n as u64) * GIB; 4]);
        peaks.extend(vec![0; after]);
        fleet.run(&format!("workload=ml/exp-{n}/main kind=kubernetes uuid={}", ["A", "B"][n % 2]), &peaks)
    });
    assert_eq!(steps.only().reason, Reason::Peak);

    // A client reports that the program needs little of it: what rises is what the allocator keeps.
    let process = "uuid=A pid=7 process=train.py";
    fleet.answers.owners.push(series(&format!("{labels} {process} user=ada"), &[(END, 1)]));
    fleet.answers.allocated.push(series(&format!("{process} framework=pytorch"), &[(END, 2 * GIB)]));
    fleet.answers.outside.push(series(process, &[(END, GIB)]));
    let found = fleet.only();
    assert_eq!((found.reason, found.peak_bytes, found.action), (Reason::Peak, 3 * GIB, Action::Lower));
}

#[test]
fn a_budget_is_compared_with_the_advice() {
    let labels = "workload=ml/a/main kind=kubernetes uuid=A";
    let with = |budgets: &[(&str, u64)], peak: u64| {
        let mut fleet = Fleet::new().run(labels, &spike(GIB, peak)).now(labels);
        for (source, bytes) in budgets {
            fleet.answers.budgets.push(series(&format!("{labels} source={source}"), &[(END, *bytes)]));
        }
        let found = fleet.only();
        (found.current_bytes.unwrap(), found.current_source.unwrap(), found.action)
    };
    let lowest = with(&[("kai", 50 * GIB), ("annotation", 40 * GIB)], 20 * GIB);
    assert_eq!(lowest, (40 * GIB, "annotation".to_owned(), Action::Lower));
    assert_eq!(with(&[("kai", 24 * GIB)], 20 * GIB).2, Action::Keep, "the difference is too small");
    assert_eq!(with(&[("kai", 22 * GIB)], 20 * GIB).2, Action::Keep, "it was never above the budget");
    assert_eq!(with(&[("kai", 19 * GIB)], 20 * GIB).2, Action::Raise);
}

#[test]
fn a_mig_device_shrinks_only_to_a_smaller_profile() {
    let labels = "workload=ml/a/main kind=kubernetes uuid=B mig_uuid=I";
    let mut fleet = Fleet::new().run(labels, &spike(GIB, 4 * GIB)).now(labels);
    let found = fleet.only();
    assert_eq!((found.current_bytes, found.action), (Some(16_384 * MIB), Action::Keep), "there is no smaller profile");
    let smaller = "uuid=B mig_uuid=J profile=1g.9gb";
    fleet.answers.mig_total.push(series(smaller, &[(END, 9_000 * MIB)]));
    let found = fleet.only();
    assert_eq!((found.action, found.units.unwrap().mig_profile.unwrap().name.as_str()), (Action::Lower, "1g.9gb"));
}

#[test]
fn the_fleet_counts_what_runs_now() {
    let pod = |pod: u32, uuid: &str| format!("workload=ml/app-{pod}/main kind=kubernetes uuid={uuid}");
    let fleet = Fleet::new()
        .run(&pod(0, "A"), &spike(GIB, 40 * GIB))
        .run(&pod(1, "B"), &spike(GIB, 40 * GIB))
        .run("workload=slurm:9 kind=slurm uuid=A", &spike(GIB, 100 * GIB))
        .run("workload=slurm:8 kind=slurm uuid=C", &spike(GIB, GIB))
        .now(&pod(0, "A"))
        .now(&pod(1, "B"))
        .now("workload=slurm:8 kind=slurm uuid=C");
    let advice = fleet.judge();
    assert_eq!(advice.fleet.boards.len(), 1);
    let board = &advice.fleet.boards[0];
    assert_eq!((board.board.as_str(), board.allocatable_bytes, board.runs_now), ("H200", H200, 2));
    assert_eq!((board.gpus_now, board.gpus_lower_bound, board.gpus_first_fit), (2, 1, 1));
    assert!(advice.warnings[0].contains("1 runs are on GPUs without gpu_info"), "{:?}", advice.warnings);
    assert_eq!(advice.fleet.freed_bytes, 2 * (H200 - 46 * GIB));
}

#[test]
fn no_more_is_given_back_than_a_device_has() {
    let labels = |number: u64| format!("workload=slurm:{number} kind=slurm uuid=A");
    let mut fleet = Fleet::new();
    for number in 0..10 {
        fleet = fleet.run(&labels(number), &spike(GIB, 5 * GIB)).now(&labels(number));
    }
    let advice = fleet.judge();
    let each = (5 * GIB * 115).div_ceil(100);
    assert_eq!(advice.fleet.freed_bytes, H200 - 10 * each);
    assert!(advice.workloads.iter().all(|workload| workload.freed_bytes == H200 - 10 * each));

    // Budgets count as they are, but never for more than the device has room for.
    for (budget, freed) in [(8 * GIB, 10 * (8 * GIB - each)), (100 * GIB, H200 - 10 * each)] {
        for number in 0..10 {
            fleet.answers.budgets.push(series(&format!("{} source=kai", labels(number)), &[(END, budget)]));
        }
        let advice = fleet.judge();
        assert_eq!(advice.fleet.freed_bytes, freed);
        assert_eq!(advice.workloads[0].freed_bytes, (budget - each).min(H200 - 10 * each));
        fleet.answers.budgets.clear();
    }

    // A run without advice may need what it does not hold now.
    let fleet = fleet.run("workload=slurm:99 kind=slurm uuid=A", &[GIB]).now("workload=slurm:99 kind=slurm uuid=A");
    let advice = fleet.judge();
    assert_eq!((advice.fleet.freed_bytes, advice.fleet.gpus_lower_bound, advice.fleet.gpus_first_fit), (0, 1, 1));

    // Two users of one run are not two runs.
    let owned = |user: &str| series(&format!("{} pid=1 process=a user={user}", labels(1)), &[(END, 1)]);
    let mut fleet = Fleet::new().run(&labels(1), &spike(GIB, 5 * GIB)).now(&labels(1));
    fleet.answers.owners.extend([owned("ada"), owned("bob")]);
    let advice = fleet.judge_by(By::User);
    assert_eq!((advice.workloads.len(), advice.fleet.freed_bytes), (2, H200 - each));
}

#[test]
fn every_format_shows_the_workloads_without_control_characters() {
    let hostile = "unit:<b>\u{1b}[31m\u{202e}\u{9b}é";
    let labels = format!("workload={hostile} kind=systemd uuid=A");
    let mut fleet = Fleet::new().run(&labels, &spike(GIB, 20 * GIB)).now(&labels);
    fleet.answers.gpu_info.push(series("uuid=A simulated=true name=H200", &[(END, 1)]));
    let advice = fleet.judge();
    let of = |format| output::text(&advice, format).unwrap();
    for format in [Format::Table, Format::Json, Format::Yaml, Format::Csv] {
        let text = of(format);
        let ends = |c| c == '\n' || (c == '\r' && format == Format::Csv);
        assert!(text.chars().all(|c| ends(c) || text_and_sizes::text::is_plain(c)), "{text:?}");
        assert!(
            text.contains("é") && text.contains("1g.35gb") == (format == Format::Csv) || format != Format::Csv,
            "{text}"
        );
    }
    let json: serde_json::Value = serde_json::from_str(&of(Format::Json)).unwrap();
    assert_eq!(json["workloads"][0]["workload"], hostile);
    let yaml: serde_json::Value = serde_saphyr::from_str(&of(Format::Yaml)).unwrap();
    assert_eq!(yaml, json);
    let table = of(Format::Table);
    for part in ["SIMULATED", "139.8 GiB → 23.00 GiB, lower", "116.8 GiB", "1 of 20", "2000 samples, 4 h, 1 run"] {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
    assert!(
        table.contains("advised memory, the current workloads need at least 1 GPUs, 1 with first fit; now they use 1"),
        "{table}"
    );
    assert_eq!(of(Format::Csv).lines().count(), 2);
}
