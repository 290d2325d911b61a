//! The completion scripts of the shells. `UPDATE_GOLDEN=1 cargo test --package vram` generates them from
//! [`description`](crate::description). Generating them in the program would need three times their size.

use vram_exporter::subcommand::Completions;

/// The subcommand that prints them.
pub(crate) const COMPLETIONS: Completions<3> = Completions([
    ("bash", include_str!("completions/vram.bash")),
    ("fish", include_str!("completions/vram.fish")),
    ("zsh", include_str!("completions/_vram")),
]);
