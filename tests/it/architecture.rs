//! Imports go in one direction, unsafe code is only where it may be, and no file is long. Between crates Cargo and the lint
//! `unsafe_code` see to that; this test reads the source for what they cannot know: the rooms inside a crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::Visit;

/// Room of the exporter or of `gpu-readings`, or one of the crates `gpu-calls` and `gpu-metrics` as one room: the rooms that it names, in tests as well, and those crates that not every room may
/// name. Several rows of a room add up, and a room without a row names none. `allocator` never imports the lanes or the metrics,
/// because what a process reports must not delay them; the types of nvml-wrapper stay in `nvml`. `internals` is for tests,
/// benchmarks and fuzz targets outside `src`, so no room may import it.
const ROOMS: &str = "
main: app command_line config
command_line: config demo subcommand
app: allocator attribution config dcgm demo faults http kubernetes lanes machine nvml otlp recorder
app: gpu_calls gpu_metrics slurm snapshot supervise web_config
demo: config nvml peaks snapshot
http: config dcgm faults gpu_metrics machine recorder snapshot unix_socket web_config
machine: gpu_metrics recorder snapshot
dcgm: config gpu_metrics snapshot
otlp: backoff blocking_read config faults gpu_metrics snapshot supervise
gpu_calls: attribution cuda_probe faults snapshot
gpu_metrics: faults snapshot
recorder: faults snapshot
kubernetes: backoff blocking_read faults pod_resources snapshot supervise
slurm: blocking_read faults snapshot
subcommand: config
internals: app kubernetes
lanes: attribution backoff faults nvml peaks snapshot
allocator: faults peaks snapshot supervise unix_socket
nvml: closed_enum faults nvml_wrapper nvml_wrapper_sys snapshot
attribution: cgroup_owner faults process_name snapshot
snapshot: cgroup_owner closed_enum faults pod_resources
faults: closed_enum
";

#[test]
fn imports_between_rooms_are_those_of_the_table() {
    let mut allowed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (room, others) in ROOMS.lines().filter_map(|line| line.split_once(':')) {
        allowed.entry(room).or_default().extend(others.split_whitespace());
    }
    let mut modules = modules(root());
    modules.extend(self::modules(&root().join("crates/gpu-readings")));
    for (name, folder) in [("gpu_metrics", "crates/gpu-metrics"), ("gpu_calls", "crates/gpu-calls")] {
        let whole = self::modules(&root().join(folder)).into_iter();
        modules.extend(whole.map(|module| Module { path: vec![name.to_owned()], ..module }));
    }
    let rooms: BTreeSet<&str> = modules.iter().map(Module::room).collect();
    let mut crates: BTreeSet<&str> =
        allowed.values().flatten().filter(|name| !rooms.contains(*name)).copied().collect();
    crates.extend(["gpu_calls", "gpu_metrics"]);
    let mut seen: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for module in modules.iter().filter(|module| module.room() != "lib") {
        for named in &module.named {
            let mut names = named.names.iter().map(String::as_str);
            let room = match names.next() {
                Some("crate" | "gpu_readings" | "vram_exporter") => names.next().filter(|name| rooms.contains(name)),
                first => first.filter(|name| crates.contains(name)),
            };
            seen.entry(module.room()).or_default().extend(room.filter(|room| *room != module.room()));
        }
    }
    seen.retain(|_, named| !named.is_empty());
    assert_eq!(seen, allowed);
}

/// No two files of a package import each other, directly or through other files. Imports between a module and the modules inside
/// it are allowed: a parent may call its children, and a child may use the definitions of its parent.
#[test]
fn no_files_import_each_other() {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    for package in crates.chain([root().to_owned()]) {
        let arrows = arrows(&modules(&package));
        assert!(arrows.values().any(|to| !to.is_empty()), "no import seen in {}", package.display());
        assert_eq!(circles(arrows), [""; 0], "{}", package.display());
    }
}

#[test]
fn a_circle_is_seen_through_a_reexport() {
    let mut modules = vec![
        Module::of(&[], "mod a; mod b; mod c;"),
        Module::of(&["a"], "use crate::b::Thing;"),
        Module::of(&["b"], "mod part; pub use part::{Other, Thing};"),
        Module::of(&["b", "part"], "use crate::{c::{self, D}};"),
        Module::of(&["c"], "fn f() {} #[cfg(test)] mod tests { use crate::a::Unit; }"),
    ];
    assert_eq!(circles(arrows(&modules)), [""; 0]);
    for code in ["fn f() { super::a::g() }", "fn f() -> String { format!(\"{}\", crate::a::g()) }"] {
        modules[4] = Module::of(&["c"], code);
        assert_eq!(circles(arrows(&modules)), ["a", "b::part", "c"]);
    }
}

