//! Finds exported functions in a library by its table of dynamic symbols.
//!
//! Invariant: any file gives an answer or an error, after a bounded time. It is read with `pread`, so that a file that shrinks meanwhile
//! is an error too. One table of symbols is read, and no table has more than [`LIMIT`] bytes, whatever the file says.
//!
//! Source: the System V ABI, chapters "Object Files" and "Program Loading", for files of 64 bits.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::error::NoLibrary;

/// The largest table that is read. Those of libcuda.so have less than 1 MiB.
const LIMIT: u64 = 4 << 20;
const HEADER: u64 = 64;
const SEGMENT: usize = 56;
const SECTION: usize = 64;
const SYMBOL: usize = 24;
/// `ET_DYN`
const SHARED: u64 = 3;
/// `EM_X86_64` and `EM_AARCH64`
const MACHINE: u64 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
/// `PT_LOAD`, and the flag of a segment that is executed.
const LOADED: u64 = 1;
const EXECUTABLE: u64 = 1;
/// `SHT_DYNSYM`
const DYNAMIC_SYMBOLS: u64 = 11;
/// `SHN_UNDEF`, the section of a symbol that another library defines.
const IMPORTED: u64 = 0;
/// The landing pad of an indirect call. The kernel runs it in single steps, at several times the cost of what follows it.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

const OUTSIDE: NoLibrary = NoLibrary::NotElf("a table ends too early");

/// The offset in the file where a probe on each function belongs; `None` for a function that the library does not export.
pub(crate) fn offsets(file: &File, names: &[&str]) -> Result<Vec<Option<u64>>, NoLibrary> {
    let header = read(file, 0, HEADER)?;
    // ELF, 64 bits, little-endian.
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return Err(NoLibrary::NotElf("its first bytes are others"));
    }
    if number(&header, 16, 2)? != SHARED || number(&header, 18, 2)? != MACHINE {
        return Err(NoLibrary::NotElf("it is for another processor, or no library"));
    }
    let segments = table(file, number(&header, 32, 8)?, number(&header, 56, 2)?, SEGMENT)?;
    let sections = table(file, number(&header, 40, 8)?, number(&header, 60, 2)?, SECTION)?;
    let mut found = vec![None; names.len()];
    let is_symbols = |section: &&[u8]| number(section, 4, 4).is_ok_and(|kind| kind == DYNAMIC_SYMBOLS);
    // A library has one such table.
    if let Some(section) = sections.chunks_exact(SECTION).find(is_symbols) {
        let (at, bytes) = (number(section, 24, 8)?, number(section, 32, 8)?);
        let strings = usize::try_from(number(section, 40, 4)?).map_err(|_| OUTSIDE)?;
        let strings = sections.chunks_exact(SECTION).nth(strings).ok_or(OUTSIDE)?;
        let strings = read(file, number(strings, 24, 8)?, number(strings, 32, 8)?)?;
        for symbol in read(file, at, bytes)?.chunks_exact(SYMBOL) {
            let name = usize::try_from(number(symbol, 0, 4)?).map_err(|_| OUTSIDE)?;
            let name = strings.get(name..).ok_or(OUTSIDE)?;
            // The end of the name is not searched for: it can be as far away as the end of the table.
            let is_it = |wanted: &&str| {
                name.strip_prefix(wanted.as_bytes()).is_some_and(|rest| rest.first().is_none_or(|byte| *byte == 0))
            };
            if let Some(index) = names.iter().position(is_it)
                && number(symbol, 6, 2)? != IMPORTED
            {
                found[index] = place(&segments, number(symbol, 8, 8)?)?.or(found[index]);
            }
        }
    }
    for offset in found.iter_mut().flatten() {
        if cfg!(target_arch = "x86_64") && read(file, *offset, ENDBR64.len() as u64)? == ENDBR64 {
            *offset += ENDBR64.len() as u64;
        }
    }
    Ok(found)
}

/// The offset in the file of code at an address.
fn place(segments: &[u8], address: u64) -> Result<Option<u64>, NoLibrary> {
    for segment in segments.chunks_exact(SEGMENT) {
        let (kind, flags) = (number(segment, 0, 4)?, number(segment, 4, 4)?);
        let (offset, begin, bytes) = (number(segment, 8, 8)?, number(segment, 16, 8)?, number(segment, 32, 8)?);
        let inside = address.checked_sub(begin).filter(|inside| *inside < bytes);
        if let Some(inside) = inside.filter(|_| kind == LOADED && flags & EXECUTABLE != 0) {
            return offset.checked_add(inside).map(Some).ok_or(OUTSIDE);
        }
    }
    Ok(None)
}

fn table(file: &File, at: u64, count: u64, size: usize) -> Result<Vec<u8>, NoLibrary> {
    read(file, at, count * size as u64)
}

fn read(file: &File, at: u64, bytes: u64) -> Result<Vec<u8>, NoLibrary> {
    if bytes > LIMIT {
        return Err(NoLibrary::NotElf("a table is too long"));
    }
    let mut content = vec![0; usize::try_from(bytes).map_err(|_| OUTSIDE)?];
    match file.read_exact_at(&mut content, at) {
        // An offset above the largest signed number is invalid for the kernel.
        Err(error) if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput) => {
            Err(OUTSIDE)
        }
        read => Ok(read.map(|()| content)?),
    }
}

