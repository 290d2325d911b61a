//! From arguments and environment to a command. The one thing touched outside is the configuration file.

use std::ffi::OsString;

use super::layers::{Effective, Layer};
use super::problem::Error;
use super::{Config, check, environment, file, flags, show};

/// What the program is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Serve until told to stop.
    Run(Config),
    /// Print one scrape and end.
    Once(Config),
    /// The configuration is good: print this and end.
    CheckConfig {
        /// What was read, in one line.
        summary: String,
        /// What names further files, which are not read here.
        config: Box<Config>,
    },
    /// Print the effective configuration, TOML, and end.
    PrintConfig(String),
    /// Print this answer to `--help` or `--version` and end.
    Explain(String),
}

/// Reads and checks everything: `args` as [`std::env::args_os`] and `env` as [`std::env::vars_os`] give them.
///
/// # Errors
/// All problems of flags, environment and file together, one line each. The exit code for them is
/// [`EXIT_USAGE`](super::EXIT_USAGE).
pub fn load(
    args: impl IntoIterator<Item = OsString>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Command, Error> {
    let mut problems = Vec::new();
    let typed = flags::read(args, &mut problems);
    if let Some(text) = typed.explain {
        return Ok(Command::Explain(text));
    }
    let environment = environment::read(env, &mut problems);
    let path = typed.config_file.or(environment.config_file);
    let from_file = path.as_deref().map(|path| file::read(path, &mut problems)).unwrap_or_default();

    let counts = [(from_file.len(), "file"), (environment.layer.len(), "environment"), (typed.layer.len(), "flags")];
    let effective = Effective::merge(vec![Layer::defaults(), from_file, environment.layer, typed.layer]);
    problems.extend(check::fit(&effective, &problems));
    Error::unless_empty(problems, || match typed.action {
        Some("check-config") => {
            let file = path.map_or("no file".to_owned(), |path| path.display().to_string());
            let keys = counts.map(|(count, place)| format!("{count} from {place}"));
            let summary = format!("configuration is good: {file}; keys set: {}", keys.join(", "));
            Command::CheckConfig { summary, config: Box::new(check::config(&effective, typed.demo)) }
        }
        Some("print-config") => Command::PrintConfig(show::toml(&effective)),
        Some("once") => Command::Once(check::config(&effective, typed.demo)),
        _ => Command::Run(check::config(&effective, typed.demo)),
    })
}
