//! The completion scripts of the shells. `UPDATE_GOLDEN=1 cargo test --test it command_line` generates them from
//! [`description`](super::description()). Generating them in the program would need three times their size.

use crate::subcommand::Completions;

/// The subcommand that prints them.
pub(super) const COMPLETIONS: Completions<3> = Completions([
    ("bash", include_str!("completions/vram-exporter.bash")),
    ("fish", include_str!("completions/vram-exporter.fish")),
    ("zsh", include_str!("completions/_vram-exporter")),
]);