/// A little-endian number of up to 8 bytes.
fn number(bytes: &[u8], at: usize, size: usize) -> Result<u64, NoLibrary> {
    let bytes = bytes.get(at..at + size).ok_or(OUTSIDE)?;
    Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::io::Write;

    use super::*;

    const NAMES: [&str; 3] = ["cuMemAlloc_v2", "cuMemFree_v2", "cuMemNothing"];

    fn library() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap().with_file_name("libfake_libcuda.so")).unwrap()
    }

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    #[test]
    fn exported_functions_are_found() {
        let content = library();
        let [allocate, free, nothing] = offsets(&file(&content), &NAMES).unwrap()[..] else { unreachable!() };
        let (allocate, free) = (allocate.unwrap(), free.unwrap());
        assert!(allocate != free && allocate.max(free) < content.len() as u64 && nothing.is_none());
        // A symbol that the library imports is not one that it exports.
        assert_eq!(offsets(&file(&content), &["memcpy", "syscall"]).unwrap(), [None, None]);
    }

    #[test]
    fn no_file_makes_the_reader_panic() {
        let content = library();
        for length in [0, 1, 5, 63, 64, 65, 1000, content.len() / 2, content.len() - 1] {
            let read = offsets(&file(&content[..length]), &NAMES);
            assert!(read.is_err() || length > 64, "{length}: {read:?}");
        }
        // Other numbers in the header, in the segments, in the sections and in the symbols.
        let sections = usize::try_from(number(&content, 40, 8).unwrap()).unwrap();
        let symbols = |section: &&[u8]| number(section, 4, 4).unwrap() == DYNAMIC_SYMBOLS;
        let symbols = content[sections..].chunks_exact(SECTION).find(symbols).unwrap();
        let symbols = usize::try_from(number(symbols, 24, 8).unwrap()).unwrap();
        let places = (0..64).chain(64..64 + 4 * SEGMENT).chain(sections..content.len().min(sections + 8 * SECTION));
        let file = file(&content);
        for place in places.chain(symbols..symbols + 4 * SYMBOL) {
            for byte in [0, 0x7f, 0x80, 0xff, content[place] ^ 1] {
                file.write_all_at(&[byte], place as u64).unwrap();
                let _ = offsets(&file, &NAMES);
            }
            file.write_all_at(&content[place..=place], place as u64).unwrap();
        }
        assert!(offsets(&file, &NAMES).unwrap()[0].is_some());
    }

    /// The header of a library, with its sections at this place.
    fn header(sections: u64, count: u16) -> Vec<u8> {
        let mut header = library()[..64].to_vec();
        header[40..48].copy_from_slice(&sections.to_le_bytes());
        header[60..62].copy_from_slice(&count.to_le_bytes());
        header
    }

    /// A section: its kind, place, size and link.
    fn section(kind: u64, at: u64, bytes: u64, link: u32) -> [u8; SECTION] {
        let mut section = [0; SECTION];
        section[4..8].copy_from_slice(&kind.to_le_bytes()[..4]);
        section[24..32].copy_from_slice(&at.to_le_bytes());
        section[32..40].copy_from_slice(&bytes.to_le_bytes());
        section[40..44].copy_from_slice(&link.to_le_bytes());
        section
    }

    // Each file would take hours if all that it describes were read.
    #[test]
    fn a_file_that_describes_much_costs_little() {
        // Holes take no room: the file has the size of the longest table and more.
        let at = 1 << 20;
        let holes = |header: Vec<u8>, sections: &[u8]| {
            let file = file(&header);
            file.set_len(at + 2 * LIMIT).unwrap();
            file.write_all_at(sections, 4096).unwrap();
            file
        };
        // As many tables of symbols as a header can count, each of the largest size.
        let many = section(DYNAMIC_SYMBOLS, at, LIMIT, 0).repeat(usize::from(u16::MAX));
        assert_eq!(offsets(&holes(header(4096, u16::MAX), &many), &NAMES).ok(), Some(vec![None; 3]));
        // One name without an end, which all symbols have.
        let two = [section(DYNAMIC_SYMBOLS, at, LIMIT, 1), section(3, at + LIMIT, LIMIT, 0)].concat();
        let endless = holes(header(4096, 2), &two);
        endless.write_all_at(&vec![b'c'; usize::try_from(LIMIT).unwrap()], at + LIMIT).unwrap();
        assert_eq!(offsets(&endless, &NAMES).ok(), Some(vec![None; 3]));
        // A table that is larger.
        let large = [section(DYNAMIC_SYMBOLS, at, LIMIT + 1, 1), section(3, at, LIMIT, 0)].concat();
        assert!(matches!(
            offsets(&holes(header(4096, 2), &large), &NAMES),
            Err(NoLibrary::NotElf("a table is too long"))
        ));
    }
}
