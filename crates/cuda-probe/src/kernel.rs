//! What the kernel and the process's rights allow: read once, before anything is loaded.
//!
//! Invariant: no probe is attached under a kernel on which a return probe can kill a process, nor under one that may be such a kernel.
//!
//! The danger, CVE-2025-21834: since Linux 6.11 (commit ff474a78cef5) a return probe on x86-64 makes its process call a system call,
//! `uretprobe`. A seccomp filter that does not know it, such as Docker's, kills the process or lets it crash. Since commit cf6cb56ef244
//! seccomp ignores that call: Linux 6.14, 6.13.3 and 6.12.14. 6.11 was never repaired. Source: the CVE record of kernel.org.
//!
//! Another danger is not refused: before Linux 6.11 (commit 1713b63a07a2, also in 6.6.44) a return probe on x86-64 crashes a process that
//! has a shadow stack (CET), which exists since 6.6. No process has one unless its C library was told to, and all its libraries must
//! have been built for it.

use std::fmt;
use std::fs;
use std::io;

/// Why a kernel is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Danger {
    /// The release is one of those in which a return probe kills processes under seccomp. A distribution that has repaired it without
    /// changing the three numbers of the release cannot be told apart.
    Affected,
    /// The release is not of the form `MAJOR.MINOR…`.
    Unknown,
}

impl fmt::Display for Danger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Affected => {
                "in Linux 6.11 to 6.12.13, 6.13 to 6.13.2 and before 6.14 a return probe can kill processes that run under seccomp \
                 (CVE-2025-21834), and the release does not tell whether the distribution has repaired it"
            }
            Self::Unknown => {
                "its release does not tell whether a return probe can kill processes that run under seccomp (CVE-2025-21834)"
            }
        })
    }
}

/// The release of the running kernel, as `uname -r` prints it.
pub(crate) fn release() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/osrelease")?.trim_end().to_owned())
}

/// Whether the kernel with this release is known not to kill processes. Only x86-64 has the system call.
///
/// # Errors
/// The danger.
pub(crate) fn check(release: &str) -> Result<(), Danger> {
    if cfg!(target_arch = "x86_64") { check_x86(release) } else { Ok(()) }
}

fn check_x86(release: &str) -> Result<(), Danger> {
    let (version, rest) = version(release).ok_or(Danger::Unknown)?;
    let affected = match version {
        (6, 11, _) => true,
        (6, 12, patch) => patch < 14,
        (6, 13, patch) => patch < 3,
        // 6.14-rc1 is affected. Fedora writes `6.14.0-0.rc1.…`.
        (6, 14, 0) => rest.contains("rc"),
        _ => false,
    };
    if affected { Err(Danger::Affected) } else { Ok(()) }
}

/// Whether the release is older than Linux 5.15. A distribution may have what is needed all the same, so it is only an explanation.
pub(crate) fn is_old(release: &str) -> bool {
    version(release).is_some_and(|((major, minor, _), _)| (major, minor) < (5, 15))
}

/// Whether the kernel counts maps and programs against `RLIMIT_MEMLOCK`, and answers EPERM above it: before Linux 5.11.
pub(crate) fn limits_memory(release: &str) -> bool {
    version(release).is_some_and(|((major, minor, _), _)| (major, minor) < (5, 11))
}

/// The three numbers, of which the last may be absent, and what follows them.
fn version(release: &str) -> Option<((u32, u32, u32), &str)> {
    let (major, rest) = number(release)?;
    let (minor, rest) = number(rest.strip_prefix('.')?)?;
    let (patch, rest) = rest.strip_prefix('.').and_then(number).unwrap_or((0, rest));
    Some(((major, minor, patch), rest))
}

fn number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

/// A capability, by its number in `include/uapi/linux/capability.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capability {
    /// `CAP_SYS_ADMIN`, which includes the other two.
    SysAdmin = 21,
    /// `CAP_PERFMON`: programs that observe processes.
    Perfmon = 38,
    /// `CAP_BPF`: maps and programs.
    Bpf = 39,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        })
    }
}

/// What the process lacks, as far as it can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// The capabilities that the refused call needs and that are not effective. Empty if all are, or if they cannot be read.
    pub missing: Vec<Capability>,
    /// Whether a seccomp filter applies to the process, which can refuse a call in spite of the capabilities.
    pub filtered: bool,
}

