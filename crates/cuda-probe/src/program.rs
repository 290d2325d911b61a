//! The two programs that run in the kernel: one at the entry of every call, one at its return.
//!
//! Invariant: a call that the entry program has seen is in the ring, is still in the table of entries, or is in one of the counters.
//!
//! The entry program makes a record under the thread and the call, so that calls inside each other do not mix, and writes the arguments
//! into it. The return program adds the result and what the call's pointers lead to, copies the record into the ring and removes it.
//!
//! A record is never made in the stack, which the kernel may share between threads if it is large, see [`crate::assembler`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::assembler::Register::{Frame, R0, R1, R2, R3, R4, R6, R7, R8, R9};
use crate::assembler::{Assembler, AssemblyError, Condition, Helper, Instruction, Label, Register};
use crate::event::{Mode, OUT_OF_MEMORY};
use crate::record::{self, ALWAYS, ARRAY, ARRAY_3D, FIRST, PROPERTIES, Read, SECOND, WORDS, entry};
use crate::sys::Keyed;

/// Where a processor has the arguments and the result of a call, as offsets in the registers that a program gets.
struct Registers {
    arguments: [i16; record::ARGUMENTS],
    result: i16,
}

/// `struct pt_regs`: di, si, dx, cx, r8; ax.
#[cfg(target_arch = "x86_64")]
const REGISTERS: Registers = Registers { arguments: [112, 104, 96, 88, 72], result: 80 };
/// `struct user_pt_regs`: x0 to x4; x0.
#[cfg(target_arch = "aarch64")]
const REGISTERS: Registers = Registers { arguments: [0, 8, 16, 24, 32], result: 0 };
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("cuda-probe knows the registers of x86-64 and of 64-bit Arm");

/// What both programs use.
#[derive(Debug)]
pub(crate) struct Maps {
    /// Thread and call → the record, as far as it is known.
    pub(crate) entries: Keyed,
    /// An array whose only value is a record of zeros.
    pub(crate) blank: OwnedFd,
    /// Thread and call → the second argument of the request that was refused last. Only for [`Mode::Refusals`].
    pub(crate) refused: Keyed,
    pub(crate) ring: OwnedFd,
    /// Size of the ring in bytes.
    pub(crate) ring_bytes: u32,
    /// The counters, as words of the array's only value.
    pub(crate) counters: OwnedFd,
}

/// Calls that are not in the ring, by reason. The number is the counter's place.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Counter {
    RingFull,
    EntryTableFull,
    ReturnWithoutEntry,
    EntryReplaced,
}

impl Counter {
    pub(crate) const COUNT: usize = 4;

    /// In bytes.
    pub(crate) fn offset(self) -> u8 {
        8 * self as u8
    }
}

/// The place of the key of the call in a program's stack, which ends at 0. Nothing else is in the stack.
const KEY: i16 = -8;

/// The place of a word of the record.
const fn word(index: usize) -> i16 {
    8 * index as i16
}

/// The place of a word of the entry program's part.
const fn entry_word(index: usize) -> i16 {
    word(record::ENTRY + index)
}

/// Errors of the update of a map.
const EEXIST: i32 = -17;
/// Flags of an update.
const ANY: i32 = 0;
const ONLY_NEW: i32 = 1;
/// Flags of a record in the ring: whether the reader is woken.
const NO_WAKEUP: i32 = 1;
const WAKEUP: i32 = 2;
/// What a query of the ring asks for: the bytes that were not read yet.
const UNREAD: i32 = 0;

/// The program at the entry of a call.
pub(crate) fn entry_program(maps: &Maps) -> Result<Vec<Instruction>, AssemblyError> {
    let mut program = Assembler::default();
    let a = &mut program;
    let (made, full) = (a.label(), a.label());
    begin(a);
    make(a, maps, ONLY_NEW).jump(Condition::Equal(R0, 0), made).jump(Condition::NotEqual(R0, EEXIST), full);
    // This thread has entered the call before and has never returned from it.
    count(a, maps, Counter::EntryReplaced);
    make(a, maps, ANY).jump(Condition::NotEqual(R0, 0), full).here(made);
    lookup(a, &maps.entries).jump(Condition::Equal(R0, 0), full).copy(R9, R0);
    for (index, offset) in REGISTERS.arguments.into_iter().enumerate() {
        a.load(R1, R6, offset).store(R9, entry_word(entry::ARGUMENT + index), R1);
    }
    for structure in [PROPERTIES, ARRAY, ARRAY_3D] {
        read(a, structure, entry_word(entry::STRUCTURE));
    }
    a.call(Helper::Time).store(R9, entry_word(entry::START), R0).exit();
    a.here(full);
    count(a, maps, Counter::EntryTableFull);
    a.exit();
    program.finish()
}

/// The program at the return from a call.
pub(crate) fn return_program(maps: &Maps, mode: Mode) -> Result<Vec<Instruction>, AssemblyError> {
    let mut program = Assembler::default();
    let a = &mut program;
    let (missing, sent, done) = (a.label(), a.label(), a.label());
    begin(a);
    lookup(a, &maps.entries).jump(Condition::Equal(R0, 0), missing).copy(R9, R0);
    a.store(R9, word(record::WHO), R7).store(R9, word(record::COOKIE), R8);
    a.load(R1, R6, REGISTERS.result).shift_left(R1, 32).shift_right(R1, 32).store(R9, word(record::RESULT), R1);
    if mode == Mode::Refusals {
        pass_refusals(a, maps, done);
    }
    read_results(a);
    a.call(Helper::Time).store(R9, word(record::END), R0);
    choose_wakeup(a, maps);
    a.map(R1, maps.ring.as_fd()).address(R2, R9, 0).set(R3, 8 * WORDS as i32);
    a.call(Helper::RingOutput).jump(Condition::Equal(R0, 0), sent);
    count(a, maps, Counter::RingFull);
    a.here(sent).here(done);
    delete(a, &maps.entries);
    a.exit().here(missing);
    count(a, maps, Counter::ReturnWithoutEntry);
    a.exit();
    program.finish()
}

