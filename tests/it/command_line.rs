//! The subcommands about the programs themselves, the completion scripts in the shells, and the manual pages.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use generated_files::{Program, assert_all_committed};
use vram_exporter::command_line::description;
use vram_exporter::config::keys::{Key, keys};
use workspace_skips::missing;

use crate::harness::{assert_refused, bare, tool};

const SCRIPTS: &str = "src/command_line/completions";
const TOOL_SCRIPTS: &str = "crates/vram/src/completions";
const PAGES: &str = "docs/man";
/// The meanings of the exporter's exit statuses.
const STATUSES: [(&str, &str); 3] = [
    ("0", "The exporter was stopped by a signal, or did what a flag or a subcommand requested."),
    ("1", "The exporter could not start, or failed."),
    ("64", "The command line, the environment or a configuration file is wrong."),
];

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Whether the program is found in the usual folders.
fn is_installed(program: &str) -> bool {
    ["/usr/bin", "/bin", "/usr/local/bin"].iter().any(|folder| Path::new(folder).join(program).is_file())
}

fn text(output: Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

fn run(program: &str, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    text(Command::new(program).args(args).output().unwrap())
}

/// The exporter, with the environment variable of each key in its manual page.
fn exporter() -> Program {
    let words = |flag: &str| match flag {
        "demo" => nvml_sim::scenarios().collect(),
        flag => vram_exporter::config::words(flag),
    };
    Program {
        name: "vram-exporter",
        description: description(),
        words,
        pages: &[],
        statuses: &STATUSES,
        see_also: &["vram"],
    }
}

#[test]
fn the_generated_files_are_fresh() {
    assert_all_committed(&root(SCRIPTS), &exporter().completions());
    let described = description().mut_args(|arg| {
        let Some(key) = Key::find(arg.get_id().as_str()) else { return arg };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        arg.help(format!("{help} [env: {}]", key.variable()))
    });
    assert_all_committed(&root(PAGES), &Program { description: described, ..exporter() }.manual());
}

#[test]
fn the_programs_print_the_scripts() {
    for (shell, file) in [("bash", "NAME.bash"), ("fish", "NAME.fish"), ("zsh", "_NAME")] {
        for (folder, name, mut command) in [
            (SCRIPTS, "vram-exporter", bare(&["completions", shell])),
            (TOOL_SCRIPTS, "vram", tool(&["completions", shell])),
        ] {
            let script = root(folder).join(file.replace("NAME", name));
            assert_eq!(text(command.output().unwrap()), std::fs::read_to_string(script).unwrap());
        }
    }
}

#[test]
fn every_scenario_is_listed_with_a_sentence() {
    let listed = text(bare(&["scenarios"]).output().unwrap());
    let lines: Vec<_> = listed.lines().map(|line| line.split_once(' ').unwrap()).collect();
    let names: Vec<_> = lines.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, nvml_sim::scenarios().collect::<Vec<_>>());
    for (name, sentence) in lines {
        assert_eq!(nvml_sim::describe(name), Some(sentence.trim_start()));
        assert!(text(bare(&[&format!("--demo={name}"), "--check-config"]).output().unwrap()).contains("is valid"));
    }
}

#[test]
fn wrong_arguments_are_refused_in_one_line() {
    for (args, named) in [
        (&["completions"][..], "<SHELL>"),
        (&["completions", "tcsh"], "bash, fish, zsh"),
        (&["completions", "bash", "zsh"], "zsh"),
        (&["scenarios", "idle-h200"], "idle-h200"),
        (&["scenarios", "--demo=\u{1b}[31m\n"], "--demo"),
        // A typing error, also beside flags that only the command that was meant has.
        (&["scenarois", "--job=1"], "'scenarios'"),
    ] {
        let refused = assert_refused(&mut bare(args), &[named]);
        assert!(refused.err.lines().count() == 1 && !refused.err.contains('\u{1b}'), "{args:?}: {}", refused.err);
        assert!(refused.out.is_empty());
    }
    for subcommand in ["completions", "scenarios"] {
        assert!(text(bare(&[subcommand, "--help"]).output().unwrap()).contains(subcommand));
    }
    assert!(text(bare(&["--help"]).output().unwrap()).contains("vram-exporter completions SHELL"));
}

