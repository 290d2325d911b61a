//! What must hold for hostile input, whatever its bytes are.
//!
//! Each property is a function of bytes that panics if the exporter or its simulator breaks a promise, and returns
//! whether the input got past the parser. `cargo test` runs it on seeds, saved cases and generated inputs
//! (`tests/properties.rs`), and the targets in `fuzz` run it for as long as you like. Both reach private parsers
//! through the `internals` modules of the two crates.
//!
//! Invariant: a property always does the same thing with the same bytes.

mod allocator;
mod cgroup;
pub mod choices;
mod claims;
mod collectors;
mod config;
mod exposition;
mod http;
mod machine;
mod passwd;
mod pod_resources;
mod pods;
mod process;
mod quantity;
mod scenario;
mod selection;
mod web_config;

pub use allocator::allocator;
pub use cgroup::cgroup;
pub use claims::claims;
pub use collectors::collectors;
pub use config::config;
pub use exposition::exposition;
pub use http::{http, page};
pub use passwd::passwd;
pub use pod_resources::pod_resources;
pub use pods::pods;
pub use process::process;
pub use quantity::quantity;
pub use scenario::scenario;
pub use selection::selection;
pub use web_config::{credentials, web_config};
