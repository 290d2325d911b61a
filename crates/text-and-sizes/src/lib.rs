//! How text from outside, sizes, times and quantities are read and shown.
//!
//! Invariant: nothing here reads a file, asks a server or keeps a state; each function depends on its arguments alone.

pub mod format;
pub mod quantity;
pub mod sizing;
pub mod text;