/// The files that may switch off the lint `unsafe_code`. Their packages deny it, because with `forbid` no file could; all other
/// packages forbid it. The interface of the simulator is C.
const UNSAFE: [&str; 14] = [
    "crates/cuda-probe/src/sys.rs",
    "crates/gpu-readings/src/nvml/raw.rs",
    "crates/nvml-sim/src/abi.rs",
    "crates/nvml-sim/src/image.rs",
    "crates/nvml-sim/src/library.rs",
    "crates/nvml-sim/tests/image.rs",
    "crates/nvml-sim/tests/machine.rs",
    "crates/nvml-sim/tests/opening.rs",
    "crates/nvml-sim/tests/profiling.rs",
    "crates/nvml-sim/tests/recording.rs",
    "crates/nvml-sim/tests/symbols.rs",
    "src/app/heap.rs",
    "src/recorder/history/exit_status.rs",
    "tests/fake-libcuda/src/lib.rs",
];

#[test]
fn unsafe_code_is_only_where_it_may_be() {
    let mut named = BTreeSet::new();
    for file in files(root()) {
        let path = file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&file).unwrap();
        if path.starts_with("fuzz/") {
            // A workspace of its own, whose lints the macros of its targets would violate.
            assert!(!has_word(&text, "unsafe"), "{path} must not be unsafe");
        } else if let Some(package) = path.strip_suffix("Cargo.toml") {
            let level = if UNSAFE.iter().any(|file| file.starts_with(package)) { "deny" } else { "forbid" };
            assert!(text.contains(&format!("\nunsafe_code = \"{level}\"\n")), "{path} must {level} unsafe code");
        } else if path != "tests/it/architecture.rs" && has_word(&text, "unsafe_code") {
            named.insert(path);
        }
    }
    assert_eq!(named, UNSAFE.map(str::to_owned).into());
}

#[test]
fn crates_of_pure_functions_depend_on_nothing() {
    for name in ["cgroup-owner", "process-name"] {
        let manifest = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
        assert!(!manifest.contains("dependencies]"), "{manifest}");
    }
}

#[test]
fn no_file_of_production_code_is_long() {
    /// The maximum number of lines before a file's unit tests.
    const LONGEST: usize = 350;
    let files = ["src", "crates"].map(|folder| files(&root().join(folder))).concat();
    assert!(files.len() > 100, "{}", files.len());
    for file in files.iter().filter(|file| !is_test(file)) {
        let text = fs::read_to_string(file).unwrap();
        let lines = text.lines().take_while(|line| !line.starts_with("mod tests")).count();
        assert!(lines <= LONGEST, "{} has {lines} lines", file.display());
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Rust sources and the manifests below a folder, except build outputs and hidden folders.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path));
        } else if name.ends_with(".rs") || name == "Cargo.toml" {
            found.push(path);
        }
    }
    found
}

fn is_test(file: &Path) -> bool {
    file.ends_with("tests.rs") || file.components().any(|part| part.as_os_str() == "tests")
}

/// Whether code, as opposed to comments, contains the word.
fn has_word(text: &str, word: &str) -> bool {
    let mut code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.any(|line| line.split(between_words).any(|found| found == word))
}

fn between_words(c: char) -> bool {
    !c.is_alphanumeric() && c != '_'
}

/// A file of a package and the paths in it.
#[derive(Debug, Default)]
struct Module {
    path: Vec<String>,
    named: Vec<Named>,
    in_test: bool,
}

/// A path in code or in a `use`.
#[derive(Debug)]
struct Named {
    names: Vec<String>,
    /// By a `use` that is not private.
    reexported: bool,
    in_test: bool,
}

impl Module {
    fn of(path: &[&str], code: &str) -> Self {
        let in_test = path.contains(&"tests");
        let mut module = Self { path: path.iter().map(|&name| name.to_owned()).collect(), in_test, ..Self::default() };
        module.visit_file(&syn::parse_file(code).unwrap());
        module
    }

    /// The top-level module; `lib` for the root itself.
    fn room(&self) -> &str {
        self.path.first().map_or("lib", String::as_str)
    }

    fn name(&mut self, names: &[String], reexported: bool) {
        self.named.push(Named { names: names.to_vec(), reexported, in_test: self.in_test });
    }

