//! Generates the completion scripts and the manual pages from the description of the command line.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::Generator;
use clap_complete::shells::{Bash, Fish, Zsh};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use vram_exporter::command_line::description;
use vram_exporter::config::keys::Key;
use vram_exporter::config::words;

const NAME: &str = "vram-exporter";

/// The name for which the function for bash is generated. With a hyphen in the name, the function that clap_complete 4.6
/// generates does not recognise the subcommands.
const IN_BASH: &str = "vram_exporter";

/// What follows the generated function in bash. Bash divides `--flag=VALUE` into three words, and the generated function
/// takes the equals sign for the flag.
const AFTER_BASH: &str = r#"
_vram_exporter_value() {
    local flag="$3"
    if [[ "$flag" == "=" && "$COMP_CWORD" -ge 2 ]]; then
        flag="${COMP_WORDS[COMP_CWORD-2]}"
    fi
    _vram_exporter "$1" "$2" "$flag"
}

complete -r vram_exporter
complete -F _vram_exporter_value -o bashdefault -o default vram-exporter
"#;

/// What follows the generated commands in fish: another definition of a generated function. The generated one passes the
/// names of the flags to `argparse`, which refuses names that contain a dot.
const AFTER_FISH: &str = r"
function __fish_vram_exporter_needs_command
    # A subcommand is always the first argument.
    set -l words (commandline -opc)
    if contains -- $words[2] {subcommands}
        echo $words[2]
        return 1
    end
    return 0
end
";

/// The meanings of the exporter's exit statuses.
const STATUSES: [(&str, &str); 4] = [
    ("0", "The exporter was stopped by a signal, or did what a flag or a subcommand requested."),
    ("1", "The exporter could not start, or failed."),
    ("2", "With --once and the format table or json: there is no driver."),
    ("64", "The command line, the environment or a configuration file is wrong."),
];

/// The file of each completion script, with its content.
pub(crate) fn completions() -> [(&'static str, String); 3] {
    let subcommands: Vec<_> = description().get_subcommands().map(|command| command.get_name().to_owned()).collect();
    [
        ("vram-exporter.bash", script(&Bash, IN_BASH, AFTER_BASH)),
        ("vram-exporter.fish", script(&Fish, NAME, &AFTER_FISH.replace("{subcommands}", &subcommands.join(" ")))),
        ("_vram-exporter", script(&Zsh, NAME, "")),
    ]
}

fn script(shell: &impl Generator, name: &str, after: &str) -> String {
    let mut command = completed(description());
    // `run` has a name of its own for its messages.
    command = command.mut_subcommand("run", |run| run.bin_name(format!("{name} run")));
    command.set_bin_name(name);
    command.build();
    let mut text = Vec::new();
    shell.generate(&command, &mut text);
    String::from_utf8(text).unwrap() + after
}

/// The command with short descriptions, and with the words from which a value is chosen.
fn completed(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let arg = shortened(arg);
        let words = match arg.get_id().as_str() {
            "demo" => nvml_sim::scenarios().collect(),
            flag => words(flag),
        };
        let is_free = arg.get_possible_values().is_empty() && !words.is_empty();
        if !is_free {
            return arg;
        }
        // For bash, clap_complete 4.6 does not divide the words of a flag that can also be a file.
        arg.value_parser(PossibleValuesParser::new(words)).value_hint(ValueHint::Unknown)
    });
    command.mut_subcommands(completed)
}

/// The flag with the first sentence of its help, because a shell shows one line for each flag.
fn shortened(arg: Arg) -> Arg {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let end = help.find(". ").unwrap_or(help.len());
    arg.help(help[..end].trim_end_matches('.').to_owned())
}

/// The file of each manual page, with its content: one for the exporter, and one for each subcommand that has flags of its
/// own.
pub(crate) fn manual() -> [(&'static str, String); 4] {
    let mut whole = description().mut_args(|arg| {
        let Some(key) = Key::find(arg.get_id().as_str()) else { return arg };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        arg.help(format!("{help} [env: {}]", key.variable()))
    });
    whole.build();
    let [run, report, advise] = ["run", "report", "advise"].map(|name| whole.find_subcommand(name).unwrap().clone());
    // The other subcommands have no page of their own, so the page does not refer to one.
    [
        ("vram-exporter-run.1", page(run, false)),
        ("vram-exporter-report.1", page(report, false)),
        ("vram-exporter-advise.1", page(advise, false)),
        ("vram-exporter.1", page(whole, true)),
    ]
}

fn page(command: Command, is_exporter: bool) -> String {
    let mut text = Vec::new();
    // Without a date and the version, so that a new version leaves the page as it is.
    let page = Man::new(command.clone()).source("").manual("");
    page.render_title(&mut text).unwrap();
    // Names are not divided at the end of a line.
    let mut undivided = Roff::new();
    undivided.control("nh", []);
    undivided.control("ad", ["l"]);
    undivided.to_writer(&mut text).unwrap();
    page.render_name_section(&mut text).unwrap();
    page.render_synopsis_section(&mut text).unwrap();
    page.render_description_section(&mut text).unwrap();
    page.render_options_section(&mut text).unwrap();
    let mut more = Roff::new();
    if is_exporter {
        more.control("SH", ["COMMANDS"]);
        for subcommand in command.get_subcommands() {
            more.control("TP", []);
            more.text([bold(format!("{NAME} {}", subcommand.get_name()))]);
            more.text([roman(subcommand.get_about().unwrap().to_string())]);
        }
    }
    more.control("SH", ["NOTES"]);
    for (index, paragraph) in command.get_after_help().unwrap().to_string().split("\n\n").enumerate() {
        if index > 0 {
            more.control("PP", []);
        }
        more.text([roman(paragraph)]);
    }
    if is_exporter {
        more.control("SH", ["EXIT STATUS"]);
        for (status, meaning) in STATUSES {
            more.control("TP", []);
            more.text([bold(status)]);
            more.text([roman(meaning)]);
        }
        more.control("SH", ["SEE ALSO"]);
        for (index, name) in ["run", "report", "advise"].into_iter().enumerate() {
            let before = if index == 0 { "" } else { ", " };
            more.text([roman(before), bold(format!("{NAME}-{name}")), roman("(1)")]);
        }
    }
    more.to_writer(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}
