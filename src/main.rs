//! The binary: reads the configuration, then hands over to [`vram_exporter::app`]. A configuration that cannot be
//! taken ends with code 64 before anything is bound or opened.

use std::error::Error;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Context;

use vram_exporter::app;
use vram_exporter::config::{self, Command};

fn main() -> ExitCode {
    let command = match config::load(std::env::args_os(), std::env::vars_os()) {
        Ok(command) => command,
        Err(error) => return refuse(&error),
    };
    if let Command::Run(config) | Command::Once(config) = &command
        && let Err(error) = app::check(config)
    {
        return refuse(&error);
    }
    let answer = match command {
        Command::Run(config) => app::serve(config),
        Command::Once(config) => app::once(config).and_then(|exposition| say(&exposition)),
        Command::CheckConfig { summary, config } => match app::check(&config) {
            Ok(guarded) => say(format!("{summary}{guarded}\n").as_bytes()),
            Err(error) => return refuse(&error),
        },
        Command::PrintConfig(text) | Command::Explain(text) => say(text.as_bytes()),
    };
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn refuse(error: &impl Error) -> ExitCode {
    complain(&error.to_string());
    ExitCode::from(config::EXIT_USAGE)
}

/// Writes to standard output. A reader that has gone has read all that it wanted.
fn say(text: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("standard output could not be written")
        }
        _ => Ok(()),
    }
}

fn complain(text: &str) {
    // Where standard error is closed there is nobody left to tell.
    let _ = writeln!(io::stderr().lock(), "vram-exporter: {text}");
}
