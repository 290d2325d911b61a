//! The layer of the command line: reads the flags that [`command`] describes.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::ArgMatches;
use clap::error::ErrorKind;

use super::command::{ALIASES, EXTRAS, command};
use super::keys::{Key, LISTEN_ADDRESS, keys};
use super::layers::Layer;
use super::problem::{MESSAGE, Problem, nearest, preview};
use crate::text::untrusted;

/// What to do with the configuration instead of running. At most one may be given.
const ACTIONS: [&str; 3] = ["once", "check-config", "print-config"];

/// The settings from the command line.
#[derive(Default)]
pub(super) struct CommandLine {
    pub(super) layer: Layer,
    pub(super) config_file: Option<PathBuf>,
    /// One of [`ACTIONS`]; `None` means to run the exporter.
    pub(super) action: Option<&'static str>,
    pub(super) demo: Option<String>,
    /// The text of `--help` or `--version`. If it is set, everything else is ignored.
    pub(super) explain: Option<String>,
}

/// Reads the command line, beginning with the program's name.
pub(super) fn read(args: impl IntoIterator<Item = OsString>, problems: &mut Vec<Problem>) -> CommandLine {
    let known = without_unknown(args.into_iter().collect(), problems);
    let matches = match command().try_get_matches_from(known) {
        Ok(matches) => matches,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return CommandLine { explain: Some(error.to_string()), ..CommandLine::default() };
        }
        Err(error) => {
            let text = error.to_string();
            let why = untrusted(text.lines().next().unwrap_or_default().trim_start_matches("error: "), MESSAGE);
            problems.push(Problem::Unreadable { origin: "command line".to_owned(), why: format!("{why}; see --help") });
            return CommandLine::default();
        }
    };
    let mut given = CommandLine {
        config_file: matches.get_one::<OsString>("config.file").map(PathBuf::from),
        action: action(&matches, problems),
        demo: demo(&matches, problems),
        ..CommandLine::default()
    };
    for key in keys() {
        read_key(key, &matches, &mut given.layer, problems);
    }
    given
}

fn read_key(key: &'static Key, matches: &ArgMatches, layer: &mut Layer, problems: &mut Vec<Problem>) {
    let Some(values) = matches.get_many::<OsString>(key.name) else { return };
    let values: Vec<&OsString> = values.collect();
    let shown: Vec<String> = values.iter().map(|value| key.kind.shown(&value.to_string_lossy())).collect();
    let texts: Option<Vec<&str>> = values.iter().map(|value| value.to_str()).collect();
    let read = match texts.as_deref() {
        None => Err("is not UTF-8 text".to_owned()),
        Some([one]) => key.read_text(one),
        Some(several) => key.kind.read_repeated(several).map(Some),
    };
    layer.take(key, read, &format!("flag --{}", key.name), shown.join(", "), problems);
}

fn action(matches: &ArgMatches, problems: &mut Vec<Problem>) -> Option<&'static str> {
    let given: Vec<&'static str> = ACTIONS.into_iter().filter(|name| matches.get_flag(name)).collect();
    if given.len() > 1 {
        let why = format!("--{} exclude each other; give one", given.join(" and --"));
        problems.push(Problem::Unreadable { origin: "command line".to_owned(), why });
    }
    given.first().copied()
}

fn demo(matches: &ArgMatches, problems: &mut Vec<Problem>) -> Option<String> {
    let value = matches.get_one::<OsString>("demo")?;
    let text = value.to_str().filter(|text| !text.is_empty());
    if text.is_none() {
        let why = format!("{}: must be the name of a scenario or its file", preview(&value.to_string_lossy()));
        problems.push(Problem::Unreadable { origin: "flag --demo".to_owned(), why });
    }
    text.map(str::to_owned)
}

/// Removes unknown flags, each with the value that seems to belong to it, so that all of them are reported at once.
fn without_unknown(args: Vec<OsString>, problems: &mut Vec<Problem>) -> Vec<OsString> {
    let mut known = Vec::with_capacity(args.len());
    let mut rest = args.into_iter().peekable();
    known.extend(rest.next());
    while let Some(arg) = rest.next() {
        if arg == "--" {
            known.push(arg);
            known.extend(rest);
            break;
        }
        let Some((name, value)) = unknown_flag(&arg) else {
            known.push(arg);
            continue;
        };
        let value = value.or_else(|| {
            let next = rest.next_if(|next| !next.as_encoded_bytes().starts_with(b"-"))?;
            Some(next.to_string_lossy().into_owned())
        });
        let nearest = nearest_flag(name.trim_start_matches('-'), value.as_deref());
        let origin = "command line".to_owned();
        problems.push(Problem::Unknown { origin, what: "flag", name: preview(&name), nearest });
    }
    known
}

/// The flag that was most likely meant. The value is included if it is a bare port and the flag takes one.
fn nearest_flag(name: &str, value: Option<&str>) -> Option<String> {
    let mut extras = EXTRAS.iter().map(|(extra, ..)| (*extra).to_owned());
    let begins = |extra: &String| extra.split_once('.').is_some_and(|(section, _)| section == name);
    let near = Key::nearest(name)
        .map(|key| key.name.to_owned())
        .or_else(|| nearest(name, extras.clone()))
        .or_else(|| extras.find(begins))?;
    match value.and_then(|value| value.parse::<u16>().ok()).filter(|_| near == LISTEN_ADDRESS) {
        Some(port) => Some(format!("--{near}=:{port}")),
        None => Some(format!("--{near}")),
    }
}

/// The name of a flag that does not exist, and the value after its equals sign.
fn unknown_flag(arg: &OsStr) -> Option<(String, Option<String>)> {
    let text = arg.to_string_lossy();
    let (name, value) = text.split_once('=').map_or((&*text, None), |(name, value)| (name, Some(value.to_owned())));
    let is_known = match name.strip_prefix("--") {
        Some(long) => {
            Key::find(long).is_some()
                || EXTRAS.iter().any(|(extra, ..)| *extra == long)
                || ALIASES.iter().any(|(alias, _)| *alias == long)
        }
        // A value may begin with a minus sign too, so only a minus sign followed by a letter begins a flag.
        None => {
            ["-h", "-V"].contains(&name)
                || !name.strip_prefix('-').is_some_and(|rest| rest.starts_with(char::is_alphabetic))
        }
    };
    (!is_known).then(|| (name.to_owned(), value))
}
