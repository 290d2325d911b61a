//! The binary: reads the configuration and calls [`vram_exporter::app`], or calls [`vram_exporter::run`],
//! [`vram_exporter::report`] and [`vram_exporter::advise`] for the subcommands of these names, and
//! [`vram_exporter::command_line`] for those that print something about the program. If the configuration is invalid, it exits with code 64 before anything is bound or
//! opened.

use std::error::Error;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Context;

use vram_exporter::advise;
use vram_exporter::app;
use vram_exporter::command_line;
use vram_exporter::config::{self, Command};
use vram_exporter::report;
use vram_exporter::run;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    if run::is_requested(&args) {
        return ExitCode::from(run::main(args, std::env::vars_os()));
    }
    if report::is_requested(&args) {
        return ExitCode::from(report::main(args));
    }
    if advise::is_requested(&args) {
        return ExitCode::from(advise::main(args));
    }
    if command_line::is_requested(&args) {
        return match command_line::answer(args) {
            Ok(text) => ended(print(text.as_bytes())),
            Err(error) => refuse(&error),
        };
    }
    let command = match config::load(args, std::env::vars_os()) {
        Ok(command) => command,
        Err(error) => return refuse(&error),
    };
    if let Command::Run(config) | Command::Once(config, _) = &command
        && let Err(error) = app::check(config)
    {
        return refuse(&error);
    }
    let answer = match command {
        Command::Run(config) => app::serve(config),
        Command::Once(config, format) => match app::once(config, format) {
            Ok(answer) => match print(&answer.text) {
                Ok(()) => return ExitCode::from(answer.status),
                failed => failed,
            },
            Err(error) => Err(error),
        },
        Command::CheckConfig { summary, config } => match app::check_places(&config) {
            Ok(checked) => {
                checked.warnings.iter().for_each(|warning| app::report(&format!("warning: {warning}")));
                print(format!("{summary}{}\n", checked.web_config).as_bytes())
            }
            Err(error) => return refuse(&error),
        },
        Command::PrintConfig(text) | Command::Explain(text) => print(text.as_bytes()),
    };
    ended(answer)
}

fn ended(answer: anyhow::Result<()>) -> ExitCode {
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            app::report(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn refuse(error: &impl Error) -> ExitCode {
    app::report(&error.to_string());
    ExitCode::from(config::EXIT_USAGE)
}

/// Writes to standard output. It is not an error if the reader closes it early.
fn print(text: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("standard output could not be written")
        }
        _ => Ok(()),
    }
}
