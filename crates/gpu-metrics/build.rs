//! Tells the crate which compiler builds it.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let compiler = env::var_os("RUSTC").expect("cargo names the compiler");
    let said = Command::new(compiler).arg("--version").output();
    // `rustc 1.91.0 (f8297e351 2025-10-28)`, as every compiler of the Rust project writes it.
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    if let Some(version) = said.strip_prefix("rustc ").and_then(|rest| rest.split_whitespace().next()) {
        println!("cargo::rustc-env=VRAM_EXPORTER_RUSTVERSION={version}");
    }
}
