//! An assembler for the instructions of eBPF that the two programs need.
//!
//! Invariant: a program that [`Assembler::finish`] returns jumps forward only, to a label that is set once, and no distance is
//! cut off to fit its 16 bits. It uses less than [`STACK`] bytes of its stack. The kernel's verifier decides whether it is safe.
//!
//! Source of the encoding: Documentation/bpf/standardization/instruction-set.rst of Linux, which is RFC 9669.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// One instruction, as `struct bpf_insn`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Instruction {
    opcode: u8,
    /// The destination in the low four bits, the source in the high ones.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// `R1` to `R5` hold the arguments of a helper and are lost in its call, `R0` holds its result, `R6` to `R9` are kept, and
/// `Frame` is the end of the program's stack of 512 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "the set of the machine")]
pub(crate) enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    Frame,
}

use Register::{Frame, R0, R1, R2};

/// Functions of the kernel by their number in `include/uapi/linux/bpf.h`, with the kernel that brought them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Helper {
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    /// CLOCK_MONOTONIC in nanoseconds.
    Time = 5,
    /// The process in the high 32 bits, the thread in the low ones, both in the first pid namespace.
    ProcessAndThread = 14,
    /// 5.5
    ReadUserMemory = 112,
    /// 5.8
    RingOutput = 130,
    /// 5.8
    RingQuery = 134,
    /// 5.15
    AttachCookie = 174,
}

/// When a jump is taken. The immediate value is extended to 64 bits with its sign.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Condition {
    Always,
    Equal(Register, i32),
    NotEqual(Register, i32),
    NotEqualRegister(Register, Register),
    /// Without signs.
    Greater(Register, i32),
}

/// A place in the program, made by [`Assembler::label`] and set by [`Assembler::here`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Label(usize);

/// Why instructions make no program. Each is a mistake in the code of this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AssemblyError {
    /// A jump has a label that was never set.
    #[error("instruction {at} jumps to a label that is not set")]
    Unset {
        /// The index of the jump.
        at: usize,
    },
    /// A label was set twice.
    #[error("a label is set at instruction {first} and again at {second}")]
    SetTwice {
        /// The index of the instruction after the first place.
        first: usize,
        /// The index of the instruction after the second place.
        second: usize,
    },
    /// A jump leads back, or to itself.
    #[error("instruction {at} jumps back to {to}")]
    Backward {
        /// The index of the jump.
        at: usize,
        /// The index of its target.
        to: usize,
    },
    /// The program uses so much of its stack that the kernel may share the stack between threads.
    #[error("instruction {at} uses too much of the stack")]
    Stack {
        /// The index of the instruction.
        at: usize,
    },
    /// The distance of a jump does not fit 16 bits.
    #[error("instruction {at} cannot reach {to}")]
    TooFar {
        /// The index of the jump.
        at: usize,
        /// The index of its target.
        to: usize,
    },
}

/// From this many bytes on, Linux 6.13 and later can give a program one stack for each processor instead of the thread's. A program
/// on a uprobe can be interrupted by another thread, whose program would then overwrite its stack.
const STACK: i16 = 64;

/// A program that grows instruction by instruction.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    code: Vec<Instruction>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
    error: Option<AssemblyError>,
}

/// What a wide constant means: `BPF_PSEUDO_MAP_FD` and `BPF_PSEUDO_MAP_VALUE`.
const MAP: u8 = 1;
const MAP_VALUE: u8 = 2;

impl Assembler {
    fn push(&mut self, opcode: u8, destination: Register, source: u8, offset: i16, immediate: i32) -> &mut Self {
        self.code.push(Instruction { opcode, registers: destination as u8 | source << 4, offset, immediate });
        self
    }

    pub(crate) fn copy(&mut self, to: Register, from: Register) -> &mut Self {
        self.push(0xbf, to, from as u8, 0, 0)
    }

    pub(crate) fn set(&mut self, to: Register, value: i32) -> &mut Self {
        self.push(0xb7, to, 0, 0, value)
    }

    pub(crate) fn or(&mut self, to: Register, from: Register) -> &mut Self {
        self.push(0x4f, to, from as u8, 0, 0)
    }

