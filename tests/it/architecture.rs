//! Imports go in one direction. This test reads the source and rejects any import that the architecture does not allow.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What `lib.rs` imports from the crates that this program shares with the tool `vram`. Every module may use it.
const SHARED: [&str; 7] = ["client", "format", "quantity", "regular_file", "server_url", "sizing", "text"];

/// The folders whose modules have a row in [`ALLOWED`].
const SRC: &str = "src";
const READINGS: &str = "crates/gpu-readings/src";

/// Top-level module: the modules that it may import; several rows of a module add up. `allocator` never imports the lanes or
/// the metrics, because what a process reports must not delay them. `internals` is for tests, benchmarks and fuzz targets
/// outside `src`, so no module may import it.
const ALLOWED: &str = "
main: app command_line config
command_line: config demo subcommand
app: allocator attribution backoff config dcgm demo faults http kubernetes lanes machine metrics nvml otlp recorder
app: slurm snapshot supervise
demo: config nvml peaks snapshot
http: config dcgm faults machine metrics recorder snapshot unix_socket
machine: metrics recorder snapshot
dcgm: config metrics snapshot
otlp: backoff blocking_read config faults metrics snapshot supervise
metrics: faults snapshot
recorder: faults snapshot
lanes: attribution backoff faults nvml peaks snapshot
allocator: faults peaks snapshot supervise unix_socket
nvml: faults snapshot
attribution: backoff faults snapshot
kubernetes: backoff blocking_read faults snapshot
slurm: blocking_read faults snapshot
snapshot:
config:
faults:
backoff:
blocking_read:
subcommand: config
peaks:
supervise:
unix_socket:
internals: app kubernetes metrics
";

#[test]
fn imports_go_one_way() {
    let mut allowed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (module, others) in ALLOWED.lines().filter_map(|line| line.split_once(':')) {
        allowed.entry(module).or_default().extend(others.split_whitespace());
    }
    let mut seen = BTreeSet::new();
    for file in [SRC, READINGS].iter().flat_map(|src| sources(&root().join(src))) {
        let module = module_of(&file);
        if module == "lib" {
            continue;
        }
        let may = allowed.get(module.as_str()).unwrap_or_else(|| panic!("the module {module} is not in ALLOWED"));
        let root = if module == "main" { "vram_exporter::" } else { "crate::" };
        for other in imports(root, &fs::read_to_string(&file).unwrap()) {
            if SHARED.contains(&other.as_str()) {
                continue;
            }
            let known = allowed.contains_key(other.as_str());
            assert!(known, "{} names crate::{other}, which is not a module", file.display());
            let legal = other == module || may.contains(other.as_str());
            assert!(legal, "{} (module {module}) must not import {other}", file.display());
            seen.insert((module.clone(), other));
        }
    }
    // Verifies that the check finds imports at all: these exist.
    for arrow in [
        ("http", "metrics"),
        ("metrics", "snapshot"),
        ("lanes", "nvml"),
        ("lanes", "attribution"),
        ("allocator", "snapshot"),
    ] {
        assert!(seen.contains(&(arrow.0.to_owned(), arrow.1.to_owned())), "no import seen for {arrow:?}");
    }
}

/// The files of the exporter's package that may switch the `unsafe_code` lint off.
const UNSAFE_FILES: [&str; 3] =
    ["crates/gpu-readings/src/nvml/raw.rs", "src/app/heap.rs", "src/recorder/history/exit_status.rs"];
/// The folder whose files inherit the exception of `nvml/raw.rs`.
const UNSAFE_SUBMODULES: &str = "crates/gpu-readings/src/nvml/raw/";
/// Where the simulator, whose interface is C, may contain unsafe code.
const UNSAFE_IN_SIMULATOR: [&str; 4] = [
    "crates/nvml-sim/src/abi.rs",
    "crates/nvml-sim/src/abi/",
    "crates/nvml-sim/src/image.rs",
    "crates/nvml-sim/src/library.rs",
];

/// The sources of the other packages, except the simulator's.
const OTHER_PACKAGES: [&str; 8] = [
    "crates/",
    "fuzz/",
    "lab/",
    "tests/exposition/",
    "tests/generated-files/",
    "tests/judges/",
    "tests/properties/",
    "tests/skips/",
];

