//! The driver's calls: their symbols, their arguments and what they mean. [`ROWS`] is the only place that knows them.
//!
//! Invariant: the programs in the kernel know no call; they follow the bits that a row's cookie holds. A new call is a new row.
//!
//! Source of the signatures: `cuda.h` of CUDA 12 and 13. A call that depends on a stream exists twice, the second time with the
//! suffix `_ptsz`, for programs built with a default stream for each thread.

use crate::record::{Reads, Record};

/// One call with its arguments. Sizes are in bytes. What the driver returns through a pointer is `None` unless the call succeeded and
/// the memory could be read; so is what a call is given through a pointer that could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the arguments have the names of cuda.h")]
pub enum Call {
    /// `cuMemAlloc_v2`: on the device of the thread's current context.
    Allocate { size: u64, address: Option<u64> },
    /// `cuMemAllocPitch_v2`: `height` rows, each of which takes `pitch` bytes, on the device of the thread's current context.
    AllocatePitch { width: u64, height: u64, pitch: Option<u64>, address: Option<u64> },
    /// `cuMemAllocManaged`: memory that moves between the host and the devices; calls do not tell where it is.
    AllocateManaged { size: u64, address: Option<u64> },
    /// `cuMemAllocAsync`: from the pool of the stream's device. Stream 0, 1 and 2 are the default streams of the current context.
    AllocateAsync { size: u64, stream: u64, address: Option<u64> },
    /// `cuMemAllocFromPoolAsync`: from a pool, which belongs to one device.
    AllocateFromPool { size: u64, pool: u64, stream: u64, address: Option<u64> },
    /// `cuMemCreate`: physical memory without an address.
    Create { size: u64, place: Place, handle: Option<u64> },
    /// `cuArrayCreate_v2` or `cuArray3DCreate_v2`: on the device of the thread's current context.
    CreateArray { shape: Option<ArrayShape>, array: Option<u64> },
    /// `cuMemFree_v2`: of any allocation with an address, except those of a pool. The address 0 frees nothing.
    Free { address: u64 },
    /// `cuMemFreeAsync`: gives the memory back to its pool, not to the driver.
    FreeAsync { address: u64, stream: u64 },
    /// `cuMemRelease`: the memory is freed when it is neither referred to nor mapped.
    Release { handle: u64 },
    /// `cuArrayDestroy`
    DestroyArray { array: u64 },
    /// `cuMemMap`: takes no further memory.
    Map { address: u64, size: u64, offset: u64, handle: u64 },
    /// `cuMemUnmap`: frees the memory of handles that have been released.
    Unmap { address: u64, size: u64 },
    /// `cuMemPoolTrimTo`: the pool keeps at least so many bytes and may give the rest back.
    TrimPool { pool: u64, keep: u64 },
    /// `cuCtxSetCurrent`: 0 for no context.
    SetContext { context: u64 },
    /// `cuCtxPushCurrent_v2`
    PushContext { context: u64 },
    /// `cuCtxPopCurrent_v2`: the context before it becomes the current one. `None` also if the caller did not ask which was popped.
    PopContext { popped: Option<u64> },
    /// `cuDevicePrimaryCtxRetain`: the device of a context that the CUDA runtime uses.
    RetainPrimaryContext { device: i32, context: Option<u64> },
    /// `cuCtxCreate_v2`, `_v3` or `_v4`: the new context becomes the current one.
    CreateContext { device: i32, context: Option<u64> },
    /// `cuCtxDestroy_v2`: frees what was allocated in the context.
    DestroyContext { context: u64 },
    /// `cuDevicePrimaryCtxRelease_v2`: the last release frees what was allocated in the context.
    ReleasePrimaryContext { device: i32 },
    /// `cuDevicePrimaryCtxReset_v2`: frees what was allocated in the context.
    ResetPrimaryContext { device: i32 },
    /// `cuStreamCreate` or `cuStreamCreateWithPriority`: on the device of the thread's current context.
    CreateStream { stream: Option<u64> },
    /// `cuStreamDestroy_v2`
    DestroyStream { stream: u64 },
    /// `cuIpcOpenMemHandle_v2`: memory of another process, which adds nothing.
    OpenShared { address: Option<u64> },
    /// `cuMemImportFromShareableHandle`: memory of another process, which adds nothing until the other releases it.
    Import { handle: Option<u64> },
}

/// Where `cuMemCreate` takes memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// On a device, by its ordinal in the process: `CUDA_VISIBLE_DEVICES` changes it.
    Device(i32),
    /// In the host's memory.
    Host,
    /// The properties could not be read.
    Unknown,
}

/// What an array is made of: `CUDA_ARRAY_DESCRIPTOR` or `CUDA_ARRAY3D_DESCRIPTOR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields have the names of cuda.h")]
pub struct ArrayShape {
    pub width: u64,
    /// 0 for an array of one dimension.
    pub height: u64,
    /// 0 for an array of one or two dimensions.
    pub depth: u64,
    pub format: u32,
    pub channels: u32,
}

