//! The binary: reads the configuration, then hands over to [`vram_exporter::app`]. A configuration that cannot be
//! taken ends with code 64 before anything is bound or opened.

use std::io::{self, Write};
use std::process::ExitCode;

use vram_exporter::app;
use vram_exporter::config::{self, Command};

fn main() -> ExitCode {
    let answer = match config::load(std::env::args_os(), std::env::vars_os()) {
        Ok(Command::Run(config)) => app::serve(config),
        Ok(Command::Once(config)) => app::once(config, &mut io::stdout().lock()),
        Ok(Command::CheckConfig { summary: text } | Command::PrintConfig(text) | Command::Explain(text)) => say(&text),
        Err(error) => {
            complain(&error.to_string());
            return ExitCode::from(config::EXIT_USAGE);
        }
    };
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn say(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    Ok(())
}

fn complain(text: &str) {
    // Where standard error is closed there is nobody left to tell.
    let _ = writeln!(io::stderr().lock(), "vram-exporter: {text}");
}