/// What bash offers for the last of these words, of which the first is the program. Bash has divided them at the equals signs, as it does before it calls the
/// function for completion.
fn in_bash(words: &[&str]) -> Vec<String> {
    const ASK: &str = r#"
        source "$0"
        registered=$(complete -p "$1")
        [[ "$registered" =~ -F\ ([a-z_]+) ]]
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        last="${COMP_WORDS[COMP_CWORD]}"
        [[ "$last" == "=" ]] && last=""
        compopt() { :; } # it fails outside a completion
        "${BASH_REMATCH[1]}" "$1" "$last" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let script = root(if words[0] == "vram" { TOOL_SCRIPTS } else { SCRIPTS }).join(format!("{}.bash", words[0]));
    let args = ["--norc", "-c", ASK].map(OsStr::new).into_iter().chain([script.as_os_str()]);
    let offered = run("bash", args.chain(words.iter().map(OsStr::new)));
    offered.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[test]
fn bash_completes_flags_values_and_subcommands() {
    if missing("bash", is_installed("bash")) {
        return;
    }
    let flags = in_bash(&["vram-exporter", "--"]);
    for key in keys() {
        assert!(flags.contains(&format!("--{}", key.name)), "{} is not in {flags:?}", key.name);
    }
    let program = "vram-exporter";
    assert_eq!(in_bash(&[program, "--web.max-"]), ["--web.max-requests", "--web.max-connections"]);
    assert_eq!(in_bash(&[program, "s"]), ["scenarios"]);
    assert_eq!(in_bash(&[program, "completions", "z"]), ["zsh"]);
    assert_eq!(in_bash(&["vram", "re"]), ["report"]);
    assert_eq!(in_bash(&["vram", "--format", "="]), ["table", "json"]);
    assert_eq!(in_bash(&["vram", "run", "--f"]), ["--format"]);
    assert_eq!(in_bash(&["vram", "run", "--format", "j"]), ["json"]);
    assert_eq!(in_bash(&["vram", "run", "--demo", "=", "mig"]), ["mig-a100", "mig-h100"]);
    assert_eq!(in_bash(&[program, "--log.format", ""]), ["logfmt", "json"]);
    assert_eq!(in_bash(&[program, "--log.format", "=", "j"]), ["json"]);
    assert_eq!(in_bash(&[program, "--process.series", "=", "f"]), ["false"]);
    assert_eq!(in_bash(&[program, "--demo", "=", "mig"]), ["mig-a100", "mig-h100"]);
    assert_eq!(in_bash(&[program, "--demo", "="]), nvml_sim::scenarios().collect::<Vec<_>>());
}

#[test]
fn fish_completes_flags_values_and_subcommands() {
    if missing("fish", is_installed("fish")) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let offered = |line: &str| {
        let program = line.split(' ').next().unwrap();
        let script = root(if program == "vram" { TOOL_SCRIPTS } else { SCRIPTS }).join(format!("{program}.fish"));
        let mut fish = Command::new("fish");
        fish.args(["--no-config", "-c", "source $argv[1]; complete -C $argv[2]"]).arg(&script).arg(line);
        let listed = text(fish.env("HOME", home.path()).current_dir(&home).output().unwrap());
        listed.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let flags = offered("vram-exporter --");
    for key in keys() {
        let flag = format!("--{}", key.name);
        assert!(flags.iter().any(|offered| offered.trim_end_matches('=') == flag), "{flag} is not in {flags:?}");
    }
    assert_eq!(offered("vram-exporter s"), ["scenarios"]);
    assert_eq!(offered("vram-exporter --log.format j"), ["json"]);
    assert_eq!(offered("vram-exporter --demo=mig"), ["--demo=mig-a100", "--demo=mig-h100"]);
    assert_eq!(offered("vram run --ra"), ["--rate"]);
    assert_eq!(offered("vram run --format j"), ["json"]);
}

#[test]
fn zsh_accepts_the_script() {
    if missing("zsh", is_installed("zsh")) {
        return;
    }
    for (folder, name) in [(SCRIPTS, "vram-exporter"), (TOOL_SCRIPTS, "vram")] {
        let script = root(folder).join(format!("_{name}"));
        run("zsh", [OsStr::new("-n"), script.as_os_str()]);
        // The function is defined and registered.
        let ask =
            format!("autoload -Uz compinit; compinit -D -u; source $1; print $_comps[{name}] $+functions[_{name}]");
        let told = run("zsh", ["-f", "-c", &ask, "zsh", script.to_str().unwrap()].map(OsStr::new));
        assert_eq!(told.trim_end(), format!("_{name} 1"));
    }
    let script = std::fs::read_to_string(root(SCRIPTS).join("_vram-exporter")).unwrap();
    for key in keys() {
        assert!(script.contains(&format!("'*--{}=", key.name)), "{}", key.name);
    }
}

#[test]
fn the_manual_page_names_every_setting() {
    if missing("groff", is_installed("groff")) {
        return;
    }
    let rendered = |name: &str| {
        let page = root(PAGES).join(name);
        // With all warnings, which go to standard error.
        let shown =
            run("groff", ["-man", "-Tascii", "-ww", "-P-cbou"].map(OsStr::new).into_iter().chain([page.as_os_str()]));
        shown.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let words = rendered("vram-exporter.1");
    let has = |wanted: &str| words.iter().any(|word| word.trim_end_matches([']', ',', '.']) == wanted);
    for key in keys() {
        let flag = format!("--{}", key.name);
        assert!(words.iter().any(|word| word.split('[').next() == Some(&flag)), "{flag}");
        assert!(has(&key.variable()), "{}", key.variable());
    }
    let sections = ["SYNOPSIS", "DESCRIPTION", "COMMANDS", "STATUS", "scenarios", "completions", "--config.file"];
    assert!(sections.into_iter().all(has), "{words:?}");
    let run = rendered("vram-run.1");
    assert!(run.contains(&"--rate".to_owned()) && run.contains(&"--nvml.library".to_owned()), "{run:?}");
    let report = rendered("vram-report.1");
    assert!(report.contains(&"--job".to_owned()) && report.contains(&"--http-config".to_owned()), "{report:?}");
}

#[test]
fn the_manual_pages_are_free_of_errors() {
    if missing("mandoc", is_installed("mandoc")) {
        return;
    }
    for name in ["vram-exporter.1", "vram.1", "vram-run.1", "vram-report.1", "vram-advise.1"] {
        let page = root(PAGES).join(name);
        // Warnings are about white space and the date, which the page does not have.
        run("mandoc", ["-T", "lint", "-W", "error"].map(OsStr::new).into_iter().chain([page.as_os_str()]));
    }
}
