//! The sizes of common boards and MIG profiles, used to find those on which a command would have fitted.
//!
//! Invariant: a size is what processes can allocate, that is, the total memory that NVML reports less what the driver
//! and the firmware reserve.

const MIB: u64 = 1 << 20;
/// MiB assumed to be reserved on a board for which only the total size is known: more than on any board in this table.
const RESERVED: u64 = 700;

/// A board or a MIG profile.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) name: &'static str,
    /// MiB that NVML reports in total.
    total: u64,
    /// MiB that the driver and the firmware reserve.
    reserved: u64,
}

const fn size(name: &'static str, total: u64, reserved: u64) -> Size {
    Size { name, total, reserved }
}

/// Boards by size. The sizes of the H200 were recorded on an H200 (tests/fixtures/recordings/h200-idle.json). The total
/// sizes of the others are those that `nvidia-smi` shows, and the reserved memory of the L4, RTX 4090, A100 and H100 is
/// that in nvml-sim's catalog. A B200 reserves more than the other boards: CUDA reports 182 630 of its 183 359 MiB.
const BOARDS: [Size; 10] = [
    size("T4", 15_360, RESERVED),
    size("A10", 23_028, RESERVED),
    size("L4", 23_034, 484),
    size("RTX 4090", 24_564, 399),
    size("A100 40GB", 40_960, 571),
    size("L40S", 46_068, RESERVED),
    size("H100 80GB", 81_559, 551),
    size("A100 80GB", 81_920, 634),
    size("H200", 143_771, 616),
    size("B200", 183_359, 2 * RESERVED),
];

/// MIG profiles by size, as `nvidia-smi mig -lgip` lists them. For an unused MIG device, up to 13 MiB are already
/// reported as used (seen with nvidia-smi on an A100 with MIG), and this memory is not available.
const PROFILES: [Size; 13] = [
    size("1g.5gb of an A100 40GB", 4_864, 16),
    size("1g.10gb of an A100 80GB", 9_728, 16),
    size("2g.10gb of an A100 40GB", 9_856, 16),
    size("1g.10gb of an H100 80GB", 9_984, 16),
    size("1g.18gb of an H200", 16_384, 16),
    size("2g.20gb of an A100 80GB", 19_968, 16),
    size("2g.20gb of an H100 80GB", 20_096, 16),
    size("2g.35gb of an H200", 33_280, 16),
    size("3g.40gb of an A100 80GB", 40_192, 16),
    size("3g.40gb of an H100 80GB", 40_448, 16),
    size("3g.71gb of an H200", 71_168, 16),
    size("7g.80gb of an H100 80GB", 80_896, 16),
    size("7g.141gb of an H200", 143_104, 16),
];

impl Size {
    /// Bytes that processes can allocate.
    pub(super) fn allocatable(&self) -> u64 {
        (self.total - self.reserved) * MIB
    }
}

/// The smallest board that can hold this many bytes; `None` if there is none in the table.
pub(super) fn board(bytes: u64) -> Option<&'static Size> {
    smallest(&BOARDS, bytes)
}

/// The smallest MIG profile that can hold this many bytes; `None` if there is none in the table.
pub(super) fn profile(bytes: u64) -> Option<&'static Size> {
    smallest(&PROFILES, bytes)
}

fn smallest(sizes: &'static [Size], bytes: u64) -> Option<&'static Size> {
    sizes.iter().filter(|size| size.allocatable() >= bytes).min_by_key(|size| size.allocatable())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_size_that_is_large_enough_is_found() {
        assert_eq!(board(1).map(|size| size.name), Some("T4"));
        assert_eq!(board(24_000 * MIB).map(|size| size.name), Some("RTX 4090"));
        assert_eq!(board(143_155 * MIB).map(|size| size.name), Some("H200"));
        assert_eq!(board(143_156 * MIB).map(|size| size.name), Some("B200"));
        assert_eq!(board(1 << 40), None);
        assert_eq!(profile(4_848 * MIB).map(|size| size.name), Some("1g.5gb of an A100 40GB"));
        assert_eq!(profile(4_849 * MIB).map(|size| size.name), Some("1g.10gb of an A100 80GB"));
        assert_eq!(profile(150_000 * MIB), None);
    }

    #[test]
    fn no_name_occurs_twice() {
        let mut names: Vec<_> = BOARDS.iter().chain(&PROFILES).map(|size| size.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), BOARDS.len() + PROFILES.len());
    }
}
