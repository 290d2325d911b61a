//! No two files of a package import each other, directly or through other files.
//!
//! Imports between a module and the modules inside it are allowed: a parent may call its children, and a child may use
//! the definitions of its parent.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

#[test]
fn no_files_import_each_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    for package in crates.chain([root.to_owned()]) {
        let mut modules = Modules::new();
        read(&package.join("src"), &mut Vec::new(), &mut modules);
        let arrows = arrows(&modules);
        assert!(arrows.values().any(|to| !to.is_empty()), "no import seen in {}", package.display());
        assert_eq!(circle(&arrows), None, "{}", package.display());
    }
}

#[test]
fn a_circle_is_seen_through_a_reexport() {
    let module = |path: &str, code: &str| (path.split("::").map(str::to_owned).collect(), code.to_owned());
    let mut modules = Modules::from([
        (Vec::new(), "mod a;\nmod b;\nmod c;".to_owned()),
        module("a", "use crate::b::Thing;"),
        module("b", "mod part;\npub use part::{Other, Thing};"),
        module("b::part", "use crate::{\n    c::{self, D},\n};"),
        module("c", "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::a::Unit;\n}"),
    ]);
    assert_eq!(circle(&arrows(&modules)), None);
    modules.insert(vec!["c".to_owned()], "fn f() { super::a::g() }".to_owned());
    assert_eq!(circle(&arrows(&modules)), Some(vec!["a".to_owned(), "b::part".to_owned(), "c".to_owned()]));
}

/// The code of each module, by its path.
type Modules = BTreeMap<Vec<String>, String>;

fn read(folder: &Path, module: &mut Vec<String>, modules: &mut Modules) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_stem().unwrap().to_str().unwrap().to_owned();
        if name == "tests" || name == "main" {
            continue;
        }
        if name != "lib" {
            module.push(name.clone());
        }
        if entry.is_dir() {
            read(&entry, module, modules);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            modules.insert(module.clone(), fs::read_to_string(&entry).unwrap());
        }
        if name != "lib" {
            module.pop();
        }
    }
}

/// Module → the modules that it imports, except its ancestors and descendants.
fn arrows(modules: &Modules) -> BTreeMap<String, BTreeSet<String>> {
    let imports: BTreeMap<_, _> = modules.iter().map(|(module, code)| (module, imports(code))).collect();
    let mut arrows = BTreeMap::new();
    for (module, paths) in &imports {
        let mut to = BTreeSet::new();
        for (_, path) in paths {
            let target = resolve(&imports, module, path, 8);
            if !target.starts_with(module) && !module.starts_with(&target) {
                to.insert(target.join("::"));
            }
        }
        arrows.insert(module.join("::"), to);
    }
    arrows
}

/// The modules of an import cycle, if there is one.
fn circle(arrows: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    let reached = |from: &str| {
        let mut seen = BTreeSet::new();
        let mut open: Vec<&String> = arrows.get(from).into_iter().flatten().collect();
        while let Some(module) = open.pop() {
            if seen.insert(module.clone()) {
                open.extend(arrows.get(module).into_iter().flatten());
            }
        }
        seen
    };
    let first = arrows.keys().find(|module| reached(module).contains(*module))?;
    Some(reached(first).into_iter().filter(|module| reached(module).contains(first)).collect())
}

type Imports = Vec<(bool, Vec<String>)>;

/// The module to which a path leads; re-exports are followed.
fn resolve(imports: &BTreeMap<&Vec<String>, Imports>, from: &[String], path: &[String], depth: u8) -> Vec<String> {
    let mut at = from.to_vec();
    for (index, name) in path.iter().enumerate() {
        match name.as_str() {
            "crate" => at.clear(),
            "super" => drop(at.pop()),
            "self" => {}
            _ => {
                at.push(name.clone());
                if !imports.contains_key(&at) {
                    at.pop();
                    let reexport = imports.get(&at).into_iter().flatten();
                    let mut reexport = reexport.filter(|(public, path)| *public && path.last() == Some(name));
                    return match reexport.next() {
                        Some((_, path)) if index > 0 && depth > 0 => resolve(imports, &at, path, depth - 1),
                        _ => at,
                    };
                }
            }
        }
    }
    at
}

/// The paths of `use` declarations, and paths in code that begin with `crate` or `super`; each with a flag that is true
/// for a public `use`. Comments and tests are left out.
fn imports(code: &str) -> Imports {
    let code = code.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let code = code.split("#[cfg(test)]\n#[allow").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    let mut imports = Imports::new();
    for statement in code.split([';', '}', '{']).map(str::trim_start) {
        for root in ["crate::", "super::"] {
            for (at, _) in statement.match_indices(root) {
                let path = statement[at..].split("::").map(word).take_while(|name| !name.is_empty());
                imports.push((false, path.map(str::to_owned).collect()));
            }
        }
    }
    for (at, _) in code.match_indices("use ") {
        let line = code[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let before = code[line..at].trim();
        if before.is_empty() || before.starts_with("pub") {
            let tree = code[at + 4..].split(';').next().unwrap_or_default();
            expand(&mut Vec::new(), tree, &mut |path| imports.push((!before.is_empty(), path.to_vec())));
        }
    }
    imports
}

/// The paths of a use tree: `a::{b, c::{self, D}}`.
fn expand(prefix: &mut Vec<String>, tree: &str, found: &mut dyn FnMut(&[String])) {
    let tree = tree.trim();
    if let Some(list) = tree.strip_prefix('{') {
        let list = list.strip_suffix('}').unwrap_or(list);
        let mut depth = 0;
        let parts = list.split(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        });
        for part in parts.filter(|part| !part.trim().is_empty()) {
            expand(prefix, part, found);
        }
        return;
    }
    let name = word(tree);
    prefix.push(name.to_owned());
    match tree[name.len()..].trim_start().strip_prefix("::") {
        Some(rest) if !name.is_empty() => expand(prefix, rest, found),
        _ => found(prefix),
    }
    prefix.pop();
}

fn word(text: &str) -> &str {
    let text = text.trim_start();
    text.find(|c: char| !c.is_alphanumeric() && c != '_').map_or(text, |end| &text[..end])
}
