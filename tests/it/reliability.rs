//! `docs/reliability.md` and the tests: each row names tests that exist and are not skipped, each fault that matters
//! has its row, and each test of a fault is named in a row.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use workspace_skips::{Runner, total};

/// The rows that must be there, by their first column.
const ROWS: [&str; 34] = [
    "library absent",
    "library appears later",
    "driver replaced under the library",
    "driver unloaded",
    "driver released on request",
    "every call returns every error code",
    "one GPU lost for good",
    "no other session can be opened for a lost GPU, or for a machine that changed",
    "one GPU lost and back",
    "a call on one of eight GPUs hangs for ever",
    "a call on a GPU hangs for ever while the driver is closed and opened again",
    "an Xid occurs while a driver call hangs",
    "a reading says that more memory is in use than exists, has all bits set, or has a total of zero",
    "a profiling call fails or hangs, or a profiling value cannot be true",
    "a GPU cannot be opened",
    "the UUID of a GPU cannot be read when the driver is opened",
    "the number of GPUs changes",
    "the MIG layout changes",
    "the process list grows between count and call",
    "a process is gone between list and /proc",
    "a pid is reused",
    "/proc cannot be read",
    "/proc belongs to another pid namespace",
    "the wall clock is set back or forward by an hour",
    "the machine is suspended or paused",
    "no file descriptor is left",
    "the disk is full",
    "the web-config file is emptied, cut or wrong",
    "the kubelet fails",
    "the API server fails",
    "the folder of Slurm's allocations, or a file in it, cannot be used",
    "the OTLP receiver fails",
    "a lane panics",
    "SIGTERM arrives while a call hangs",
];

/// The integration tests.
const TESTS: &str = "tests/it";

/// The folder in which every test is about a fault.
const FAULTS: &str = "tests/it/faults";

/// The files that may use the wall clock: for the start times and activity of processes, for times in messages and in
/// pushes, and for files.
const WALL_CLOCK: [&str; 13] = [
    "crates/gpu-readings/src/attribution/boot.rs",
    "crates/gpu-readings/src/attribution/users/passwd.rs",
    "crates/gpu-readings/src/lanes/process/table.rs",
    "crates/gpu-readings/src/lanes/process/tracked.rs",
    "crates/gpu-readings/src/lanes/supervisor/run.rs",
    "crates/gpu-readings/src/lanes/telemetry/gpu.rs",
    "crates/gpu-readings/src/lanes/telemetry/work_until.rs",
    "src/otlp/batch.rs",
    "src/otlp/pusher.rs",
    "src/otlp/settings.rs",
    "crates/gpu-readings/src/snapshot/owner.rs",
    "crates/gpu-readings/src/snapshot/process_id.rs",
    "crates/gpu-readings/src/snapshot/pushes.rs",
];

/// The files that use the wall clock only for the times since which counters count, which OpenMetrics shows.
const COUNTED_SINCE: [&str; 25] = [
    "crates/gpu-readings/src/faults.rs",
    "crates/gpu-readings/src/lanes/memory/accumulator.rs",
    "crates/gpu-readings/src/lanes/process/over_limit.rs",
    "crates/gpu-readings/src/lanes/process/workload_entry.rs",
    "crates/gpu-readings/src/lanes/telemetry/energy.rs",
    "crates/gpu-readings/src/lanes/telemetry/profiling/scope.rs",
    "crates/gpu-readings/src/lanes/xids.rs",
    "crates/gpu-readings/src/snapshot/calls.rs",
    "crates/gpu-calls/src/tally.rs",
    "crates/gpu-calls/src/watch.rs",
    "crates/gpu-metrics/src/build_metrics.rs",
    "crates/gpu-metrics/src/exposition.rs",
    "crates/gpu-metrics/src/gpu_memory.rs",
    "crates/gpu-metrics/src/openmetrics.rs",
    "crates/gpu-metrics/src/own_process.rs",
    "crates/gpu-metrics/src/points.rs",
    "crates/gpu-metrics/src/scrape.rs",
    "crates/gpu-metrics/src/section.rs",
    "crates/gpu-metrics/src/view.rs",
    "crates/gpu-readings/src/snapshot/budget.rs",
    "crates/gpu-readings/src/snapshot/memory.rs",
    "crates/gpu-readings/src/snapshot/process.rs",
    "crates/gpu-readings/src/snapshot/profiling.rs",
    "crates/gpu-readings/src/snapshot/recorder.rs",
    "crates/gpu-readings/src/snapshot/telemetry.rs",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Each row of the page: its fault, and its tests as `file::function`.
fn rows() -> Vec<(String, Vec<String>)> {
    let page = read("docs/reliability.md");
    let tables = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let rows = tables.map(|row| row.split(" | ").collect::<Vec<_>>()).filter(|row| row[0] != "fault");
    rows.map(|row| {
        assert_eq!(row.len(), 5, "{row:?}");
        assert!(row.iter().all(|cell| !cell.trim().is_empty()), "{row:?}");
        (row[0].to_owned(), row[4].split("<br>").map(str::to_owned).collect())
    })
    .collect()
}

/// The test functions in a source file, and whether each runs: ignored tests and those compiled only on request do not.
fn tests(source: &str) -> BTreeMap<String, bool> {
    let mut found = BTreeMap::new();
    let (mut is_test, mut runs) = (false, true);
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[") {
            is_test |= line == "#[test]" || line.starts_with("#[tokio::test");
            runs &= !line.contains("ignore") && !line.contains("cfg(");
            continue;
        }
        let signature = line.strip_prefix("async ").unwrap_or(line);
        if let Some(name) = signature.strip_prefix("fn ").filter(|_| is_test) {
            found.insert(name.split('(').next().unwrap_or_default().to_owned(), runs);
        }
        (is_test, runs) = (false, true);
    }
    found
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, found),
            false if path.extension().is_some_and(|end| end == "rs") => found.push(path),
            false => {}
        }
    }
}

