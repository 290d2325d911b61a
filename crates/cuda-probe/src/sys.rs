//! The system calls `bpf(2)`, `perf_event_open(2)` and `mmap(2)`. All unsafe code of this crate is in this file.
//!
//! Invariant: each function is safe to call with any arguments. The kernel checks descriptors, sizes and programs; the addresses
//! that it reads or writes are of buffers that live through the call.
//!
//! Source of the structures: `include/uapi/linux/bpf.h` and `perf_event.h`, whose layouts are part of the kernel's stable interface.
//! A kernel that does not know the end of a structure takes it if the unknown part is zero, and otherwise answers E2BIG.

#![allow(unsafe_code, reason = "system calls and shared memory; each block says why it is sound")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::assembler::Instruction;

/// The commands of `bpf(2)`, named as in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    MapCreate = 0,
    MapDelete = 3,
    MapNextKey = 4,
    ProgramLoad = 5,
    LinkCreate = 28,
}

/// The kinds of maps that this crate uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MapKind {
    Array = 2,
    LruHash = 9,
    Ring = 27,
}

/// An array that can be mapped into memory, `BPF_F_MMAPABLE`.
pub(crate) const MAPPABLE: u32 = 1 << 10;

/// `expected_attach_type` of a program: `BPF_TRACE_UPROBE_MULTI`.
const UPROBE_MULTI: u32 = 48;
/// `attach_type` of a link to a perf event: `BPF_PERF_EVENT`.
const PERF_EVENT: u32 = 41;
/// `BPF_F_UPROBE_MULTI_RETURN`
const MULTI_RETURN: u32 = 1;
/// `BPF_PROG_TYPE_KPROBE`, the type of programs on probes of any kind.
const PROBE_PROGRAM: u32 = 2;
/// `PERF_FLAG_FD_CLOEXEC`
const CLOSE_ON_EXEC: libc::c_ulong = 8;
/// `PERF_ATTR_SIZE_VER5`, the size since Linux 4.1. All fields that this crate sets are inside.
const PERF_ATTRIBUTES: u32 = 112;

/// The helper that reads a process's memory is offered only to programs that declare a licence compatible with the GPL. The string
/// is about the two programs that `program.rs` assembles and that are loaded into the kernel, not about this crate's Rust code.
const LICENSE: &CStr = c"Dual MIT/GPL";

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
    flags: u32,
}

