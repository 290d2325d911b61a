//! The binary: calls [`vram_exporter::command_line`] for a subcommand; otherwise reads the configuration and calls
//! [`vram_exporter::app`]. If the configuration is invalid, it exits with code 64 before anything is bound or opened.

use std::fmt::Display;
use std::process::ExitCode;

use anyhow::Context;

use vram_exporter::app;
use vram_exporter::command_line;
use vram_exporter::config::{self, Command};

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    if let Some(status) = command_line::subcommand(&args) {
        return ExitCode::from(status);
    }
    let command = match config::load(args, std::env::vars_os()) {
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
        Command::Once(config) => app::once(config).and_then(|scrape| print(&scrape)),
        Command::CheckConfig { summary, config } => match app::check_places(&config) {
            Ok(checked) => {
                checked.warnings.iter().for_each(|warning| app::say(&format!("warning: {warning}")));
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
            app::say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn refuse(error: &impl Display) -> ExitCode {
    app::say(&error.to_string());
    ExitCode::from(config::EXIT_USAGE)
}

fn print(text: &[u8]) -> anyhow::Result<()> {
    command_line::write_out(text).context("standard output could not be written")
}
