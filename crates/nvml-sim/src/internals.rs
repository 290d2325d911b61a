//! Parts of the library for the workspace's tests. Nothing here is guaranteed to remain stable.

pub use crate::abi::limits::GetMemoryLimits;
pub use crate::abi::numbers::NUMBERS;
pub use crate::clock::{Nanos, SECOND};
use crate::control::Overlay;
pub use crate::machine::process::{Life, Process, ProcessList};
pub use crate::machine::{Gpu, Machine};
pub use crate::scenario::Problem;
use crate::scenario::grammar::Control;
use crate::scenario::{Source, parse};

/// Builds the machine that a scenario and a control file describe. The control file's entries are treated as having
/// appeared 7 to 9 s after the start.
///
/// # Errors
/// If the scenario (named `s.toml` in messages) or the control file (`c.toml`) is invalid.
pub fn build(scenario: &str, control: &str) -> Result<Machine, Problem> {
    let source = Source { file: "s.toml".to_owned(), scenario: parse("s.toml", scenario)? };
    let control: Control = parse("c.toml", control)?;
    let overlay = Overlay {
        file: "c.toml".to_owned(),
        process_since: vec![7 * SECOND; control.process.len()],
        xid_since: vec![8 * SECOND; control.xid.len()],
        fault_since: vec![9 * SECOND; control.fault.len()],
        control,
    };
    Machine::build(&source, Some(&overlay))
}
