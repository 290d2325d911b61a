//! Compares generated text with committed files, and generates the completion scripts and the manual pages of a program from the
//! description of its command line.

use std::fs;
use std::path::Path;

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::Generator;
use clap_complete::shells::{Bash, Fish, Zsh};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// What follows the generated function in bash. Bash divides `--flag=VALUE` into three words, and the generated function
/// takes the equals sign for the flag.
const AFTER_BASH: &str = r#"
_{function}_value() {
    local flag="$3"
    if [[ "$flag" == "=" && "$COMP_CWORD" -ge 2 ]]; then
        flag="${COMP_WORDS[COMP_CWORD-2]}"
    fi
    _{function} "$1" "$2" "$flag"
}

complete -r {function}
complete -F _{function}_value -o bashdefault -o default {name}
"#;

/// What follows the generated commands in fish: another definition of a generated function. The generated one passes the
/// names of the flags to `argparse`, which refuses names that contain a dot.
const AFTER_FISH: &str = r"
function __fish_{function}_needs_command
    # A subcommand is always the first argument.
    set -l words (commandline -opc)
    if contains -- $words[2] {subcommands}
        echo $words[2]
        return 1
    end
    return 0
end
";

/// A program, and what its files say beyond the description of its command line.
pub struct Program {
    /// The name of the program.
    pub name: &'static str,
    /// The description of the whole command line.
    pub description: Command,
    /// The words from which the value of a flag is chosen; none if the value can be something else too.
    pub words: fn(&str) -> Vec<&'static str>,
    /// The subcommands that have flags of their own, and so a manual page.
    pub pages: &'static [&'static str],
    /// The exit statuses of the program with their meanings.
    pub statuses: &'static [(&'static str, &'static str)],
    /// Manual pages of other programs that the page refers to.
    pub see_also: &'static [&'static str],
}

impl Program {
    /// The file of each completion script, with its content.
    pub fn completions(&self) -> Vec<(String, String)> {
        // With a hyphen in the name, the function for bash that clap_complete 4.6 generates does not recognise the
        // subcommands.
        let function = self.name.replace('-', "_");
        let subcommands: Vec<_> = self.description.get_subcommands().map(Command::get_name).collect();
        let filled = |text: &str| {
            let text = text.replace("{function}", &function).replace("{name}", self.name);
            text.replace("{subcommands}", &subcommands.join(" "))
        };
        vec![
            (format!("{}.bash", self.name), self.script(&Bash, &function) + &filled(AFTER_BASH)),
            (format!("{}.fish", self.name), self.script(&Fish, self.name) + &filled(AFTER_FISH)),
            (format!("_{}", self.name), self.script(&Zsh, self.name)),
        ]
    }

    fn script(&self, shell: &impl Generator, name: &str) -> String {
        let mut command = self.completed(self.description.clone());
        command.set_bin_name(name);
        command.build();
        let mut text = Vec::new();
        shell.generate(&command, &mut text);
        String::from_utf8(text).expect("a script is text")
    }

    /// The command with short descriptions, and with the words from which a value is chosen.
    fn completed(&self, command: Command) -> Command {
        let command = command.mut_args(|arg| {
            let arg = shortened(arg);
            let words = (self.words)(arg.get_id().as_str());
            let is_free = arg.get_possible_values().is_empty() && !words.is_empty();
            if !is_free {
                return arg;
            }
            // For bash, clap_complete 4.6 does not divide the words of a flag that can also be a file.
            arg.value_parser(PossibleValuesParser::new(words)).value_hint(ValueHint::Unknown)
        });
        command.mut_subcommands(|subcommand| self.completed(subcommand))
    }

