//! Skipped tests, made visible. A skip prints its reason at once, past libtest, which shows the output of a failed test
//! only; and it is recorded, so that the test `total` of this package, which `cargo test --workspace` runs last, can count
//! the skips of all packages with their reasons.
//!
//! Invariant: a test that finds a tool missing either fails or is in the total.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[cfg(feature = "probes")]
pub mod probes;

/// If this variable is set, a missing tool fails the test.
const REQUIRE_ALL: &str = "VRAM_EXPORTER_TEST_REQUIRE_ALL";
/// The folder of the records, next to `deps`, the folder of the test programs.
const RECORDS: &str = "skipped-tests";

/// Whether something that a test needs is missing. If so, the skip is reported, and the caller ends the test.
///
/// # Panics
/// If it is missing and `VRAM_EXPORTER_TEST_REQUIRE_ALL` is set.
pub fn missing(what: &str, there: bool) -> bool {
    if there {
        return false;
    }
    assert!(std::env::var_os(REQUIRE_ALL).is_none_or(|value| value.is_empty()), "{what} is required and missing");
    skipped(&format!("{what} is missing"));
    true
}

/// Reports that the current test is skipped because of something that cannot be installed, such as a newer kernel.
pub fn skipped(why: &str) {
    let thread = std::thread::current();
    let skip = format!("{}: {why}", thread.name().unwrap_or("a test")).replace(['\n', '\r'], " ");
    // Not with eprintln!, whose output libtest captures.
    let _ = writeln!(io::stderr().lock(), "SKIPPED: {skip}");
    if let Err(error) = record(&skip) {
        let _ = writeln!(io::stderr().lock(), "SKIPPED: not in the total: {error}");
    }
}

fn record(skip: &str) -> io::Result<()> {
    let folder = folder()?;
    fs::create_dir_all(&folder)?;
    let file = folder.join(Runner::of_this_process().name());
    let mut file = File::options().create(true).append(true).open(file)?;
    // One write, so that lines of concurrent tests do not mix.
    file.write_all(format!("{skip}\n").as_bytes())
}

fn folder() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let deps = program.parent().ok_or(io::ErrorKind::NotFound)?;
    Ok(deps.parent().unwrap_or(deps).join(RECORDS))
}

/// The process that runs test programs: usually cargo. Its skips are in a file of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runner {
    pid: u32,
    /// In the clock ticks of `/proc`, so that another process with the same pid is another runner; 0 if unknown.
    start: u64,
}

impl Runner {
    /// The process that started this one.
    pub fn of_this_process() -> Self {
        Self::at(std::os::unix::process::parent_id())
    }

    /// The process with this pid.
    pub fn at(pid: u32) -> Self {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name, in parentheses, can contain spaces; the start is the 20th field after it.
        let start = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse().ok());
        Self { pid, start: start.unwrap_or(0) }
    }

    fn name(self) -> String {
        format!("{}-{}", self.pid, self.start)
    }

    /// The skips, each as `test: reason`, in the test programs that it has started. The record is removed, and so are
    /// those of runners that have ended.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub fn take(self) -> io::Result<BTreeSet<String>> {
        let folder = folder()?;
        let record = match fs::read_to_string(folder.join(self.name())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read?,
        };
        remove_ended(&folder, self);
        Ok(record.lines().map(str::to_owned).collect())
    }
}

fn remove_ended(folder: &Path, taken: Runner) {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    for name in names.filter_map(|name| name.into_string().ok()) {
        let runner = name.split_once('-').and_then(|(pid, _)| pid.parse().ok()).map(Runner::at);
        if runner.is_none_or(|runner| runner == taken || runner.name() != name) {
            let _ = fs::remove_file(folder.join(name));
        }
    }
}

/// The total as text: the number of skipped tests, then each reason with its tests.
pub fn total(skips: &BTreeSet<String>) -> String {
    let mut tests: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for skip in skips {
        let (test, why) = skip.split_once(": ").unwrap_or(("a test", skip));
        tests.entry(why).or_default().push(test);
    }
    let mut text = match skips.len() {
        0 => "no test was skipped\n".to_owned(),
        1 => "SKIPPED: 1 test did not run:\n".to_owned(),
        count => format!("SKIPPED: {count} tests did not run:\n"),
    };
    for (why, tests) in tests {
        text.push_str(&format!("    {why}: {}\n", tests.join(", ")));
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_total_counts_tests_and_groups_them_by_reason() {
        let skips = ["b::y: promtool is missing", "a::x: promtool is missing", "c: the kernel is old: 6.1"];
        let skips: BTreeSet<String> = skips.map(str::to_owned).into();
        let text =
            "SKIPPED: 3 tests did not run:\n    promtool is missing: a::x, b::y\n    the kernel is old: 6.1: c\n";
        assert_eq!(total(&skips), text);
        assert_eq!(total(&BTreeSet::new()), "no test was skipped\n");
    }

    #[test]
    fn only_the_records_of_living_runners_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (own, taken) = (Runner::at(std::process::id()), Runner::of_this_process());
        assert!(own.start > 0 && own != taken);
        let reused = format!("{}-{}", own.pid, own.start + 1);
        for name in [own.name(), taken.name(), reused, "4294967295-7".to_owned(), "other".to_owned()] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        remove_ended(folder.path(), taken);
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [own.name().as_str()]);
    }

    /// The packages of the workspace are those in `tests/` and `crates/`, and the exporter.
    #[test]
    fn no_package_is_tested_after_this_one() {
        // Cargo names the folder of the checkout that it tests. Another checkout may have built this program.
        let own = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&own).join("../..");
        let folders = ["tests", "crates", "tests/judges"].map(|folder| fs::read_dir(root.join(folder)).unwrap());
        let manifests = folders.into_iter().flatten().map(|entry| entry.unwrap().path().join("Cargo.toml"));
        let manifests: Vec<_> = manifests.chain([root.join("Cargo.toml")]).filter(|path| path.is_file()).collect();
        let names = manifests.iter().map(|path| {
            let text = fs::read_to_string(path).unwrap();
            text.lines().find_map(|line| line.strip_prefix("name = ")).unwrap().trim_matches('"').to_owned()
        });
        let names: BTreeSet<String> = names.collect();
        assert!(names.len() > 5, "{names:?}");
        assert_eq!(names.last().map(String::as_str), Some(env!("CARGO_PKG_NAME")));
    }
}