impl ArrayShape {
    /// The bytes of its elements, without the padding that the driver adds. `None` for a format whose elements have no size of their
    /// own, such as a compressed one, and for more bytes than a number of 64 bits holds.
    pub fn bytes(&self) -> Option<u64> {
        // CUarray_format: integers of 8, 16 and 32 bits without and with sign, half, float.
        let element: u64 = match self.format {
            0x01 | 0x08 => 1,
            0x02 | 0x09 | 0x10 => 2,
            0x03 | 0x0a | 0x20 => 4,
            _ => return None,
        };
        let sides = [self.width, self.height.max(1), self.depth.max(1), self.channels.into()];
        sides.into_iter().try_fold(element, u64::checked_mul)
    }
}

/// What a call does, which decides when [`Mode::Refusals`](crate::Mode) passes it on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Asks for memory.
    Asks,
    /// Can give memory back.
    Gives,
    /// Changes where memory is visible.
    Maps,
    /// Tells the device of a context or a stream, or a thread's current context.
    Tells,
}

/// A call: its symbol, what it does, what its pointers lead to, and its meaning.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) symbol: &'static str,
    pub(crate) kind: Kind,
    pub(crate) reads: Reads,
    pub(crate) call: fn(&Record<'_>) -> Call,
}

const fn row(symbol: &'static str, kind: Kind, reads: Reads, call: fn(&Record<'_>) -> Call) -> Row {
    Row { symbol, kind, reads, call }
}

use Kind::{Asks, Gives, Maps, Tells};

/// What the first argument points to, when the call returns.
const FIRST: Reads = Reads { first: true, ..Reads::NONE };
const FIRST_AND_SECOND: Reads = Reads { second: true, ..FIRST };
const PROPERTIES: Reads = Reads { properties: true, ..FIRST };
const ARRAY: Reads = Reads { array: true, ..FIRST };
const ARRAY_3D: Reads = Reads { array_3d: true, ..FIRST };

/// Every call that is watched. Arguments are counted from 0.
pub(crate) const ROWS: &[Row] = &[
    row("cuMemAlloc_v2", Asks, FIRST, |r| Call::Allocate { size: r.argument(1), address: r.first() }),
    row("cuMemAllocPitch_v2", Asks, FIRST_AND_SECOND, |r| Call::AllocatePitch {
        width: r.argument(2),
        height: r.argument(3),
        pitch: r.second(),
        address: r.first(),
    }),
    row("cuMemAllocManaged", Asks, FIRST, |r| Call::AllocateManaged { size: r.argument(1), address: r.first() }),
    row("cuMemAllocAsync", Asks, FIRST, allocate_async),
    row("cuMemAllocAsync_ptsz", Asks, FIRST, allocate_async),
    row("cuMemAllocFromPoolAsync", Asks, FIRST, allocate_from_pool),
    row("cuMemAllocFromPoolAsync_ptsz", Asks, FIRST, allocate_from_pool),
    row("cuMemCreate", Asks, PROPERTIES, |r| Call::Create { size: r.argument(1), place: place(r), handle: r.first() }),
    row("cuArrayCreate_v2", Asks, ARRAY, |r| Call::CreateArray { shape: array(r), array: r.first() }),
    row("cuArray3DCreate_v2", Asks, ARRAY_3D, |r| Call::CreateArray { shape: array_3d(r), array: r.first() }),
    row("cuIpcOpenMemHandle_v2", Asks, FIRST, |r| Call::OpenShared { address: r.first() }),
    row("cuMemImportFromShareableHandle", Asks, FIRST, |r| Call::Import { handle: r.first() }),
    row("cuMemFree_v2", Gives, Reads::NONE, |r| Call::Free { address: r.argument(0) }),
    row("cuMemFreeAsync", Gives, Reads::NONE, free_async),
    row("cuMemFreeAsync_ptsz", Gives, Reads::NONE, free_async),
    row("cuMemRelease", Gives, Reads::NONE, |r| Call::Release { handle: r.argument(0) }),
    row("cuArrayDestroy", Gives, Reads::NONE, |r| Call::DestroyArray { array: r.argument(0) }),
    row("cuMemMap", Maps, Reads::NONE, |r| Call::Map {
        address: r.argument(0),
        size: r.argument(1),
        offset: r.argument(2),
        handle: r.argument(3),
    }),
    row("cuMemUnmap", Gives, Reads::NONE, |r| Call::Unmap { address: r.argument(0), size: r.argument(1) }),
    row("cuMemPoolTrimTo", Gives, Reads::NONE, |r| Call::TrimPool { pool: r.argument(0), keep: r.argument(1) }),
    row("cuCtxDestroy_v2", Gives, Reads::NONE, |r| Call::DestroyContext { context: r.argument(0) }),
    row("cuDevicePrimaryCtxRelease_v2", Gives, Reads::NONE, |r| Call::ReleasePrimaryContext { device: r.integer(0) }),
    row("cuDevicePrimaryCtxReset_v2", Gives, Reads::NONE, |r| Call::ResetPrimaryContext { device: r.integer(0) }),
    row("cuCtxSetCurrent", Tells, Reads::NONE, |r| Call::SetContext { context: r.argument(0) }),
    row("cuCtxPushCurrent_v2", Tells, Reads::NONE, |r| Call::PushContext { context: r.argument(0) }),
    row("cuCtxPopCurrent_v2", Tells, FIRST, |r| Call::PopContext { popped: r.first() }),
    row("cuDevicePrimaryCtxRetain", Tells, FIRST, |r| Call::RetainPrimaryContext {
        device: r.integer(1),
        context: r.first(),
    }),
    row("cuCtxCreate_v2", Tells, FIRST, |r| Call::CreateContext { device: r.integer(2), context: r.first() }),
    row("cuCtxCreate_v3", Tells, FIRST, |r| Call::CreateContext { device: r.integer(4), context: r.first() }),
    row("cuCtxCreate_v4", Tells, FIRST, |r| Call::CreateContext { device: r.integer(3), context: r.first() }),
    row("cuStreamCreate", Tells, FIRST, |r| Call::CreateStream { stream: r.first() }),
    row("cuStreamCreateWithPriority", Tells, FIRST, |r| Call::CreateStream { stream: r.first() }),
    row("cuStreamDestroy_v2", Tells, Reads::NONE, |r| Call::DestroyStream { stream: r.argument(0) }),
];

