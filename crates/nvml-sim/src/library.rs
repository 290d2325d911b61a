//! The state of the library: whether it is open, what it simulates, and the current machine.
//!
//! A call reads the machine without a lock. A replaced machine stays in memory, because a call that hangs may
//! still read it; the machine is replaced only when the scenario or the control file changes.

#![allow(unsafe_code, reason = "a call reads the machine through a pointer that stays valid")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::{self, Nanos};
use crate::code::{Answer, Code};
use crate::control::Watch;
use crate::machine::Machine;
use crate::procfs::Tree;
use crate::scenario::{self, Problem, Source};

/// How long a change to the control file may go unnoticed.
const CONTROL_INTERVAL: Nanos = 4_000_000;
/// How often the memory of the machine is written to the simulated `/proc`, where a GPU shares it.
const MEMINFO_INTERVAL: Nanos = clock::SECOND / 200;

static OPEN: AtomicU32 = AtomicU32::new(0);
static MACHINE: AtomicPtr<Machine> = AtomicPtr::new(std::ptr::null_mut());
/// When the control file is checked next (scenario time).
static NEXT_LOOK: AtomicI64 = AtomicI64::new(Nanos::MAX);
/// When the set of live processes changes next (scenario time).
static NEXT_CHANGE: AtomicI64 = AtomicI64::new(Nanos::MAX);
/// When the memory of the machine is written next (scenario time).
static NEXT_MEMINFO: AtomicI64 = AtomicI64::new(Nanos::MIN);
static INNER: Mutex<Inner> =
    Mutex::new(Inner { given: Settings { scenario: None, procfs: None, control: None }, loaded: None, tree: None });

/// What to simulate. Each setting takes precedence over its environment variable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// A built-in scenario's name or a file's path; `NVML_SIM_SCENARIO`.
    pub scenario: Option<String>,
    /// The folder in which the library keeps the simulated `/proc`; `NVML_SIM_PROCFS`.
    pub procfs: Option<PathBuf>,
    /// The control file; `NVML_SIM_CONTROL`.
    pub control: Option<PathBuf>,
}

#[derive(Debug)]
struct Inner {
    given: Settings,
    loaded: Option<Loaded>,
    tree: Option<Tree>,
}

/// What was loaded, and with which settings.
#[derive(Debug)]
struct Loaded {
    of: Settings,
    source: Source,
    watch: Option<Watch>,
}

fn inner() -> MutexGuard<'static, Inner> {
    // A panic in another call leaves the state consistent: every change to it is a single assignment.
    INNER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes one line to standard error, the only way for a simulator to report more than a return code.
pub(crate) fn complain(what: &dyn std::fmt::Display) {
    eprintln!("nvml-sim: {what}");
}

/// Applies a program's settings; `None` leaves a setting as it is. Settings that change nothing are accepted at any time,
/// because a program configures the library each time before it opens it, also beside an open session.
///
/// # Errors
/// `IN_USE` if they change something while the library is open.
pub(crate) fn configure(new: Settings) -> Answer {
    let mut inner = inner();
    let now = inner.given.clone();
    let wanted = Settings {
        scenario: new.scenario.or(now.scenario),
        procfs: new.procfs.or(now.procfs),
        control: new.control.or(now.control),
    };
    if OPEN.load(Ordering::Acquire) > 0 && wanted != inner.given {
        return Err(Code::IN_USE);
    }
    inner.given = wanted;
    Ok(())
}

/// Loads the scenario if the library is not open, and returns the machine. [`count_opening`] then opens the library.
///
/// # Errors
/// `UNKNOWN` for an invalid scenario, with the reason on standard error.
pub(crate) fn load() -> Answer<&'static Machine> {
    let mut inner = inner();
    if OPEN.load(Ordering::Acquire) == 0 {
        inner.load()?;
        look(&mut inner, clock::now());
    }
    current().ok_or(Code::UNKNOWN)
}

/// Increments the library's open count.
pub(crate) fn count_opening() {
    OPEN.fetch_add(1, Ordering::AcqRel);
    update_processes();
}

/// Decrements the library's open count.
///
/// # Errors
/// `UNINITIALIZED` when it is not open.
pub(crate) fn close() -> Answer {
    OPEN.fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| open.checked_sub(1))
        .map_or(Err(Code::UNINITIALIZED), |_| Ok(()))
}

/// The machine, with the current content of the control file.
///
/// # Errors
/// `UNINITIALIZED` while the library is not open.
pub(crate) fn machine(now: Nanos) -> Answer<&'static Machine> {
    if OPEN.load(Ordering::Acquire) == 0 {
        return Err(Code::UNINITIALIZED);
    }
    if now >= NEXT_LOOK.load(Ordering::Relaxed) {
        // A call that arrives during a check uses the machine as it is.
        if let Ok(mut inner) = INNER.try_lock() {
            look(&mut inner, now);
        }
    }
    current().ok_or(Code::UNINITIALIZED)
}

/// The machine that was built last.
fn current() -> Option<&'static Machine> {
    let machine = MACHINE.load(Ordering::Acquire);
    // SAFETY: the pointer is null or points to a leaked box, which is never freed or changed.
    unsafe { machine.as_ref() }
}

