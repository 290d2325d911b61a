# Read by the scripts in this folder. A different compiler or linker gives different bytes, so a release names them.
# shellcheck shell=bash disable=SC2034
# The compiler. Cargo.toml's rust-version is the oldest one that compiles the sources, not the one that a release uses.
RUST=1.95.0
# The oldest glibc that a release runs on.
GLIBC=2.17
