//! The library as a file, for callers that open NVML by path. A program that links this crate writes the file at run
//! time.
//!
//! The file is an ELF shared object without code: its symbols are absolute, and are the addresses of the functions in
//! this process. Therefore only the process that wrote the file can use it, and it works on a file system that is
//! mounted `noexec`. The program exports none of these functions itself; otherwise a real driver's library, loaded
//! later, would resolve its own calls to them.

#![allow(unsafe_code, reason = "a function of the C library names its version")]

use crate::abi;

/// The name by which the loader identifies the library.
const SONAME: &str = "libnvml_sim.so";
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SYMBOL: usize = 24;
const DYNAMIC_ENTRY: usize = 16;
const PROGRAM_HEADERS: usize = 3;
const DYNAMIC_ENTRIES: usize = 7;

/// `e_machine` and the largest page size. On an architecture that is not listed here, `e_machine` is 0, and the loader
/// refuses the file.
const MACHINE: (u16, u64) = if cfg!(target_arch = "x86_64") {
    (62, 4096)
} else if cfg!(target_arch = "aarch64") {
    (183, 65_536)
} else {
    (0, 4096)
};

/// The first version of glibc whose loader leaves the addresses of absolute symbols as they are.
const OLDEST_GLIBC: (u32, u32) = (2, 28);

/// The loader of this system would change the addresses in the library, and the program would crash when it calls them.
#[derive(Debug, thiserror::Error)]
#[error("the simulated GPUs need glibc {}.{} or newer, and this system has {version}", OLDEST_GLIBC.0, OLDEST_GLIBC.1)]
pub struct OldLoader {
    version: String,
}

/// The bytes of the file.
///
/// # Errors
/// If the loader does not support absolute symbols.
pub fn image() -> Result<Vec<u8>, OldLoader> {
    match glibc().filter(|version| !supports_absolute_symbols(version)) {
        Some(version) => Err(OldLoader { version }),
        None => Ok(bytes()),
    }
}

/// The version of the C library in use; `None` if it is not glibc.
fn glibc() -> Option<String> {
    #[cfg(target_env = "gnu")]
    {
        unsafe extern "C" {
            safe fn gnu_get_libc_version() -> *const std::ffi::c_char;
        }
        // SAFETY: glibc returns a constant C string.
        let version = unsafe { std::ffi::CStr::from_ptr(gnu_get_libc_version()) };
        Some(version.to_string_lossy().into_owned())
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

/// Whether a version such as `2.36` or `2.36.9000` is new enough.
fn supports_absolute_symbols(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next()) >= OLDEST_GLIBC
}

fn bytes() -> Vec<u8> {
    let symbols = abi::symbols();
    let mut strings = vec![0];
    let mut string = |text: &str| {
        let at = strings.len();
        strings.extend([text.as_bytes(), &[0]].concat());
        at
    };
    let soname = string(SONAME);
    let names: Vec<usize> = symbols.iter().map(|(name, _)| string(name)).collect();
    let hash = hash_table(symbols.iter().map(|(name, _)| *name));

    let dynamic_at = HEADER + PROGRAM_HEADERS * PROGRAM_HEADER;
    let symbols_at = dynamic_at + DYNAMIC_ENTRIES * DYNAMIC_ENTRY;
    let hash_at = symbols_at + (symbols.len() + 1) * SYMBOL;
    let strings_at = hash_at + hash.len() * 4;
    let size = strings_at + strings.len();

    let mut file = Bytes::default();
    file.header();
    // PT_LOAD, readable, and writable because older loaders relocate the dynamic section in place; PT_DYNAMIC;
    // PT_GNU_STACK, without which the stack would become executable.
    file.program_header(1, 0, size, MACHINE.1);
    file.program_header(2, dynamic_at, DYNAMIC_ENTRIES * DYNAMIC_ENTRY, 8);
    file.program_header(0x6474_e551, 0, 0, 16);
    // DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_SONAME, DT_NULL.
    let dynamic =
        [(4, hash_at), (5, strings_at), (6, symbols_at), (10, strings.len()), (11, SYMBOL), (14, soname), (0, 0)];
    dynamic.into_iter().for_each(|(tag, value)| file.words(&[tag, value as u64]));
    file.words(&[0; SYMBOL / 8]);
    for (name, (_, function)) in names.into_iter().zip(symbols) {
        file.symbol(name, function.addr());
    }
    hash.into_iter().for_each(|word| file.half(word));
    file.0.extend(strings);
    file.0
}

/// The System V hash table, with one chain entry per symbol; the first symbol is the empty one.
fn hash_table<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Vec<u32> {
    let count = names.len() + 1;
    let mut buckets = vec![0_u32; count];
    let mut chains = vec![0_u32; count];
    for (index, name) in names.enumerate().map(|(index, name)| (index + 1, name)) {
        let bucket = &mut buckets[hash(name) as usize % count];
        chains[index] = std::mem::replace(bucket, index as u32);
    }
    [vec![count as u32; 2], buckets, chains].concat()
}

/// The hash function of the System V ABI.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0, |hash, byte| {
        let sum = (hash << 4) + u32::from(byte);
        let high = sum & 0xf000_0000;
        (sum ^ (high >> 24)) & !high
    })
}

/// A little-endian ELF file that is being built.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn quarter(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    fn half(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn words(&mut self, values: &[u64]) {
        values.iter().for_each(|value| self.0.extend(value.to_le_bytes()));
    }

    fn header(&mut self) {
        const SHARED_OBJECT: u16 = 3;
        // The magic number, 64 bits, little-endian, version 1.
        self.0.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        self.quarter(SHARED_OBJECT);
        self.quarter(MACHINE.0);
        self.half(1);
        self.words(&[0, HEADER as u64, 0]);
        self.half(0);
        // The sizes and counts of the headers; there are no sections.
        for value in [HEADER, PROGRAM_HEADER, PROGRAM_HEADERS, 64, 0, 0] {
            self.quarter(value as u16);
        }
    }

    fn program_header(&mut self, kind: u32, at: usize, size: usize, align: u64) {
        const READ_WRITE: u32 = 6;
        let (at, size) = (at as u64, size as u64);
        self.half(kind);
        self.half(READ_WRITE);
        self.words(&[at, at, at, size, size, align]);
    }

    fn symbol(&mut self, name: usize, address: usize) {
        const GLOBAL_FUNCTION: u8 = 0x12;
        const ABSOLUTE: u16 = 0xfff1;
        self.half(name as u32);
        self.0.extend([GLOBAL_FUNCTION, 0]);
        self.quarter(ABSOLUTE);
        self.words(&[address as u64, 0]);
    }
}

#[cfg(test)]
mod tests {
    use super::supports_absolute_symbols;

    #[test]
    fn versions_before_2_28_are_too_old() {
        for old in ["2.17", "2.27", "2.27.9000", "2.9", "1.99", ""] {
            assert!(!supports_absolute_symbols(old), "{old}");
        }
        for new in ["2.28", "2.28.9000", "2.31", "2.100", "3.0", "3"] {
            assert!(supports_absolute_symbols(new), "{new}");
        }
    }
}
