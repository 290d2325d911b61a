//! MIG profiles of the models that support MIG, as `nvidia-smi mig -lgip` lists them.

const MIB: u64 = 1 << 20;

/// The dimensions of a GPU instance.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    /// As it appears in the MIG device's name.
    pub(crate) name: &'static str,
    /// The number in `nvidia-smi mig -lgip`.
    pub(crate) id: u32,
    /// NVML's `NVML_GPU_INSTANCE_PROFILE_*` number.
    pub(crate) number: u32,
    /// How many of the GPU's seven compute slices it has.
    pub(crate) compute: u32,
    /// How many of the GPU's eight memory slices it has.
    pub(crate) memory_slices: u32,
    /// How many fit on a GPU.
    pub(crate) fits: u32,
    pub(crate) multiprocessors: u32,
    pub(crate) decoders: u32,
    /// Bytes.
    pub(crate) memory: u64,
}

const fn profile(
    name: &'static str,
    [id, number, compute, memory_slices, fits, multiprocessors, decoders]: [u32; 7],
    mib: u64,
) -> Profile {
    Profile { name, id, number, compute, memory_slices, fits, multiprocessors, decoders, memory: mib * MIB }
}

pub(crate) const H200: &[Profile] = &[
    profile("1g.18gb", [19, 0, 1, 1, 7, 16, 1], 16_384),
    profile("1g.35gb", [15, 9, 1, 2, 4, 26, 1], 33_280),
    profile("2g.35gb", [14, 1, 2, 2, 3, 32, 2], 33_280),
    profile("3g.71gb", [9, 2, 3, 4, 2, 60, 3], 71_168),
    profile("4g.71gb", [5, 3, 4, 4, 1, 64, 4], 71_168),
    profile("7g.141gb", [0, 4, 7, 8, 1, 132, 7], 143_104),
];

pub(crate) const B200: &[Profile] = &[
    profile("1g.23gb", [19, 0, 1, 1, 7, 18, 1], 22_528),
    profile("1g.45gb", [15, 9, 1, 2, 4, 30, 1], 45_056),
    profile("2g.45gb", [14, 1, 2, 2, 3, 36, 2], 45_056),
    profile("3g.90gb", [9, 2, 3, 4, 2, 70, 3], 91_136),
    profile("4g.90gb", [5, 3, 4, 4, 1, 72, 4], 91_136),
    profile("7g.180gb", [0, 4, 7, 8, 1, 148, 7], 182_272),
];

pub(crate) const H100: &[Profile] = &[
    profile("1g.10gb", [19, 0, 1, 1, 7, 16, 1], 9_984),
    profile("1g.20gb", [15, 9, 1, 2, 4, 26, 1], 20_096),
    profile("2g.20gb", [14, 1, 2, 2, 3, 32, 2], 20_096),
    profile("3g.40gb", [9, 2, 3, 4, 2, 60, 3], 40_448),
    profile("4g.40gb", [5, 3, 4, 4, 1, 64, 4], 40_448),
    profile("7g.80gb", [0, 4, 7, 8, 1, 132, 7], 80_896),
];

pub(crate) const A100_80: &[Profile] = &[
    profile("1g.10gb", [19, 0, 1, 1, 7, 14, 0], 9_728),
    profile("1g.20gb", [15, 9, 1, 2, 4, 14, 1], 19_968),
    profile("2g.20gb", [14, 1, 2, 2, 3, 28, 1], 19_968),
    profile("3g.40gb", [9, 2, 3, 4, 2, 42, 2], 40_192),
    profile("4g.40gb", [5, 3, 4, 4, 1, 56, 2], 40_192),
    profile("7g.80gb", [0, 4, 7, 8, 1, 98, 5], 80_640),
];

pub(crate) const A100_40: &[Profile] = &[
    profile("1g.5gb", [19, 0, 1, 1, 7, 14, 0], 4_864),
    profile("1g.10gb", [15, 9, 1, 2, 4, 14, 1], 9_856),
    profile("2g.10gb", [14, 1, 2, 2, 3, 28, 1], 9_856),
    profile("3g.20gb", [9, 2, 3, 4, 2, 42, 2], 20_096),
    profile("4g.20gb", [5, 3, 4, 4, 1, 56, 2], 20_096),
    profile("7g.40gb", [0, 4, 7, 8, 1, 98, 5], 40_192),
];

impl Profile {
    /// The first GPU instance id that the driver gives to instances of this profile.
    pub(crate) fn first_instance_id(&self) -> u32 {
        match (self.compute, self.memory_slices) {
            (7, _) => 0,
            (3 | 4, _) => 1,
            (_, 2) => 3,
            _ => 7,
        }
    }
}
