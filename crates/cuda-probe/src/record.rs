//! What passes between the two programs in the kernel and the reader: the layout of a record, and the number ("cookie") that tells
//! a program what to do for a call.
//!
//! Invariant: the programs write exactly [`WORDS`] words of 64 bits, at the places that are named here, and only [`Record`] reads them.

/// What the pointers of a call lead to. Each has a bit in the cookie, and in the flags of the record once it has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reads {
    /// 64 bits at argument 0, when the call has succeeded.
    pub(crate) first: bool,
    /// 64 bits at argument 1, when the call has succeeded.
    pub(crate) second: bool,
    /// [`PROPERTIES`] at the entry.
    pub(crate) properties: bool,
    /// [`ARRAY`] at the entry.
    pub(crate) array: bool,
    /// [`ARRAY_3D`] at the entry.
    pub(crate) array_3d: bool,
}

impl Reads {
    pub(crate) const NONE: Self =
        Self { first: false, second: false, properties: false, array: false, array_3d: false };

    /// The bits of a cookie.
    pub(crate) fn bits(self) -> u64 {
        let bits = [
            (self.first, FIRST.bit),
            (self.second, SECOND.bit),
            (self.properties, PROPERTIES.bit),
            (self.array, ARRAY.bit),
            (self.array_3d, ARRAY_3D.bit),
        ];
        bits.into_iter().filter(|(set, _)| *set).map(|(_, bit)| u64::from(bit.cast_unsigned())).sum()
    }
}

/// One read of a process's memory: its bit, the argument that holds the address, and how many bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Read {
    pub(crate) bit: i32,
    pub(crate) argument: usize,
    pub(crate) bytes: i32,
}

pub(crate) const FIRST: Read = Read { bit: 1 << 8, argument: 0, bytes: 8 };
pub(crate) const SECOND: Read = Read { bit: 1 << 9, argument: 1, bytes: 8 };
/// The beginning of `CUmemAllocationProp`.
pub(crate) const PROPERTIES: Read = Read { bit: 1 << 10, argument: 2, bytes: 16 };
/// `CUDA_ARRAY_DESCRIPTOR`
pub(crate) const ARRAY: Read = Read { bit: 1 << 11, argument: 1, bytes: 24 };
/// `CUDA_ARRAY3D_DESCRIPTOR`
pub(crate) const ARRAY_3D: Read = Read { bit: 1 << 12, argument: 1, bytes: 40 };
const STRUCTURES: i32 = PROPERTIES.bit | ARRAY.bit | ARRAY_3D.bit;

/// The bit of a cookie for a call that is passed on whatever its result.
pub(crate) const ALWAYS: i32 = 1 << 13;
/// The bits of a cookie that hold the index of the row.
pub(crate) const ROW: u64 = 0xff;

/// Arguments that are kept.
pub(crate) const ARGUMENTS: usize = 5;
/// Words of the longest structure that is read.
pub(crate) const STRUCTURE_WORDS: usize = 5;

/// Places in the part of a record that the entry program writes.
pub(crate) mod entry {
    use super::{ARGUMENTS, STRUCTURE_WORDS};

    pub(crate) const ARGUMENT: usize = 0;
    pub(crate) const START: usize = ARGUMENT + ARGUMENTS;
    pub(crate) const FLAGS: usize = START + 1;
    pub(crate) const STRUCTURE: usize = FLAGS + 1;
    pub(crate) const WORDS: usize = STRUCTURE + STRUCTURE_WORDS;
}

/// The process in the high 32 bits, the thread in the low ones.
pub(crate) const WHO: usize = 0;
pub(crate) const COOKIE: usize = 1;
/// Where the words of the entry program begin.
pub(crate) const ENTRY: usize = 2;
/// Without a sign, in 64 bits.
pub(crate) const RESULT: usize = ENTRY + entry::WORDS;
pub(crate) const OUT_FIRST: usize = RESULT + 1;
pub(crate) const OUT_SECOND: usize = OUT_FIRST + 1;
pub(crate) const END: usize = OUT_SECOND + 1;
/// The length of a record in words.
pub(crate) const WORDS: usize = END + 1;

/// A record as it is in the ring.
#[derive(Debug)]
pub(crate) struct Record<'a>(pub(crate) &'a [u64; WORDS]);

impl Record<'_> {
    pub(crate) fn process(&self) -> u32 {
        (self.0[WHO] >> 32) as u32
    }

    pub(crate) fn thread(&self) -> u32 {
        (self.0[WHO] & u64::from(u32::MAX)) as u32
    }

    /// The index of the row.
    pub(crate) fn row(&self) -> usize {
        (self.0[COOKIE] & ROW) as usize
    }

    pub(crate) fn result(&self) -> i32 {
        ((self.0[RESULT] & u64::from(u32::MAX)) as u32).cast_signed()
    }

    /// CLOCK_MONOTONIC, nanoseconds.
    pub(crate) fn start(&self) -> u64 {
        self.0[ENTRY + entry::START]
    }

    /// CLOCK_MONOTONIC, nanoseconds.
    pub(crate) fn end(&self) -> u64 {
        self.0[END]
    }

    /// An argument of 64 bits.
    pub(crate) fn argument(&self, index: usize) -> u64 {
        self.0[ENTRY + entry::ARGUMENT..][..ARGUMENTS].get(index).copied().unwrap_or_default()
    }

    /// An argument of the C type `int`, whose upper half has no meaning.
    pub(crate) fn integer(&self, index: usize) -> i32 {
        ((self.argument(index) & u64::from(u32::MAX)) as u32).cast_signed()
    }

    fn has(&self, bits: i32) -> bool {
        self.0[ENTRY + entry::FLAGS] & u64::from(bits.cast_unsigned()) != 0
    }

    /// What argument 0 points to.
    pub(crate) fn first(&self) -> Option<u64> {
        self.has(FIRST.bit).then_some(self.0[OUT_FIRST])
    }

    /// What argument 1 points to.
    pub(crate) fn second(&self) -> Option<u64> {
        self.has(SECOND.bit).then_some(self.0[OUT_SECOND])
    }

    /// The structure that was read at the entry, with zeros after its end.
    pub(crate) fn structure(&self) -> Option<[u64; STRUCTURE_WORDS]> {
        let words = std::array::from_fn(|index| self.0[ENTRY + entry::STRUCTURE + index]);
        self.has(STRUCTURES).then_some(words)
    }
}
