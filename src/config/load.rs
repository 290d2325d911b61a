//! Turns arguments and environment into a command. The configuration file is the only file that is read.

use std::ffi::OsString;

use super::layers::Layer;
use super::model::Config;
use super::problem::Error;
use super::{check, environment, file, flags, show};

/// What the program has to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Serve until a signal ends the process.
    Run(Config),
    /// Read everything once, print the scrape, and exit.
    Once(Config),
    /// The configuration is valid: print the summary and exit.
    CheckConfig {
        /// What was read, in one line.
        summary: String,
        /// The configuration. It may name further files, which are not read here.
        config: Box<Config>,
    },
    /// Print the effective configuration as TOML and exit.
    PrintConfig(String),
    /// Print the text of `--help` or `--version` and exit.
    Explain(String),
}

/// Reads and checks everything. `args` are those of [`std::env::args_os`], `env` those of [`std::env::vars_os`].
///
/// # Errors
/// All problems with the flags, the environment and the file together, one line each. The exit code for them is
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
    let layers = [from_file, environment.layer, typed.layer];
    let effective = layers.into_iter().fold(Layer::defaults(), Layer::overridden_by);
    let config = Config { demo: typed.demo, ..effective.config() };
    problems.extend(check::fit(&config, &effective, &problems));
    Error::unless_empty(problems, || match typed.action {
        Some("check-config") => {
            let file = path.map_or("no file".to_owned(), |path| path.display().to_string());
            let keys = counts.map(|(count, place)| format!("{count} from {place}"));
            let summary = format!("configuration is valid: {file}; keys set: {}", keys.join(", "));
            Command::CheckConfig { summary, config: Box::new(config) }
        }
        Some("print-config") => Command::PrintConfig(show::toml(&effective)),
        Some("once") => Command::Once(config),
        _ => Command::Run(config),
    })
}