    /// The paths of a use tree: `a::{b, c::{self, D}}`.
    fn expand(&mut self, prefix: &mut Vec<String>, tree: &syn::UseTree, reexported: bool) {
        let (name, inside) = match tree {
            syn::UseTree::Path(path) => (&path.ident, Some(&*path.tree)),
            syn::UseTree::Name(name) => (&name.ident, None),
            syn::UseTree::Rename(renamed) => (&renamed.ident, None),
            syn::UseTree::Glob(_) => return self.name(prefix, reexported),
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|item| self.expand(prefix, item, reexported));
            }
        };
        prefix.push(name.to_string());
        match inside {
            Some(tree) => self.expand(prefix, tree, reexported),
            None => self.name(prefix, reexported),
        }
        prefix.pop();
    }
}

/// The modules of the package in this folder.
fn modules(package: &Path) -> Vec<Module> {
    let src = package.join("src");
    let sources = files(&src).into_iter().filter(|file| !file.ends_with("lib.rs") || file.parent() == Some(&src));
    let module = |file: PathBuf| {
        let path = file.strip_prefix(&src).unwrap().with_extension("");
        let path: Vec<&str> = path.iter().map(|name| name.to_str().unwrap()).filter(|name| *name != "lib").collect();
        Module::of(&path, &fs::read_to_string(&file).unwrap())
    };
    sources.map(module).collect()
}

impl Visit<'_> for Module {
    fn visit_item_mod(&mut self, item: &syn::ItemMod) {
        let of_test =
            |attribute: &syn::Attribute| attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"));
        let before = self.in_test;
        self.in_test |= item.attrs.iter().any(|attribute| attribute.path().is_ident("cfg") && of_test(attribute));
        syn::visit::visit_item_mod(self, item);
        self.in_test = before;
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        let reexported = !matches!(item.vis, syn::Visibility::Inherited);
        self.expand(&mut Vec::new(), &item.tree, reexported);
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.name(&names, false);
        syn::visit::visit_path(self, path);
    }

    /// The arguments of a macro are tokens, which need not be expressions.
    fn visit_macro(&mut self, call: &syn::Macro) {
        let tokens = call.tokens.to_string().replace(' ', "");
        for (at, _) in ["crate::", "super::"].iter().flat_map(|root| tokens.match_indices(root)) {
            let path = tokens[at..].split("::").map_while(|part| part.split(between_words).next());
            let names: Vec<String> = path.take_while(|name| !name.is_empty()).map(str::to_owned).collect();
            self.name(&names, false);
        }
        syn::visit::visit_macro(self, call);
    }
}

/// Module → the modules that it imports outside tests, except its ancestors and descendants.
fn arrows(modules: &[Module]) -> BTreeMap<String, BTreeSet<String>> {
    let by_path: BTreeMap<&[String], &Module> = modules.iter().map(|module| (&*module.path, module)).collect();
    let arrows = modules.iter().filter(|module| !module.in_test).map(|module| {
        let production = module.named.iter().filter(|named| !named.in_test);
        let targets = production.map(|named| resolve(&by_path, &module.path, &named.names, 8));
        let others = targets.filter(|to| !to.starts_with(&module.path) && !module.path.starts_with(to));
        (module.path.join("::"), others.map(|to| to.join("::")).collect())
    });
    arrows.collect()
}

/// The modules that import each other.
fn circles(mut arrows: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    loop {
        let left: BTreeSet<String> = arrows.keys().cloned().collect();
        let imported: BTreeSet<String> = arrows.values().flatten().cloned().collect();
        arrows.retain(|module, to| imported.contains(module) && !to.is_disjoint(&left));
        if arrows.len() == left.len() {
            return arrows.into_keys().collect();
        }
    }
}

/// The module to which a path leads; re-exports are followed.
fn resolve(modules: &BTreeMap<&[String], &Module>, from: &[String], names: &[String], depth: u8) -> Vec<String> {
    let mut at = from.to_vec();
    for (index, name) in names.iter().enumerate() {
        match name.as_str() {
            "crate" => at.clear(),
            "super" => drop(at.pop()),
            "self" => {}
            _ => {
                at.push(name.clone());
                if !modules.contains_key(&*at) {
                    at.pop();
                    let mut named = modules.get(&*at).into_iter().flat_map(|module| &module.named);
                    return match named.find(|named| named.reexported && named.names.last() == Some(name)) {
                        Some(named) if index > 0 && depth > 0 => resolve(modules, &at, &named.names, depth - 1),
                        _ => at,
                    };
                }
            }
        }
    }
    at
}