    pub(crate) fn or_value(&mut self, to: Register, value: i32) -> &mut Self {
        self.push(0x47, to, 0, 0, value)
    }

    pub(crate) fn and_value(&mut self, to: Register, value: i32) -> &mut Self {
        self.push(0x57, to, 0, 0, value)
    }

    pub(crate) fn shift_left(&mut self, to: Register, bits: i32) -> &mut Self {
        self.push(0x67, to, 0, 0, bits)
    }

    /// Without signs.
    pub(crate) fn shift_right(&mut self, to: Register, bits: i32) -> &mut Self {
        self.push(0x77, to, 0, 0, bits)
    }

    /// Reads 64 bits from memory.
    pub(crate) fn load(&mut self, to: Register, base: Register, offset: i16) -> &mut Self {
        self.push(0x79, to, base as u8, offset, 0)
    }

    /// Writes 64 bits to memory.
    pub(crate) fn store(&mut self, base: Register, offset: i16, from: Register) -> &mut Self {
        self.reach(base, offset).push(0x7b, base, from as u8, offset, 0)
    }

    /// The address of a place in memory.
    pub(crate) fn address(&mut self, to: Register, base: Register, offset: i16) -> &mut Self {
        self.reach(base, offset).copy(to, base).push(0x07, to, 0, 0, offset.into())
    }

    /// Notes an error if a place is too deep in the stack.
    fn reach(&mut self, base: Register, offset: i16) -> &mut Self {
        if base == Frame && offset <= -STACK {
            self.error.get_or_insert(AssemblyError::Stack { at: self.code.len() });
        }
        self
    }

    fn wide(&mut self, to: Register, meaning: u8, low: RawFd, high: i32) -> &mut Self {
        self.push(0x18, to, meaning, 0, low).push(0, R0, 0, 0, high)
    }

    pub(crate) fn map(&mut self, to: Register, map: BorrowedFd<'_>) -> &mut Self {
        self.wide(to, MAP, map.as_raw_fd(), 0)
    }

    /// The address of this offset in the only value of an array.
    pub(crate) fn value(&mut self, to: Register, array: BorrowedFd<'_>, offset: i32) -> &mut Self {
        self.wide(to, MAP_VALUE, array.as_raw_fd(), offset)
    }

    /// Adds 1, atomically, to the 64 bits at this offset in the only value of an array. Changes `R1` and `R2`.
    pub(crate) fn increment(&mut self, array: BorrowedFd<'_>, offset: i32) -> &mut Self {
        self.value(R1, array, offset).set(R2, 1).push(0xdb, R1, R2 as u8, 0, 0)
    }

    pub(crate) fn call(&mut self, helper: Helper) -> &mut Self {
        self.push(0x85, R0, 0, 0, helper as i32)
    }

    /// Ends the program with the result 0.
    pub(crate) fn exit(&mut self) -> &mut Self {
        self.set(R0, 0).push(0x95, R0, 0, 0, 0)
    }

    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Sets a label at the next instruction.
    pub(crate) fn here(&mut self, label: Label) -> &mut Self {
        let second = self.code.len();
        if let Some(first) = self.labels[label.0].replace(second) {
            self.error.get_or_insert(AssemblyError::SetTwice { first, second });
        }
        self
    }

    pub(crate) fn jump(&mut self, when: Condition, to: Label) -> &mut Self {
        self.jumps.push((self.code.len(), to));
        match when {
            Condition::Always => self.push(0x05, R0, 0, 0, 0),
            Condition::Equal(register, value) => self.push(0x15, register, 0, 0, value),
            Condition::NotEqual(register, value) => self.push(0x55, register, 0, 0, value),
            Condition::NotEqualRegister(one, other) => self.push(0x5d, one, other as u8, 0, 0),
            Condition::Greater(register, value) => self.push(0x25, register, 0, 0, value),
        }
    }