/// The sources under a folder, by their paths from the root.
fn sources_under(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    sources(&root().join(folder), &mut found);
    let named = |path: &PathBuf| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
    found.iter().map(|path| (named(path), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn every_row_is_proven_by_tests_that_exist_and_run() {
    let rows = rows();
    assert!(rows.len() >= ROWS.len());
    for (fault, named) in rows {
        for test in named {
            let (file, function) = test.split_once("::").unwrap_or_else(|| panic!("{fault}: bad test name {test}"));
            match tests(&read(file)).get(function) {
                Some(runs) => assert!(runs, "{fault}: {test} does not run"),
                None => panic!("{fault}: there is no test {test}"),
            }
        }
    }
}

#[test]
fn every_fault_that_matters_has_its_row_and_only_one() {
    let faults: Vec<String> = rows().into_iter().map(|(fault, _)| fault).collect();
    for row in ROWS {
        assert!(faults.iter().any(|fault| fault == row), "no row for: {row}");
    }
    assert_eq!(faults.iter().collect::<BTreeSet<_>>().len(), faults.len(), "a fault has two rows");
}

#[test]
fn every_test_of_a_fault_is_on_the_page() {
    let named: BTreeSet<String> = rows().into_iter().flat_map(|(_, tests)| tests).collect();
    let mut seen = 0;
    for (file, source) in sources_under(FAULTS) {
        for (function, runs) in tests(&source) {
            assert!(runs, "{file}::{function} does not run");
            assert!(named.contains(&format!("{file}::{function}")), "{file}::{function} is not in docs/reliability.md");
            seen += 1;
        }
    }
    assert!(seen > 25, "only {seen} tests were seen");
}

/// A file that no `mod` names is not compiled, and its tests would silently not run.
#[test]
fn every_file_of_tests_is_compiled() {
    for (file, _) in sources_under(TESTS) {
        let path = Path::new(&file);
        let (folder, module) = (path.parent().unwrap(), path.file_stem().unwrap().to_str().unwrap());
        let parent = match folder == Path::new(TESTS) {
            true if module == "main" => continue,
            true => format!("{TESTS}/main.rs"),
            false => format!("{}.rs", folder.display()),
        };
        let declarations = [format!("mod {module};"), format!("pub(crate) mod {module};")];
        let is_declared = read(&parent).lines().any(|line| declarations.iter().any(|mod_line| mod_line == line));
        assert!(is_declared, "{parent} does not declare {file}");
    }
}

#[test]
fn no_test_of_a_fault_is_skipped_for_want_of_a_tool() {
    for (file, source) in sources_under(FAULTS) {
        assert!(!source.contains("missing(") && !source.contains("workspace_skips"), "{file} may skip a test");
    }
}

/// A skipped test passes, so libtest shows nothing of what it printed.
#[test]
fn a_skipped_test_is_visible_and_counted() {
    const NAME: &str = "metrics_contract::promtool_finds_nothing_wrong";
    const REQUIRE_ALL: &str = "VRAM_EXPORTER_TEST_REQUIRE_ALL";
    let run = |required: Option<&str>| {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", NAME]).env("PATH", "/nonexistent").env_remove(REQUIRE_ALL);
        let ended = again.envs(required.map(|value| (REQUIRE_ALL, value))).output().unwrap();
        let skips = Runner::at(std::process::id()).take().unwrap();
        (ended.status.success(), String::from_utf8(ended.stderr).unwrap(), skips)
    };
    let skip = format!("{NAME}: promtool is missing");
    let (passed, said, skips) = run(None);
    assert!(passed && said.contains(&format!("SKIPPED: {skip}\n")), "{said}");
    assert_eq!(total(&skips), format!("SKIPPED: 1 test did not run:\n    promtool is missing: {NAME}\n"));
    let (passed, said, skips) = run(Some("1"));
    assert!(!passed && !said.contains("SKIPPED") && skips.is_empty(), "{said}");
}

#[test]
fn no_rhythm_and_no_age_is_of_the_wall_clock() {
    let folders = ["crates/gpu-readings/src", "crates/gpu-calls/src", "crates/gpu-metrics/src", "src/otlp"];
    let naming: BTreeSet<String> = folders
        .into_iter()
        .flat_map(sources_under)
        .filter(|(file, _)| !file.ends_with("/tests.rs"))
        .filter(|(_, source)| source.contains("SystemTime"))
        .map(|(file, _)| file)
        .collect();
    let known: BTreeSet<String> = WALL_CLOCK.into_iter().chain(COUNTED_SINCE).map(str::to_owned).collect();
    assert_eq!(naming, known);
}

#[test]
fn the_check_sees_what_is_not_run() {
    let source = "#[test]\nfn a() {}\n#[test]\n#[ignore]\nfn b() {}\n#[tokio::test]\nasync fn c() {}\nfn d() {}\n\
                  #[cfg(feature = \"x\")]\n#[test]\nfn e() {}\n";
    let found = tests(source);
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        [("a", true), ("b", false), ("c", true), ("e", false)].map(|(n, r)| (n.to_owned(), r))
    );
}