    /// The file of each manual page, with its content: one for the program, and one for each of [`Program::pages`].
    pub fn manual(&self) -> Vec<(String, String)> {
        let mut whole = self.description.clone();
        whole.build();
        let page_of = |name: &&str| {
            let subcommand = whole.find_subcommand(name).expect("the subcommand exists");
            // A page of a subcommand describes no other subcommand, so it refers to none.
            (format!("{}-{name}.1", self.name), self.page(subcommand, &[]))
        };
        let mut pages: Vec<_> = self.pages.iter().map(page_of).collect();
        pages.push((format!("{}.1", self.name), self.page(&whole, self.statuses)));
        pages
    }

    /// The page of the program, which has exit statuses, or of a subcommand.
    fn page(&self, command: &Command, statuses: &[(&str, &str)]) -> String {
        let mut text = Vec::new();
        // Without a date and the version, so that a new version leaves the page as it is.
        let page = Man::new(command.clone()).source("").manual("");
        page.render_title(&mut text).expect("a vector takes any text");
        // Names are not divided at the end of a line.
        let mut undivided = Roff::new();
        undivided.control("nh", []);
        undivided.control("ad", ["l"]);
        undivided.to_writer(&mut text).expect("a vector takes any text");
        for render in [
            Man::render_name_section,
            Man::render_synopsis_section,
            Man::render_description_section,
            Man::render_options_section,
        ] {
            render(&page, &mut text).expect("a vector takes any text");
        }
        let mut more = Roff::new();
        if !statuses.is_empty() {
            self.commands(command, &mut more);
        }
        more.control("SH", ["NOTES"]);
        let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for (index, paragraph) in notes.split("\n\n").enumerate() {
            if index > 0 {
                more.control("PP", []);
            }
            more.text([roman(paragraph)]);
        }
        if !statuses.is_empty() {
            self.end(statuses, &mut more);
        }
        more.to_writer(&mut text).expect("a vector takes any text");
        String::from_utf8(text).expect("a page is text")
    }

    fn commands(&self, command: &Command, page: &mut Roff) {
        page.control("SH", ["COMMANDS"]);
        for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
            page.control("TP", []);
            page.text([bold(format!("{} {}", self.name, subcommand.get_name()))]);
            page.text([roman(subcommand.get_about().map(ToString::to_string).unwrap_or_default())]);
        }
    }

    fn end(&self, statuses: &[(&str, &str)], page: &mut Roff) {
        page.control("SH", ["EXIT STATUS"]);
        for (status, meaning) in statuses {
            page.control("TP", []);
            page.text([bold(*status)]);
            page.text([roman(*meaning)]);
        }
        page.control("SH", ["SEE ALSO"]);
        let own = self.pages.iter().map(|name| format!("{}-{name}", self.name));
        for (index, name) in own.chain(self.see_also.iter().map(ToString::to_string)).enumerate() {
            let before = if index == 0 { "" } else { ", " };
            page.text([roman(before), bold(name), roman("(1)")]);
        }
    }
}

/// The flag with the first sentence of its help, because a shell shows one line for each flag.
fn shortened(arg: Arg) -> Arg {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let end = help.find(". ").unwrap_or(help.len());
    arg.help(help[..end].trim_end_matches('.').to_owned())
}

/// Compares the files in a folder with generated ones, as [`assert_committed`] does.
///
/// # Panics
/// When a file differs or cannot be written.
pub fn assert_all_committed(folder: &Path, files: &[(String, String)]) {
    files.iter().for_each(|(name, content)| assert_committed(&folder.join(name), content));
}

/// Compares with a committed file, or writes the file with `UPDATE_GOLDEN=1`.
///
/// # Panics
/// When the file differs or cannot be written.
pub fn assert_committed(path: &Path, found: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("the folder can be made");
        fs::write(path, found).expect("the file can be written");
    }
    let committed = fs::read_to_string(path).unwrap_or_default();
    let differ = |(committed, found): &(&str, &str)| committed != found;
    if let Some((committed, found)) = committed.lines().zip(found.lines()).find(differ) {
        panic!("{}: expected\n  {committed}\nfound\n  {found}\nUPDATE_GOLDEN=1 writes the file again", path.display());
    }
    assert!(committed == found, "{}: another number of lines, or another end", path.display());
}