    /// The program, with the distances of its jumps.
    ///
    /// # Errors
    /// A jump that leads back, too far or nowhere; a label that is set twice; too much of the stack is used.
    pub(crate) fn finish(mut self) -> Result<Vec<Instruction>, AssemblyError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        for (at, label) in self.jumps {
            let to = self.labels[label.0].ok_or(AssemblyError::Unset { at })?;
            let distance = to.checked_sub(at + 1).ok_or(AssemblyError::Backward { at, to })?;
            self.code[at].offset = i16::try_from(distance).map_err(|_| AssemblyError::TooFar { at, to })?;
        }
        Ok(self.code)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// A jump over this many instructions.
    fn over(count: usize) -> Result<Vec<Instruction>, AssemblyError> {
        let mut program = Assembler::default();
        let end = program.label();
        program.jump(Condition::Equal(R1, -1), end);
        for _ in 0..count {
            program.set(R2, 7);
        }
        program.here(end).exit();
        program.finish()
    }

    #[test]
    fn instructions_have_the_bytes_of_the_standard() {
        let mut program = Assembler::default();
        program.copy(Register::R6, R1).load(R1, Register::R6, 112).store(Frame, -8, R1).address(R2, Frame, -8);
        program.call(Helper::AttachCookie).exit();
        let bytes: Vec<(u8, u8, i16, i32)> =
            program.finish().unwrap().iter().map(|i| (i.opcode, i.registers, i.offset, i.immediate)).collect();
        let expected = [
            (0xbf, 0x16, 0, 0),
            (0x79, 0x61, 112, 0),
            (0x7b, 0x1a, -8, 0),
            (0xbf, 0xa2, 0, 0),
            (0x07, 0x02, 0, -8),
            (0x85, 0x00, 0, 174),
            (0xb7, 0x00, 0, 0),
            (0x95, 0x00, 0, 0),
        ];
        assert_eq!(bytes, expected);
        assert_eq!(size_of::<Instruction>(), 8);
    }

    #[test]
    fn a_forward_jump_has_its_distance() {
        assert_eq!(over(0).unwrap()[0], Instruction { opcode: 0x15, registers: 1, offset: 0, immediate: -1 });
        assert_eq!(over(32_767).unwrap()[0].offset, 32_767);
    }

    #[test]
    fn a_jump_out_of_reach_is_an_error() {
        assert_eq!(over(32_768).unwrap_err(), AssemblyError::TooFar { at: 0, to: 32_769 });
        assert_eq!(over(65_536).unwrap_err(), AssemblyError::TooFar { at: 0, to: 65_537 });
    }

    #[test]
    fn a_backward_jump_is_an_error() {
        let mut program = Assembler::default();
        let begin = program.label();
        program.here(begin).set(R1, 0).jump(Condition::Always, begin).exit();
        assert_eq!(program.finish().unwrap_err(), AssemblyError::Backward { at: 1, to: 0 });

        let mut program = Assembler::default();
        let own = program.label();
        program.here(own).jump(Condition::Always, own).exit();
        assert_eq!(program.finish().unwrap_err(), AssemblyError::Backward { at: 0, to: 0 });
    }

    #[test]
    fn a_label_is_set_exactly_once() {
        let mut program = Assembler::default();
        let nowhere = program.label();
        program.set(R1, 0).jump(Condition::NotEqual(R1, 0), nowhere).exit();
        assert_eq!(program.finish().unwrap_err(), AssemblyError::Unset { at: 1 });

        let mut program = Assembler::default();
        let twice = program.label();
        program.jump(Condition::Always, twice).here(twice).set(R0, 0).here(twice).exit();
        assert_eq!(program.finish().unwrap_err(), AssemblyError::SetTwice { first: 1, second: 2 });
    }

    #[test]
    fn the_stack_stays_below_the_size_that_the_kernel_shares() {
        let finish = |offset, to_address: bool| {
            let mut program = Assembler::default();
            if to_address { program.address(R2, Frame, offset) } else { program.store(Frame, offset, R1) }.exit();
            program.finish().map(|code| code.len())
        };
        assert!(finish(-56, true).is_ok() && finish(-56, false).is_ok());
        for offset in [-64, -72, -160] {
            assert_eq!(finish(offset, true), Err(AssemblyError::Stack { at: 0 }));
            assert_eq!(finish(offset, false), Err(AssemblyError::Stack { at: 0 }));
        }
    }
}