impl Rights {
    /// What this process lacks for a call that was refused.
    pub(crate) fn for_call(call: Operation) -> Self {
        Self::of(call, &fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    /// The same, according to the text of `/proc/self/status`.
    fn of(call: Operation, status: &str) -> Self {
        let field = |name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
        let effective = field("CapEff:").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(u64::MAX);
        let has = |capability: &Capability| effective >> (*capability as u32) & 1 == 1;
        let needed: &[Capability] = match call {
            _ if has(&Capability::SysAdmin) => &[],
            // Since 2025 the kernel asks for more than CAP_PERFMON here.
            Operation::PerfEventOpen => &[Capability::SysAdmin],
            _ => &[Capability::Bpf, Capability::Perfmon],
        };
        let missing = needed.iter().copied().filter(|capability| !has(capability)).collect();
        Self { missing, filtered: field("Seccomp:") == Some("2") }
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.missing {
            [] if self.filtered => f.write_str(
                "the capabilities are there; a seccomp filter applies to this process and may refuse the call, or the capabilities \
                 are those of a user namespace, or a security module refuses it",
            ),
            [] => f.write_str(
                "the capabilities are there; they may be those of a user namespace, or a security module or kernel lockdown refuses \
                 the call",
            ),
            [one] => write!(f, "{one} is missing"),
            several => {
                let names: Vec<String> = several.iter().map(Capability::to_string).collect();
                write!(f, "{} are missing", names.join(" and "))
            }
        }
    }
}

/// A system call and its operation, as messages name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// `bpf(BPF_MAP_CREATE)`
    MapCreate,
    /// `bpf(BPF_PROG_LOAD)`
    ProgramLoad,
    /// `bpf(BPF_LINK_CREATE)` for many places in a file
    LinkMulti,
    /// `bpf(BPF_LINK_CREATE)` for a perf event
    LinkPerf,
    /// `perf_event_open`, or the reads of its event source under `/sys`
    PerfEventOpen,
    /// `mmap` of a map
    Map,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MapCreate => "bpf(BPF_MAP_CREATE)",
            Self::ProgramLoad => "bpf(BPF_PROG_LOAD)",
            Self::LinkMulti => "bpf(BPF_LINK_CREATE, uprobe_multi)",
            Self::LinkPerf => "bpf(BPF_LINK_CREATE, perf_event)",
            Self::PerfEventOpen => "perf_event_open(uprobe)",
            Self::Map => "mmap",
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_dangerous_kernels_are_those_of_the_cve_record() {
        let safe = [
            "5.15.0-130-generic",
            "6.8.0-60-generic",
            "6.10.14",
            "6.12.14",
            "6.12.48+deb13-amd64",
            "6.12.100",
            "6.13.3-arch1-1",
            "6.14",
            "6.14.0-15-generic",
            "6.14.1-rc1",
            "6.18.44-fc-v669",
            "7.0.0-rc1",
        ];
        for release in safe {
            assert_eq!(check_x86(release), Ok(()), "{release}");
        }
        let affected = [
            "6.11",
            "6.11.0-29-generic",
            "6.11.11-2-pve",
            "6.12",
            "6.12-rc3",
            "6.12.0-55.9.1.el10_0.x86_64",
            "6.12.9+bpo-amd64",
            "6.12.13",
            "6.13.2",
            "6.13.0-rc7",
            "6.14.0-rc1",
            "6.14.0-0.rc1.20250205git.el.x86_64",
        ];
        for release in affected {
            assert_eq!(check_x86(release), Err(Danger::Affected), "{release}");
        }
        for release in ["", "linux", "6", "6.", "v6.12.20", "99999999999.1"] {
            assert_eq!(check_x86(release), Err(Danger::Unknown), "{release}");
        }
    }

    #[test]
    fn only_kernels_before_5_15_are_old() {
        assert!(is_old("5.14.21") && is_old("4.18.0-553.el8.x86_64"));
        assert!(!is_old("5.15.0") && !is_old("6.1.0-30-amd64") && !is_old("odd"));
    }

    #[test]
    fn missing_capabilities_are_named() {
        let rights =
            |call, mask: u64| Rights::of(call, &format!("Name:\tx\nCapEff:\t{mask:016x}\nSeccomp:\t0\n")).to_string();
        let (bpf, perfmon, admin) = (1 << 39, 1 << 38, 1 << 21);
        assert_eq!(rights(Operation::MapCreate, 0), "CAP_BPF and CAP_PERFMON are missing");
        assert_eq!(rights(Operation::ProgramLoad, bpf), "CAP_PERFMON is missing");
        assert_eq!(rights(Operation::ProgramLoad, perfmon), "CAP_BPF is missing");
        assert_eq!(rights(Operation::PerfEventOpen, bpf | perfmon), "CAP_SYS_ADMIN is missing");
        assert!(rights(Operation::PerfEventOpen, admin).starts_with("the capabilities are there"));
        assert!(rights(Operation::LinkMulti, bpf | perfmon).starts_with("the capabilities are there"));
        assert!(Rights::of(Operation::MapCreate, "").missing.is_empty(), "unknown is not missing");
        assert!(Rights::of(Operation::MapCreate, "Seccomp:\t2\n").to_string().contains("seccomp filter"));
    }
}