/// With `forbid`, [`UNSAFE_FILES`] could not switch the lint off. So the lint is set to `deny` for every target of the
/// package, and only these files may name it; where the lint does not apply, the test searches for the keyword itself.
#[test]
fn unsafe_code_is_only_where_it_may_be() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for denying in ["Cargo.toml", "crates/gpu-readings/Cargo.toml"] {
        let manifest = fs::read_to_string(root.join(denying)).unwrap();
        let lints = manifest.split("\n[").find(|section| section.starts_with("lints.rust]")).unwrap();
        assert!(lints.lines().any(|line| line == r#"unsafe_code = "deny""#), "{lints}");
    }

    for forbidding in ["crates/pod-resources/Cargo.toml", "crates/web-config/Cargo.toml"] {
        let manifest = fs::read_to_string(root.join(forbidding)).unwrap();
        assert!(manifest.lines().any(|line| line == r#"unsafe_code = "forbid""#), "{forbidding}: {manifest}");
    }

    let mut named = BTreeSet::new();
    let mut unsafe_in_simulator = BTreeSet::new();
    for file in sources(root) {
        let path = file.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&file).unwrap();
        if path.starts_with("crates/nvml-sim/") {
            if path.starts_with("crates/nvml-sim/src/") && has_word(&text, "unsafe") {
                let legal = UNSAFE_IN_SIMULATOR.iter().any(|place| path.starts_with(place));
                assert!(legal, "{path} must not be unsafe");
                unsafe_in_simulator.insert(path);
            }
        } else if OTHER_PACKAGES.iter().any(|folder| path.starts_with(folder)) && !path.starts_with(READINGS)
            || path.ends_with("build.rs")
        {
            // The exporter's lint applies neither to other packages nor to build scripts.
            assert!(!has_word(&text, "unsafe"), "{path} must not be unsafe");
        } else if path != "tests/it/architecture.rs" && has_word(&text, "unsafe_code") {
            named.insert(path);
        } else if (path.starts_with(SRC) || path.starts_with(READINGS)) && has_word(&text, "unsafe") {
            assert!(path.starts_with(UNSAFE_SUBMODULES), "{path} must not be unsafe");
        }
    }
    assert_eq!(named, BTreeSet::from(UNSAFE_FILES.map(str::to_owned)));
    // Verifies that the check finds the word at all.
    assert!(unsafe_in_simulator.contains("crates/nvml-sim/src/library.rs"), "{unsafe_in_simulator:?}");
}

/// Whether code, as opposed to comments, contains the word.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.any(|line| line.split(|c| !is_part(c)).any(|found| found == word))
}

/// A crate of the workspace and the top-level modules that may use it.
const CRATES: [(&str, &[&str]); 4] = [
    ("cgroup_owner", &["attribution", "snapshot"]),
    ("pod_resources", &["kubernetes", "snapshot"]),
    ("process_name", &["attribution"]),
    ("web_config", &["app", "http"]),
];

#[test]
fn crates_of_the_workspace_are_used_by_their_modules_alone() {
    for (name, modules) in CRATES {
        let mut seen = BTreeSet::new();
        for file in [SRC, READINGS].iter().flat_map(|src| sources(&root().join(src))) {
            let text = fs::read_to_string(&file).unwrap();
            if text.contains(&format!("{name}::")) && has_word(&text, name) {
                seen.insert(module_of(&file));
            }
        }
        assert_eq!(seen, modules.iter().map(|&module| module.to_owned()).collect(), "{name}");
    }
}

#[test]
fn crates_of_pure_functions_forbid_unsafe_code_and_depend_on_nothing() {
    for name in ["cgroup-owner", "process-name"] {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates").join(name).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).unwrap();
        assert!(manifest.lines().any(|line| line == r#"unsafe_code = "forbid""#), "{manifest}");
        assert!(!manifest.contains("dependencies]"), "{manifest}");
    }
}

#[test]
fn nvml_wrapper_types_stay_in_their_module() {
    for file in [SRC, READINGS].iter().flat_map(|src| sources(&root().join(src))) {
        let text = fs::read_to_string(&file).unwrap();
        assert!(module_of(&file) == "nvml" || !text.contains("nvml_wrapper::"), "{}", file.display());
    }
}

#[test]
fn no_file_of_production_code_is_long() {
    /// The maximum number of lines before a file's unit tests.
    const LONGEST: usize = 350;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = ["src", "crates"].map(|folder| sources(&root.join(folder))).concat();
    assert!(files.len() > 100, "{}", files.len());
    let is_test =
        |file: &&PathBuf| file.ends_with("tests.rs") || file.components().any(|part| part.as_os_str() == "tests");
    for file in files.iter().filter(|file| !is_test(file)) {
        let text = fs::read_to_string(file).unwrap();
        let lines = text.lines().take_while(|line| !line.starts_with("mod tests")).count();
        assert!(lines <= LONGEST, "{} has {lines} lines", file.display());
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The first part of a file's path under `src`.
fn module_of(file: &Path) -> String {
    let inside = [READINGS, SRC].iter().find_map(|src| file.strip_prefix(root().join(src)).ok()).unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

/// The modules named by `crate::module` anywhere and by `crate::{module, …}`; the binary names the crate instead.
fn imports(root: &str, text: &str) -> BTreeSet<String> {
    let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut modules = BTreeSet::new();
    for (at, _) in code.match_indices(root) {
        let rest = &code[at + root.len()..];
        if let Some(list) = rest.strip_prefix('{') {
            let list = &list[..list.find('}').unwrap_or(list.len())];
            modules.extend(list.split(',').map(first_word));
        } else {
            modules.insert(first_word(rest));
        }
    }
    modules.retain(|module| !module.is_empty());
    modules
}

fn first_word(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            let name = path.file_name().unwrap().to_string_lossy();
            // Build outputs and hidden folders contain no source.
            if name != "target" && !name.starts_with('.') {
                files.extend(sources(&path));
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}