fn allocate_async(r: &Record<'_>) -> Call {
    Call::AllocateAsync { size: r.argument(1), stream: r.argument(2), address: r.first() }
}

fn allocate_from_pool(r: &Record<'_>) -> Call {
    Call::AllocateFromPool { size: r.argument(1), pool: r.argument(2), stream: r.argument(3), address: r.first() }
}

fn free_async(r: &Record<'_>) -> Call {
    Call::FreeAsync { address: r.argument(0), stream: r.argument(1) }
}

/// `CUmemAllocationProp`: two numbers of 32 bits, then the type of the location, of which 1 is a device and the others are the host
/// and its NUMA nodes, and its ordinal.
fn place(r: &Record<'_>) -> Place {
    const DEVICE: u32 = 1;
    match r.structure() {
        Some([_, location, ..]) if low(location) == DEVICE => Place::Device(high(location).cast_signed()),
        Some(_) => Place::Host,
        None => Place::Unknown,
    }
}

/// Width, height, then format and channels, of 32 bits each.
fn array(r: &Record<'_>) -> Option<ArrayShape> {
    let [width, height, element, ..] = r.structure()?;
    Some(ArrayShape { width, height, depth: 0, format: low(element), channels: high(element) })
}

/// Width, height, depth, then format and channels.
fn array_3d(r: &Record<'_>) -> Option<ArrayShape> {
    let [width, height, depth, element, _] = r.structure()?;
    Some(ArrayShape { width, height, depth, format: low(element), channels: high(element) })
}

/// The first and the second of two numbers of 32 bits in memory; both processors that this crate knows are little-endian.
fn low(word: u64) -> u32 {
    (word & u64::from(u32::MAX)) as u32
}

fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::event::Event;
    use crate::record::{ROW, WORDS};

    #[test]
    fn every_row_has_a_symbol_and_a_number_of_its_own() {
        let symbols: BTreeSet<&str> = ROWS.iter().map(|row| row.symbol).collect();
        assert_eq!(symbols.len(), ROWS.len());
        assert!(ROWS.len() as u64 <= ROW + 1);
        // Only what can be refused is watched for refusals, so a call that returns memory asks for it.
        let returns = |row: &&Row| matches!(row.kind, Gives | Maps) && row.reads != Reads::NONE;
        assert_eq!(ROWS.iter().find(returns).map(|row| row.symbol), None);
    }

    #[test]
    fn the_functions_of_a_call_are_of_one_kind() {
        for row in ROWS {
            let call = (row.call)(&Record(&[0; WORDS]));
            let kind = Event::for_tests(1, call, 0, Duration::ZERO).kind;
            assert_eq!(kind, row.kind, "{}", row.symbol);
            // To map memory that is held takes none and gives none back.
            assert_eq!(kind == Maps, matches!(call, Call::Map { .. }), "{}", row.symbol);
        }
    }

    #[test]
    fn an_array_has_the_bytes_of_its_elements() {
        let array =
            |width, height, depth, format, channels| ArrayShape { width, height, depth, format, channels }.bytes();
        assert_eq!(array(640, 480, 0, 0x20, 4), Some(640 * 480 * 16));
        assert_eq!(array(100, 0, 0, 0x10, 1), Some(200));
        assert_eq!(array(4, 4, 4, 0x01, 2), Some(128));
        assert_eq!(array(4, 4, 4, 0x91, 1), None, "a compressed format");
        assert_eq!(array(u64::MAX, 2, 0, 0x20, 1), None);
    }
}
