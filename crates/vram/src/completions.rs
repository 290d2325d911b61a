//! The completion scripts of the shells. `UPDATE_GOLDEN=1 cargo test --package vram` generates them from
//! [`description`](crate::description). Generating them in the program would need three times their size.

/// Each shell with its script.
pub(crate) const SCRIPTS: [(&str, &str); 3] = [
    ("bash", include_str!("completions/vram.bash")),
    ("fish", include_str!("completions/vram.fish")),
    ("zsh", include_str!("completions/_vram")),
];
