//! What the machine reports about its memory: `/proc/meminfo` (proc_meminfo(5)).

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::snapshot::SharedMemory;

/// The longest file that is read. The kernel's has 1.6 KB.
const LONGEST: u64 = 16 << 10;
/// The fields, in the order of [`Fields`].
const NAMES: [&str; 6] = ["MemTotal", "MemAvailable", "SwapFree", "HugePages_Total", "HugePages_Free", "Hugepagesize"];

/// The numbers of the fields in [`NAMES`]; `None` for one that the file does not have.
type Fields = [Option<u64>; NAMES.len()];

/// The file.
#[derive(Debug)]
pub(super) struct Meminfo {
    path: PathBuf,
}

impl Meminfo {
    /// The file of the procfs that is mounted here.
    pub(super) fn below(procfs: &Path) -> Self {
        Self { path: procfs.join("meminfo") }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// If it cannot be read, or does not say how large the memory is and how much of it is available.
    pub(super) fn read(&self) -> Result<SharedMemory, Unread> {
        let read = || -> io::Result<SharedMemory> {
            let mut text = String::with_capacity(2048);
            std::fs::File::open(&self.path)?.take(LONGEST).read_to_string(&mut text)?;
            shared(&text).ok_or_else(|| io::Error::other("it has no MemTotal and MemAvailable that can be true"))
        };
        read().map_err(|source| Unread { path: self.path.clone(), source })
    }
}

/// The machine's memory could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}: the memory of the machine, which the GPU shares, cannot be read", path = path.display())]
pub(super) struct Unread {
    path: PathBuf,
    source: io::Error,
}

/// What can be allocated is the available memory and the free swap or, if that is more, the free huge pages. NVIDIA recommends
/// for DGX Spark to count huge pages alone where any are reserved, which is 0 if another program has reserved a few.
fn shared(text: &str) -> Option<SharedMemory> {
    let [total, available, swap_free, pages, free_pages, page_size] = fields(text);
    let kib = |number: u64| number.checked_mul(1024);
    let total = kib(total?).filter(|total| *total > 0)?;
    let available = kib(available?.checked_add(swap_free.unwrap_or(0))?)?;
    let huge = match pages {
        None | Some(0) => 0,
        Some(_) => kib(free_pages?.checked_mul(page_size?)?)?,
    };
    Some(SharedMemory { total, available: available.max(huge) })
}

fn fields(text: &str) -> Fields {
    let mut fields = Fields::default();
    for line in text.lines() {
        let Some((name, rest)) = line.split_once(':') else { continue };
        if let Some(index) = NAMES.iter().position(|known| *known == name) {
            fields[index] = rest.split_ascii_whitespace().next().and_then(|number| number.parse().ok());
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPARK: &str = "MemTotal:       127600748 kB\nMemFree:        90000000 kB\nMemAvailable:   118566368 kB\n\
                         SwapTotal:      16777212 kB\nSwapFree:       16000000 kB\nHugePages_Total:       0\n\
                         HugePages_Free:        0\nHugepagesize:       2048 kB\n";

    #[test]
    fn what_can_be_allocated_is_the_available_memory_and_the_free_swap() {
        let expected = SharedMemory { total: 127_600_748 << 10, available: (118_566_368 + 16_000_000) << 10 };
        assert_eq!(shared(SPARK), Some(expected));
        let without_swap = "MemTotal: 8 kB\nMemAvailable: 3 kB\n";
        assert_eq!(shared(without_swap), Some(SharedMemory { total: 8 << 10, available: 3 << 10 }));
    }

    #[test]
    fn free_huge_pages_count_if_they_are_more() {
        let ordinary = (118_566_368 + 16_000_000) << 10;
        for (free, available) in [(1000, ordinary), (70_000, 70_000 * 2048 * 1024)] {
            let reserved = SPARK.replace("HugePages_Total:       0", "HugePages_Total:   70000");
            let reserved = reserved.replace("HugePages_Free:        0", &format!("HugePages_Free: {free}"));
            assert_eq!(shared(&reserved).map(|shared| shared.available), Some(available));
        }
    }

    #[test]
    fn a_file_that_does_not_tell_gives_nothing() {
        for text in [
            "",
            "MemTotal: 8 kB\n",
            "MemAvailable: 8 kB\n",
            "MemTotal: 0 kB\nMemAvailable: 0 kB\n",
            "MemTotal: 8 kB\nMemAvailable: -3 kB\n",
            "MemTotal: 18446744073709551615 kB\nMemAvailable: 3 kB\n",
            "MemTotal: 8 kB\nMemAvailable: 18446744073709551615 kB\nSwapFree: 5 kB\n",
            "MemTotal: 8 kB\nMemAvailable: 3 kB\nHugePages_Total: 7\n",
        ] {
            assert_eq!(shared(text), None, "{text}");
        }
        let folder = tempfile::tempdir().unwrap();
        let meminfo = Meminfo::below(folder.path());
        assert!(meminfo.read().unwrap_err().to_string().contains("meminfo"));
        std::fs::write(folder.path().join("meminfo"), SPARK).unwrap();
        assert!(meminfo.read().is_ok());
    }
}
