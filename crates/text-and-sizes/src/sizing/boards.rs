//! The sizes of common boards and MIG profiles, used to find those on which a command or a workload would have fitted.
//!
//! Invariant: a size is what processes can allocate, that is, the total memory that NVML reports less what the driver
//! and the firmware reserve.

const MIB: u64 = 1 << 20;
/// MiB assumed to be reserved on a board for which only the total size is known: more than on any board in this table.
const RESERVED: u64 = 700;

/// A board or a MIG profile.
#[derive(Debug, PartialEq, Eq)]
pub struct Size {
    /// The name of the board, or of the profile with its board: `1g.10gb of an H100 80GB`.
    pub name: &'static str,
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

/// MIG profiles by size, as `nvidia-smi mig -lgip` lists them. Of the profiles of a board that have the same memory, only the
/// one with the fewest compute slices is listed: for example 1g.20gb, not 2g.20gb.
/// For an unused MIG device, up to 13 MiB are already reported as used (seen with nvidia-smi on an A100 with MIG), and this
/// memory is not available.
const PROFILES: [Size; 20] = [
    size("1g.5gb of an A100 40GB", 4_864, 16),
    size("1g.10gb of an A100 80GB", 9_728, 16),
    size("1g.10gb of an A100 40GB", 9_856, 16),
    size("1g.10gb of an H100 80GB", 9_984, 16),
    size("1g.18gb of an H200", 16_384, 16),
    size("1g.20gb of an A100 80GB", 19_968, 16),
    size("3g.20gb of an A100 40GB", 20_096, 16),
    size("1g.20gb of an H100 80GB", 20_096, 16),
    size("1g.23gb of a B200", 22_528, 16),
    size("1g.35gb of an H200", 33_280, 16),
    size("3g.40gb of an A100 80GB", 40_192, 16),
    size("7g.40gb of an A100 40GB", 40_192, 16),
    size("3g.40gb of an H100 80GB", 40_448, 16),
    size("1g.45gb of a B200", 45_056, 16),
    size("3g.71gb of an H200", 71_168, 16),
    size("7g.80gb of an A100 80GB", 80_640, 16),
    size("7g.80gb of an H100 80GB", 80_896, 16),
    size("3g.90gb of a B200", 91_136, 16),
    size("7g.141gb of an H200", 143_104, 16),
    size("7g.180gb of a B200", 182_272, 16),
];

/// How much the total memory of a GPU may differ from the table's for the same board, in percent: ECC and variants. An
/// H100 NVL (94 GB) is not an H100 80GB.
const SAME: u64 = 3;

impl Size {
    /// Bytes that processes can allocate.
    pub fn allocatable(&self) -> u64 {
        (self.total - self.reserved) * MIB
    }
}

/// The smallest board that can hold this many bytes; `None` if there is none in the table.
pub fn board(bytes: u64) -> Option<&'static Size> {
    smallest(&BOARDS, bytes)
}

/// The smallest MIG profile that can hold this many bytes; `None` if there is none in the table.
pub fn profile(bytes: u64) -> Option<&'static Size> {
    smallest(&PROFILES, bytes)
}

/// The MIG profiles of a GPU with this name, as NVML reports it, and total size in bytes: each with its name and the bytes
/// that processes can allocate. Empty for a board that is not in the table.
pub fn profiles(name: &str, total: u64) -> impl Iterator<Item = (&'static str, u64)> {
    let is_word = |word: &str| name.split([' ', '-']).any(|part| part == word);
    let is_it = |board: &&Size| {
        let model = board.name.split(' ').next().unwrap_or_default();
        is_word(model) && total.abs_diff(board.total * MIB) <= board.total * MIB / 100 * SAME
    };
    let board = BOARDS.iter().find(is_it).map(|board| board.name);
    PROFILES.iter().filter_map(move |profile| {
        let (short, of) = profile.name.split_once(" of ")?;
        let (_, of) = of.split_once(' ')?;
        (Some(of) == board).then(|| (short, profile.allocatable()))
    })
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
        assert_eq!(profile(150_000 * MIB).map(|size| size.name), Some("7g.180gb of a B200"));
        assert_eq!(profile(190_000 * MIB), None);
    }

    #[test]
    fn a_gpu_has_the_profiles_of_its_board_only() {
        let of = |name: &str, mib: u64| profiles(name, mib * MIB).map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(
            of("NVIDIA H200", 143_771),
            ["1g.18gb", "1g.35gb", "3g.71gb", "7g.141gb"],
            "of the H200 and in this order"
        );
        assert_eq!(of("NVIDIA A100-SXM4-40GB", 40_960)[0], "1g.5gb");
        assert_eq!(of("NVIDIA A100-SXM4-80GB", 81_920)[0], "1g.10gb");
        assert_eq!(of("NVIDIA H100 80GB HBM3", 81_559)[3], "7g.80gb");
        assert_eq!(of("NVIDIA B200", 183_359)[0], "1g.23gb");
        for (name, mib) in [("NVIDIA H100 NVL", 95_830), ("NVIDIA GB200", 189_471), ("NVIDIA L4", 23_034), ("", 0)] {
            assert!(of(name, mib).is_empty(), "{name}");
        }
    }

    #[test]
    fn no_name_occurs_twice() {
        let mut names: Vec<_> = BOARDS.iter().chain(&PROFILES).map(|size| size.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), BOARDS.len() + PROFILES.len());
    }
}
