//! The binary: see [`vram`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(vram::main(std::env::args_os(), std::env::vars_os()))
}
