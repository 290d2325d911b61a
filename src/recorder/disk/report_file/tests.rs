use super::*;

fn report(workload: &str) -> Arc<JobReport> {
    let report = serde_json::json!({
        "version": 1, "workload": workload, "kind": "slurm", "simulated": true, "state": "ended", "start": 1.0, "end": 2.0,
        "seconds": 1.0, "seen_from_start": true, "processes": 1, "exits": [], "gpus": [],
    });
    Arc::new(serde_json::from_value(report).unwrap())
}

fn settings(path: &Path, max_bytes: u64) -> ReportFileSettings {
    ReportFileSettings { path: path.to_owned(), max_bytes }
}

/// Opens the folder, writes the reports, and returns the names of those that were there before.
fn write(path: &Path, max_bytes: u64, workloads: &[String], faults: &Arc<Faults>) -> Vec<String> {
    let (file, earlier) = open(settings(path, max_bytes), 100, faults.clone()).unwrap();
    workloads.iter().for_each(|workload| file.write(&report(workload)));
    file.close();
    earlier.into_iter().map(|report| report.workload).collect()
}

fn total(faults: &Faults) -> u64 {
    faults.counts().map(|(_, _, count)| count).sum()
}

#[test]
fn reports_survive_a_restart_and_both_files_stay_within_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("notes"), "mine").unwrap();
    let faults = Arc::new(Faults::default());
    let names: Vec<_> = (0..300).map(|n| format!("slurm:{n}")).collect();
    assert_eq!(write(folder.path(), 64 << 10, &names, &faults), [""; 0]);
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let (current, former) = (read(CURRENT), read(FORMER));
    assert!(current.len() <= 32 << 10 && former.len() <= 32 << 10 && current.len() + former.len() > 32 << 10);
    let lines: Vec<JobReport> =
        former.lines().chain(current.lines()).map(|line| serde_json::from_str(line).unwrap()).collect();
    let written: Vec<_> = lines.iter().map(|report| report.workload.clone()).collect();
    assert_eq!(written, names[300 - written.len()..], "in order, without a gap");
    let earlier = write(folder.path(), 64 << 10, &[], &faults);
    assert_eq!(earlier, names[300 - earlier.len()..]);
    assert!(!earlier.is_empty() && earlier.len() <= 100);
    assert_eq!((read("notes"), total(&faults)), ("mine".to_owned(), 0));
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(folder.path().join(CURRENT)).unwrap().permissions());
    assert_eq!(mode & 0o007, 0, "not for everybody");
}

#[test]
fn an_unfinished_line_is_removed_and_a_foreign_one_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let faults = Arc::new(Faults::default());
    write(folder.path(), 64 << 10, &["slurm:1".into()], &faults);
    let path = folder.path().join(CURRENT);
    let first = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{first}{{\"other\": 1}}\n{}", &first[..30])).unwrap();
    assert_eq!(write(folder.path(), 64 << 10, &["slurm:2".into()], &faults), ["slurm:1"]);
    assert_eq!((total(&faults), faults.count(Source::Recorder, Reason::Malformed)), (1, 1));
    let second = first.replace("slurm:1", "slurm:2");
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{first}{{\"other\": 1}}\n{second}"));
}

#[test]
fn a_folder_that_is_missing_costs_counted_reports_until_it_exists() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("later");
    let faults = Arc::new(Faults::default());
    let (file, earlier) = open(settings(&path, 64 << 10), 100, faults.clone()).unwrap();
    assert!(earlier.is_empty());
    assert_eq!(faults.count(Source::Recorder, Reason::Unreadable), 1);
    file.write(&report("slurm:1"));
    while faults.count(Source::Recorder, Reason::Unwritable) == 0 {
        std::thread::yield_now();
    }
    fs::create_dir(&path).unwrap();
    file.write(&report("slurm:2"));
    file.close();
    let text = fs::read_to_string(path.join(CURRENT)).unwrap();
    assert!(text.contains("slurm:2") && text.lines().count() == 1, "{text}");
    assert_eq!(total(&faults), 2);
}

#[test]
fn a_folder_in_the_place_of_the_file_and_a_report_that_is_too_long_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let faults = Arc::new(Faults::default());
    write(folder.path(), 64, &["slurm:1".into()], &faults);
    assert_eq!(faults.count(Source::Recorder, Reason::Unwritable), 1);
    assert!(!folder.path().join(CURRENT).exists());
    fs::create_dir(folder.path().join(CURRENT)).unwrap();
    write(folder.path(), 64 << 10, &["slurm:2".into()], &faults);
    assert_eq!(faults.count(Source::Recorder, Reason::Unwritable), 2);
}
