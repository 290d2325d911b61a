//! Parsers for the lines of `/proc` that attribution reads.
//!
//! A process may put any byte into its name, so nothing is read as UTF-8, and the name ends at the last parenthesis.

/// The fields of `/proc/<pid>/stat` that are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The kernel's name for the process, at most 15 bytes.
    pub comm: Vec<u8>,
    /// When it started, in clock ticks since boot.
    pub start: u64,
    /// Whether it is a zombie. In that case, the kernel has already removed its arguments and may have moved it to the
    /// root cgroup.
    pub ended: bool,
    /// Whether it is ending or has ended. The kernel gives back what it holds before it becomes a zombie.
    pub ending: bool,
}

/// The index of the flags, counted from the state, and the flag `PF_EXITING`.
const FLAGS: usize = 6;
const EXITING: u32 = 4;
/// The index of the start time, counted from the state, which follows the name.
const START: usize = 19;

impl Stat {
    /// `None` if the line is cut off or a number is malformed.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let open = line.iter().position(|&b| b == b'(')?;
        let close = line.iter().rposition(|&b| b == b')')?;
        let comm = line.get(open + 1..close)?.to_vec();
        let fields = std::str::from_utf8(&line[close + 1..]).ok()?;
        // A line cut off within the number would yield a different number, so one more field must follow.
        let mut fields = fields.split_ascii_whitespace();
        let ended = matches!(fields.next()?, "Z" | "X");
        let flags: u32 = fields.nth(FLAGS - 1)?.parse().unwrap_or_default();
        let start = fields.nth(START - FLAGS - 1)?.parse().ok()?;
        fields.next()?;
        Some(Self { comm, start, ended, ending: ended || flags & EXITING != 0 })
    }
}

/// The fields of `/proc/<pid>/status` that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// The effective user id.
    pub uid: u32,
    /// The pid in the pid namespace of the process itself, such as that of its container. `None` if that is the namespace of the
    /// procfs, and if the line is missing (before Linux 4.1) or cut off.
    pub namespace_pid: Option<u32>,
}

impl Status {
    /// `None` if the line with the user ids is missing or cut off.
    pub fn parse(status: &[u8]) -> Option<Self> {
        let numbers = |key: &str| {
            let line = complete_lines(status).find_map(|line| line.strip_prefix(key.as_bytes()))?;
            Some(std::str::from_utf8(line).ok()?.split_ascii_whitespace())
        };
        let uid = numbers("Uid:")?.nth(1)?.parse().ok()?;
        // The pid in each namespace, from that of the procfs to the innermost.
        let namespace_pid = numbers("NSpid:").and_then(|pids| pids.skip(1).last()?.parse().ok());
        Some(Self { uid, namespace_pid })
    }
}

/// When the machine started, in seconds since the epoch, from `/proc/stat`.
pub fn boot_seconds(stat: &[u8]) -> Option<u64> {
    let line = complete_lines(stat).find_map(|line| line.strip_prefix(b"btime "))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

fn complete_lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|&b| b == b'\n').filter_map(|line| line.strip_suffix(b"\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAIL: &str = "S 1 42 42 0 -1 4194560 10 0 0 0 1 2 0 0 20 0 1 0 987654 10000 5";

    #[test]
    fn the_name_may_contain_anything() {
        for comm in ["python3", "a) R 1 2 (b", "", " ", "\n)(", "((("] {
            let stat = Stat::parse(format!("42 ({comm}) {TAIL}").as_bytes());
            assert_eq!(stat, Some(Stat { comm: comm.into(), start: 987_654, ended: false, ending: false }), "{comm:?}");
        }
        let line = [b"42 (\xff\xfe) ", TAIL.as_bytes()].concat();
        assert_eq!(Stat::parse(&line).map(|stat| stat.comm), Some(b"\xff\xfe".to_vec()));
    }

    #[test]
    fn a_zombie_has_ended() {
        let ended = |tail: &str| Stat::parse(format!("42 (S) {tail}").as_bytes()).map(|stat| stat.ended);
        assert_eq!(ended(TAIL), Some(false));
        assert_eq!(ended(&TAIL.replacen('S', "Z", 1)), Some(true));
        let ending =
            |tail: &str| Stat::parse(format!("42 (S) {tail}").as_bytes()).map(|stat| (stat.ending, stat.ended));
        assert_eq!(ending(TAIL), Some((false, false)));
        assert_eq!(ending(&TAIL.replacen('S', "Z", 1)), Some((true, true)));
        assert_eq!(ending(&TAIL.replacen("4194560", "4194564", 1)), Some((true, false)));
    }

    #[test]
    fn a_stat_line_cut_off_anywhere_is_refused() {
        let line = format!("42 (x) {TAIL}");
        let last_needed = line.find("987654").expect("in the line") + "987654 1".len();
        for end in 0..last_needed {
            assert_eq!(Stat::parse(&line.as_bytes()[..end]), None, "{}", &line[..end]);
        }
        assert!(Stat::parse(&line.as_bytes()[..last_needed]).is_some());
        assert_eq!(Stat::parse(b")("), None);
        assert_eq!(Stat::parse(line.replace("987654", "-1").as_bytes()), None);
        assert_eq!(Stat::parse(line.replace("987654", "99999999999999999999").as_bytes()), None);
    }

    #[test]
    fn the_effective_uid_is_the_second() {
        let effective_uid = |status: &[u8]| Status::parse(status).map(|status| status.uid);
        let status = b"Name:\tx\nUmask:\t0022\nUid:\t1000\t1001\t1002\t1003\nGid:\t5\t5\t5\t5\n";
        assert_eq!(effective_uid(status), Some(1001));
        assert_eq!(effective_uid(b"Name:\tx\nUid:\t1000\t10"), None);
        assert_eq!(effective_uid(b"Name:\tx\nUid:\tmany\tmore\n"), None);
        assert_eq!(effective_uid(b"Uid:\t0\t4294967296\t0\t0\n"), None);
    }

    #[test]
    fn the_pid_in_the_own_namespace_is_the_last() {
        let pid = |lines: &str| Status::parse(format!("Uid:\t1\t2\t3\t4\n{lines}").as_bytes()).unwrap().namespace_pid;
        assert_eq!(pid("NStgid:\t9\t9\nNSpid:\t4711\t1\n"), Some(1));
        assert_eq!(pid("NSpid:\t4711\t12\t3\n"), Some(3), "a namespace within a namespace");
        for unknown in ["", "NSpid:\t4711\n", "NSpid:\t4711\t1", "NSpid:\t4711\tx\n", "NSpid:\n", "NSpid:\t1\t-1\n"] {
            assert_eq!(pid(unknown), None, "{unknown:?}");
        }
    }

    #[test]
    fn the_boot_time_is_found_behind_other_lines() {
        assert_eq!(boot_seconds(b"cpu  1 2\nintr 5 6\nbtime 1700000000\nprocesses 9\n"), Some(1_700_000_000));
        assert_eq!(boot_seconds(b"cpu  1 2\nbtime 170000"), None);
        assert_eq!(boot_seconds(b"btime soon\n"), None);
    }
}
