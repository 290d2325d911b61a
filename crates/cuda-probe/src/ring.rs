//! Reads the ring that the return program fills.
//!
//! Invariant: a record is read only after the kernel has finished it, and its place is given back only after it has been read.
//!
//! Source: Documentation/bpf/ringbuf.rst of Linux. The first page of the mapping is the reader's, the second the kernel's, then follows
//! the data. The kernel offers the data twice in a row, so that a record that wraps is in one piece. This reader maps it once, which
//! halves what counts as its memory, and wraps word by word.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use crate::record::WORDS;
use crate::sys::Mapping;

/// The bits of a record's length: the kernel is writing it; it was given up.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
/// The length and a word that the reader does not need.
const HEADER: usize = 8;

/// The reader's end of the ring.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The reader's page: how far it has read.
    read: Mapping,
    /// The kernel's page, and the data.
    data: Mapping,
    page: usize,
    mask: u64,
}

impl Ring {
    /// `bytes` is the size of the ring, a power of two.
    pub(crate) fn new(map: BorrowedFd<'_>, bytes: u32) -> io::Result<Self> {
        let page = usize::try_from(procfs::page_size()).map_err(io::Error::other)?;
        let size = usize::try_from(bytes).map_err(io::Error::other)?;
        Ok(Self {
            read: Mapping::new(map, page, true, 0)?,
            data: Mapping::new(map, page + size, false, page)?,
            page,
            mask: u64::from(bytes) - 1,
        })
    }

    /// Hands over the records that are in the ring now, oldest first, and returns how many records had another length. Records that
    /// arrive meanwhile are left for the next time, so that a flood cannot hold the reader.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(&[u64; WORDS])) -> u64 {
        let end = self.data.u64(0).load(Ordering::Acquire);
        let mut at = self.read.u64(0).load(Ordering::Relaxed);
        let mut odd = 0;
        while at < end {
            // Sizes and places of records, and the size of the ring, are multiples of 8, so a word is never divided.
            let place = |offset: usize| self.page + ((at + offset as u64) & self.mask) as usize;
            let length = self.data.u32(place(0)).load(Ordering::Acquire);
            if length & BUSY != 0 {
                break;
            }
            let bytes = (length & !(BUSY | DISCARDED)) as usize;
            if bytes == 8 * WORDS {
                let word = |index| self.data.u64(place(HEADER + 8 * index)).load(Ordering::Relaxed);
                each(&std::array::from_fn(word));
            } else if length & DISCARDED == 0 {
                odd += 1;
            }
            at += (HEADER + bytes).next_multiple_of(8) as u64;
            self.read.u64(0).store(at, Ordering::Release);
        }
        odd
    }
}
