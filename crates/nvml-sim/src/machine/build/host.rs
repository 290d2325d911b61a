//! The memory that a scenario's GPUs share with the CPU.

use super::processes::curve;
use super::{Refusal, refuse};
use crate::curve::Curve;
use crate::machine::Gpu;
use crate::machine::host::Host;
use crate::scenario::{curves, grammar};

/// `None` if no GPU shares the machine's memory.
pub(super) fn of(written: Option<&grammar::Host>, gpus: &[Gpu]) -> Result<Option<Host>, Refusal> {
    let Some(gpu) = gpus.iter().find(|gpu| gpu.model.unified) else {
        return if written.is_some() { refuse("host", "no GPU of the scenario shares its memory") } else { Ok(None) };
    };
    let mut host = Host { total: gpu.model.total, used: Curve::constant(0.0), swap_free: 0, huge_pages: [0; 2] };
    let Some(written) = written else { return Ok(Some(host)) };
    match &written.used {
        None => {}
        Some(curves::Curve::Unknown) => return refuse("host.used", "cannot be unknown; leave it out"),
        Some(curves::Curve::Phases(phases)) => host.used = curve(phases, written.used_cycle, false, "host.used")?,
    }
    host.swap_free = written.swap_free.map_or(0, |size| size.0);
    host.huge_pages = written.huge_pages.unwrap_or_default();
    if host.huge_pages[1] > host.huge_pages[0] {
        return refuse("host.huge_pages", "more are free than there are");
    }
    Ok(Some(host))
}