/// Updates the simulated `meminfo` before a call reports that a GPU has no memory of its own. The processes stay as they are.
pub(crate) fn update_meminfo() {
    let now = clock::now();
    if now < NEXT_MEMINFO.load(Ordering::Acquire) {
        return;
    }
    let inner = inner();
    NEXT_MEMINFO.store(now + MEMINFO_INTERVAL, Ordering::Release);
    let (Some(machine), Some(tree)) = (current(), &inner.tree) else { return };
    if let Err(error) = tree.update_meminfo(machine, now) {
        complain(&format_args!("{}: {error}", tree.root.display()));
    }
}

/// Updates the simulated `/proc` before a call reports processes.
pub(crate) fn update_processes() {
    let now = clock::now();
    if now < NEXT_CHANGE.load(Ordering::Acquire) {
        return;
    }
    let mut inner = inner();
    let (Some(machine), Some(tree)) = (current(), inner.tree.as_mut()) else {
        NEXT_CHANGE.store(Nanos::MAX, Ordering::Release);
        return;
    };
    if let Err(error) = tree.update(machine, now) {
        complain(&format_args!("{}: {error}", tree.root.display()));
    }
    let next = machine.processes.iter().filter_map(|process| process.next_change(now)).min();
    NEXT_CHANGE.store(next.unwrap_or(Nanos::MAX), Ordering::Release);
}

/// Checks the control file and rebuilds the machine if it changed.
fn look(inner: &mut Inner, now: Nanos) {
    let Some(Loaded { source, watch: Some(watch), .. }) = &mut inner.loaded else {
        NEXT_LOOK.store(Nanos::MAX, Ordering::Relaxed);
        return;
    };
    NEXT_LOOK.store(now + CONTROL_INTERVAL, Ordering::Relaxed);
    let rebuilt = watch
        .refresh(now)
        .and_then(|changed| if changed { Machine::build(source, watch.overlay.as_ref()).map(Some) } else { Ok(None) });
    match rebuilt {
        Ok(Some(machine)) => replace(machine),
        Ok(None) => {}
        Err(problem) => complain(&problem),
    }
}

fn replace(machine: Machine) {
    MACHINE.store(Box::into_raw(Box::new(machine)), Ordering::Release);
    NEXT_CHANGE.store(Nanos::MIN, Ordering::Release);
    NEXT_MEMINFO.store(Nanos::MIN, Ordering::Release);
}

impl Inner {
    /// Loads the scenario unless it is already loaded.
    fn load(&mut self) -> Answer {
        let of = self.given.clone().or_environment();
        if self.loaded.as_ref().is_some_and(|loaded| loaded.of == of) {
            if let Some(tree) = &self.tree
                && !tree.root.exists()
            {
                self.tree = None;
            }
            return self.take_tree(&of);
        }
        set_zero().map_err(|problem| failed(&problem))?;
        let build = |name: &str| -> Result<(Source, Machine), Problem> {
            let source = scenario::load(name)?;
            let machine = Machine::build(&source, None)?;
            Ok((source, machine))
        };
        let (source, machine) = build(of.scenario.as_deref().unwrap_or("demo")).map_err(|problem| failed(&problem))?;
        self.tree = None;
        self.take_tree(&of)?;
        replace(machine);
        let watch = of.control.clone().map(Watch::new);
        self.loaded = Some(Loaded { of, source, watch });
        Ok(())
    }

    fn take_tree(&mut self, of: &Settings) -> Answer {
        if let (None, Some(root)) = (&self.tree, &of.procfs) {
            let tree = Tree::take(root.clone());
            self.tree = Some(tree.map_err(|error| failed(&format_args!("{}: {error}", root.display())))?);
            NEXT_CHANGE.store(Nanos::MIN, Ordering::Release);
        }
        Ok(())
    }
}

fn failed(problem: &dyn std::fmt::Display) -> Code {
    complain(problem);
    Code::UNKNOWN
}

/// Reads scenario time 0 from the environment; if it is not set there, it is the time when the library is first opened.
fn set_zero() -> Result<(), String> {
    let zero = match std::env::var("NVML_SIM_EPOCH") {
        Err(_) if clock::zero() != 0 => return Ok(()),
        Err(_) => clock::unix_now(),
        Ok(text) => match text.trim().parse::<f64>() {
            Ok(seconds) if (0.0..=9e9).contains(&seconds) => (seconds * clock::SECOND as f64) as Nanos,
            _ => return Err(format!("NVML_SIM_EPOCH: `{text}` is not a unix time in seconds")),
        },
    };
    clock::set_zero(zero);
    Ok(())
}

impl Settings {
    /// Fills in the settings that the program did not set, from the environment.
    fn or_environment(self) -> Self {
        let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let scenario = || std::env::var("NVML_SIM_SCENARIO").ok().filter(|value| !value.is_empty());
        Self {
            scenario: self.scenario.or_else(scenario),
            procfs: self.procfs.or_else(|| path("NVML_SIM_PROCFS")),
            control: self.control.or_else(|| path("NVML_SIM_CONTROL")),
        }
    }
}