/// Leaves the registers of the process in `R6`, process and thread in `R7`, the cookie in `R8`, and the key in the stack: the thread
/// in its high 32 bits and the cookie, which is different for every row, in the low ones.
fn begin(a: &mut Assembler) {
    a.copy(R6, R1).call(Helper::ProcessAndThread).copy(R7, R0);
    a.copy(R1, R6).call(Helper::AttachCookie).copy(R8, R0);
    a.copy(R1, R7).shift_left(R1, 32).or(R1, R8).store(Frame, KEY, R1);
}

/// Leaves the address of the value under the key, or 0, in `R0`.
fn lookup<'a>(a: &'a mut Assembler, map: &Keyed) -> &'a mut Assembler {
    a.map(R1, map.descriptor()).address(R2, Frame, KEY).call(Helper::MapLookup)
}

/// Puts a record of zeros under the key. Leaves 0 or a negative error in `R0`.
fn make<'a>(a: &'a mut Assembler, maps: &Maps, flags: i32) -> &'a mut Assembler {
    a.map(R1, maps.entries.descriptor()).address(R2, Frame, KEY).value(R3, maps.blank.as_fd(), 0).set(R4, flags);
    a.call(Helper::MapUpdate)
}

fn delete(a: &mut Assembler, map: &Keyed) {
    a.map(R1, map.descriptor()).address(R2, Frame, KEY).call(Helper::MapDelete);
}

fn count(a: &mut Assembler, maps: &Maps, counter: Counter) {
    let counters: BorrowedFd<'_> = maps.counters.as_fd();
    a.increment(counters, counter.offset().into());
}

/// Jumps if none of the bits of the cookie is set.
fn unless_cookie(a: &mut Assembler, bits: i32, to: Label) {
    a.copy(R1, R8).and_value(R1, bits).jump(Condition::Equal(R1, 0), to);
}

/// If the cookie has the read's bit: reads to a place in the record, and notes in the flags that it worked.
fn read(a: &mut Assembler, read: Read, to: i16) {
    let flags = entry_word(entry::FLAGS);
    let next = a.label();
    unless_cookie(a, read.bit, next);
    a.address(R1, R9, to).set(R2, read.bytes).load(R3, R9, entry_word(entry::ARGUMENT + read.argument));
    a.call(Helper::ReadUserMemory).jump(Condition::NotEqual(R0, 0), next);
    a.load(R1, R9, flags).or_value(R1, read.bit).store(R9, flags, R1).here(next);
}

/// Reads what the call has returned through its pointers, if it has succeeded.
fn read_results(a: &mut Assembler) {
    let failed = a.label();
    load_result(a, R1).jump(Condition::NotEqual(R1, 0), failed);
    read(a, FIRST, word(record::OUT_FIRST));
    read(a, SECOND, word(record::OUT_SECOND));
    a.here(failed);
}

fn load_result(a: &mut Assembler, to: Register) -> &mut Assembler {
    a.load(to, R9, word(record::RESULT))
}

/// Jumps to `skip` unless the call is one that [`Mode::Refusals`] passes on.
fn pass_refusals(a: &mut Assembler, maps: &Maps, skip: Label) {
    let size = entry_word(entry::ARGUMENT + 1);
    let (ask, pass, success) = (a.label(), a.label(), a.label());
    unless_cookie(a, ALWAYS, ask);
    a.jump(Condition::Always, pass).here(ask);
    load_result(a, R1).jump(Condition::Equal(R1, 0), success).jump(Condition::NotEqual(R1, OUT_OF_MEMORY), pass);
    a.map(R1, maps.refused.descriptor()).address(R2, Frame, KEY).address(R3, R9, size).set(R4, ANY);
    a.call(Helper::MapUpdate).jump(Condition::Always, pass);
    a.here(success);
    lookup(a, &maps.refused).jump(Condition::Equal(R0, 0), skip);
    a.load(R1, R0, 0).load(R2, R9, size).jump(Condition::NotEqualRegister(R1, R2), skip);
    delete(a, &maps.refused);
    a.here(pass);
}

/// Leaves the ring's flags in `R4`: the reader is woken by a refusal, and by a ring of which a quarter is unread, which its timer
/// may find full. Otherwise it reads when its timer says so.
fn choose_wakeup(a: &mut Assembler, maps: &Maps) {
    let (wake, send) = (a.label(), a.label());
    load_result(a, R1).jump(Condition::Equal(R1, OUT_OF_MEMORY), wake);
    a.map(R1, maps.ring.as_fd()).set(R2, UNREAD).call(Helper::RingQuery);
    a.jump(Condition::Greater(R0, (maps.ring_bytes / 4).cast_signed()), wake);
    a.set(R4, NO_WAKEUP).jump(Condition::Always, send);
    a.here(wake).set(R4, WAKEUP).here(send);
}
