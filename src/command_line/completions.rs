//! The completion scripts of the shells. `UPDATE_GOLDEN=1 cargo test --test it command_line` generates them from
//! [`description`](super::description()). Generating them in the program would need three times their size.

/// Each shell with its script.
pub(super) const SCRIPTS: [(&str, &str); 3] = [
    ("bash", include_str!("completions/vram-exporter.bash")),
    ("fish", include_str!("completions/vram-exporter.fish")),
    ("zsh", include_str!("completions/_vram-exporter")),
];

/// The script of a shell; empty for any other name.
pub(super) fn script(shell: &str) -> &'static str {
    SCRIPTS.iter().find(|(name, _)| *name == shell).map_or("", |(_, script)| script)
}