#[repr(C)]
struct MapElement {
    map: u32,
    unused: u32,
    key: u64,
    /// Of a value, or of the next key.
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

#[repr(C)]
struct LinkPerf {
    program: u32,
    event: u32,
    attach_type: u32,
    flags: u32,
    cookie: u64,
}

#[repr(C)]
struct LinkMulti {
    program: u32,
    unused: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    counters: u64,
    cookies: u64,
    count: u32,
    multi_flags: u32,
}

/// `struct perf_event_attr` up to the fields of probes.
#[repr(C)]
struct PerfAttributes {
    kind: u32,
    size: u32,
    config: u64,
    unused: [u64; 5],
    /// `config1`: the address of the file's path.
    path: u64,
    /// `config2`: the offset in the file.
    offset: u64,
    more: [u64; 5],
}

/// # Safety
/// `attributes` must be the structure of this command, without padding, and the addresses in it must be of buffers that live through
/// the call and are as long as the structure or the map says.
unsafe fn bpf<T>(command: Command, attributes: &T) -> io::Result<libc::c_long> {
    // SAFETY: the kernel reads `size_of::<T>()` initialized bytes at this address; the rest is the caller's promise.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_long, &raw const *attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// # Safety
/// The result must be a descriptor that the kernel has just returned and that nothing else owns.
unsafe fn own(result: libc::c_long) -> io::Result<OwnedFd> {
    let descriptor = RawFd::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn number(descriptor: BorrowedFd<'_>) -> u32 {
    descriptor.as_raw_fd().cast_unsigned()
}

fn address<T: ?Sized>(of: &T) -> u64 {
    (&raw const *of).cast::<u8>().expose_provenance() as u64
}

/// A new map. For a ring, `entries` is its size in bytes, and keys and values have no size.
pub(crate) fn create_map(kind: MapKind, key: usize, value: usize, entries: u32, flags: u32) -> io::Result<OwnedFd> {
    let size = |bytes| u32::try_from(bytes).map_err(io::Error::other);
    let attributes = MapCreate { kind: kind as u32, key_size: size(key)?, value_size: size(value)?, entries, flags };
    // SAFETY: the structure of the command, five words, without addresses; it returns a new descriptor.
    unsafe { own(bpf(Command::MapCreate, &attributes)?) }
}

/// The key after this one in a map with keys of 64 bits, or the first; `None` after the last.
pub(crate) fn next_key(map: &Keyed, after: Option<u64>) -> Option<u64> {
    let mut next = 0_u64;
    let key = after.as_ref().map_or(0, address);
    let value = (&raw mut next).expose_provenance() as u64;
    let attributes = MapElement { map: number(map.descriptor()), unused: 0, key, value, flags: 0 };
    // SAFETY: the structure of the command; `Keyed` has keys of 8 bytes, the size of `after` and of `next`, and both live on.
    // A key address of 0 asks for the first key.
    unsafe { bpf(Command::MapNextKey, &attributes) }.is_ok().then_some(next)
}

/// Removes a key; whether it was there.
pub(crate) fn delete(map: &Keyed, key: u64) -> bool {
    let attributes = MapElement { map: number(map.descriptor()), unused: 0, key: address(&key), value: 0, flags: 0 };
    // SAFETY: the structure of the command; `Keyed` has keys of 8 bytes, the size of `key`.
    unsafe { bpf(Command::MapDelete, &attributes) }.is_ok()
}

/// A hash whose keys have 64 bits. It forgets the key that was used least recently when it is full.
#[derive(Debug)]
pub(crate) struct Keyed(OwnedFd);

impl Keyed {
    pub(crate) fn new(value: usize, entries: u32) -> io::Result<Self> {
        create_map(MapKind::LruHash, size_of::<u64>(), value, entries, 0).map(Self)
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Loads a program. The verifier's reasons are written to `log` if it is not empty; a log that is too short is an error itself.
pub(crate) fn load_program(code: &[Instruction], multi: bool, name: &str, log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut short = [0; 16];
    // The last byte stays zero.
    short.iter_mut().take(15).zip(name.bytes()).for_each(|(to, from)| *to = from);
    let attributes = ProgramLoad {
        kind: PROBE_PROGRAM,
        count: u32::try_from(code.len()).map_err(io::Error::other)?,
        instructions: address(code),
        license: address(LICENSE),
        log_level: u32::from(!log.is_empty()),
        log_size: u32::try_from(log.len()).map_err(io::Error::other)?,
        log: if log.is_empty() { 0 } else { log.as_mut_ptr().expose_provenance() as u64 },
        kernel_version: 0,
        flags: 0,
        name: short,
        interface: 0,
        attach_type: if multi { UPROBE_MULTI } else { 0 },
    };
    // SAFETY: the structure of the command, without padding; `code`, the licence, which ends with a zero, and `log` live through
    // the call and have the lengths that are given. The verifier decides whether the program may run.
    unsafe { own(bpf(Command::ProgramLoad, &attributes)?) }
}

/// Attaches a program to places in a file, with one call: Linux 6.6. The probes are removed when the descriptor is closed.
pub(crate) fn link_multi(program: BorrowedFd<'_>, path: &CStr, places: &[Place], returns: bool) -> io::Result<OwnedFd> {
    let offsets: Vec<u64> = places.iter().map(|place| place.offset).collect();
    let cookies: Vec<u64> = places.iter().map(|place| place.cookie).collect();
    let attributes = LinkMulti {
        program: number(program),
        unused: 0,
        attach_type: UPROBE_MULTI,
        flags: 0,
        path: address(path),
        offsets: address(&*offsets),
        counters: 0,
        cookies: address(&*cookies),
        count: u32::try_from(places.len()).map_err(io::Error::other)?,
        multi_flags: if returns { MULTI_RETURN } else { 0 },
    };
    // SAFETY: the structure of the command, without padding; the path ends with a zero, both lists have `count` numbers of 64
    // bits, and all three live through the call.
    unsafe { own(bpf(Command::LinkCreate, &attributes)?) }
}

/// A place in a file, and the number that the program gets there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) cookie: u64,
}

/// Opens an event of the source `uprobe` at a place in a file, for all processes.
pub(crate) fn open_uprobe(kind: u32, config: u64, path: &CStr, offset: u64) -> io::Result<OwnedFd> {
    let attributes = PerfAttributes {
        kind,
        size: PERF_ATTRIBUTES,
        config,
        unused: [0; 5],
        path: address(path),
        offset,
        more: [0; 5],
    };
    let (every_process, processor, no_group) = (-1, 0, -1);
    // SAFETY: the kernel reads `size` bytes, the size of the structure, and the path, which ends with a zero. Programs on the event
    // run on every processor although an event needs one. The result is a new descriptor.
    unsafe {
        let result = libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            every_process,
            processor,
            no_group,
            CLOSE_ON_EXEC,
        );
        if result < 0 { Err(io::Error::last_os_error()) } else { own(result) }
    }
}

/// Runs a program at an event: Linux 5.15. It ends when the descriptor is closed.
pub(crate) fn link_perf(program: BorrowedFd<'_>, event: BorrowedFd<'_>, cookie: u64) -> io::Result<OwnedFd> {
    let attributes =
        LinkPerf { program: number(program), event: number(event), attach_type: PERF_EVENT, flags: 0, cookie };
    // SAFETY: the structure of the command, without padding and without addresses; it returns a new descriptor.
    unsafe { own(bpf(Command::LinkCreate, &attributes)?) }
}

/// Memory that is shared with the kernel, readable, and writable if asked. It is unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    begin: *mut libc::c_void,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only read and written through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a map from `offset` on. Only a ring and an array with [`MAPPABLE`] can be mapped.
    pub(crate) fn new(map: BorrowedFd<'_>, len: usize, writable: bool, offset: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a new mapping, at an address of the kernel's choice, touches no other memory.
        let begin = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, map.as_raw_fd(), offset) };
        if begin == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { begin, len }) }
    }

    /// # Panics
    /// If the place is outside or not a multiple of its size. Writing to memory that was mapped read-only ends the process.
    pub(crate) fn u64(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at.checked_add(8).is_some_and(|end| end <= self.len));
        // SAFETY: inside the mapping, which begins at a page, and aligned; the kernel changes it only in whole words.
        unsafe { &*self.begin.byte_add(at).cast() }
    }

    /// # Panics
    /// As [`Mapping::u64`].
    pub(crate) fn u32(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at.checked_add(4).is_some_and(|end| end <= self.len));
        // SAFETY: as above.
        unsafe { &*self.begin.byte_add(at).cast() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping, made by `new`; the references to it have ended with `self`.
        unsafe { libc::munmap(self.begin, self.len) };
    }
}
