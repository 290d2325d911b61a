//! The Xid events and faults in a scenario or control file.

use super::{Refusal, a_call, refuse};
use crate::clock::Nanos;
use crate::code::Code;
use crate::fault::{Calls, Fault, Kind};
use crate::machine::{Machine, Xid};
use crate::scenario::grammar::{self, FaultKind, Implausible};
use crate::scenario::units::Span;

/// How many processes a growing list gains, unless the fault gives a number.
const GROWTH: u32 = 16;

/// Adds the events and faults; an entry without a time starts at the time that `xid_since` or `fault_since` returns
/// for its index.
pub(super) fn add(
    machine: &mut Machine,
    xids: &[grammar::Xid],
    faults: &[grammar::Fault],
    xid_since: impl Fn(usize) -> Nanos,
    fault_since: impl Fn(usize) -> Nanos,
) -> Result<(), Refusal> {
    for (index, written) in xids.iter().enumerate() {
        let in_xid = |key: &str| format!("xid[{index}].{key}");
        machine.gpu_at(written.gpu).map_err(|what| (in_xid("gpu"), what))?;
        let every = written.every.map(|Span(every)| every);
        if every.is_some_and(|every| every <= 0) {
            return refuse(in_xid("every"), "must be above zero");
        }
        let at = written.at.map_or_else(|| xid_since(index), |Span(at)| at);
        machine.xids.push(Xid { gpu: written.gpu, code: written.code, at, every });
    }
    for (index, written) in faults.iter().enumerate() {
        let fault = fault(machine, written, fault_since(index))
            .map_err(|(key, what)| (format!("fault[{index}].{key}"), what))?;
        machine.faults.push(fault);
    }
    Ok(())
}

fn fault(machine: &Machine, written: &grammar::Fault, since: Nanos) -> Result<Fault, Refusal> {
    if let Some(gpu) = written.gpu {
        machine.gpu_at(gpu).map_err(|what| ("gpu".to_owned(), what))?;
    }
    let kind = match written.kind {
        FaultKind::Error => Kind::Error(code(written.code.as_deref())?),
        FaultKind::Hang => Kind::Hang,
        FaultKind::Slow => match written.delay {
            Some(Span(delay)) if delay > 0 => Kind::Slow(delay),
            _ => return refuse("delay", "missing: how much longer the call takes"),
        },
        FaultKind::Grow => Kind::Grow(written.by.unwrap_or(GROWTH)),
        FaultKind::Absent if written.gpu.is_none() => return refuse("gpu", "missing: which GPU is absent"),
        FaultKind::Absent => Kind::Absent(written.mig),
        FaultKind::Implausible => Kind::Implausible(written.value.unwrap_or(Implausible::Ones)),
        FaultKind::Recut => Kind::Recut,
    };
    for (key, there, kinds) in [
        ("code", written.code.is_some(), FaultKind::Error),
        ("delay", written.delay.is_some(), FaultKind::Slow),
        ("by", written.by.is_some(), FaultKind::Grow),
        ("value", written.value.is_some(), FaultKind::Implausible),
    ] {
        if there && written.kind != kinds {
            return refuse(key, format!("means nothing for a fault of kind {:?}", written.kind).to_lowercase());
        }
    }
    if written.mig.is_some() && written.gpu.is_none() {
        return refuse("mig", "means nothing without `gpu`");
    }
    if written.mig.is_some() && written.skip_mig {
        return refuse("mig", "means nothing together with `skip_mig`");
    }
    let calls = calls(written, kind)?;
    let from = written.from.map_or(since, |Span(from)| from);
    let until = written.until.map_or(Nanos::MAX, |Span(until)| until);
    if until <= from {
        return refuse("until", "is not after `from`");
    }
    Ok(Fault { calls, gpu: written.gpu, skip_mig: written.skip_mig, mig: written.mig, kind, from, until })
}

fn calls(written: &grammar::Fault, kind: Kind) -> Result<Calls, Refusal> {
    let Some(names) = &written.call else {
        return match kind {
            Kind::Grow(_) | Kind::Absent(_) | Kind::Recut => Ok(Calls::All),
            _ => refuse("call", "missing: a call's name, or \"*\""),
        };
    };
    if matches!(kind, Kind::Absent(_) | Kind::Recut) {
        return refuse("call", format!("means nothing for a fault of kind {:?}", written.kind).to_lowercase());
    }
    if names.all().iter().any(|name| name == "*") {
        return Ok(Calls::All);
    }
    names.all().iter().map(|name| a_call("call".to_owned(), name)).collect::<Result<_, _>>().map(Calls::Named)
}

fn code(name: Option<&str>) -> Result<Code, Refusal> {
    let Some(name) = name else { return refuse("code", "missing: what the call returns") };
    Code::named(name).map_or_else(
        || refuse("code", format!("no code `{name}`; there are {}", Code::names().collect::<Vec<_>>().join(", "))),
        Ok,
    )
}
