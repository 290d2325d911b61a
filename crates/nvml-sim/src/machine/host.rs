//! The memory of the machine itself, where a GPU shares it with the CPU.

use crate::clock::Nanos;
use crate::curve::Curve;

/// The size of a huge page in kB.
const HUGE_PAGE: u64 = 2048;

/// What is known of the machine's memory besides what processes hold on the GPU.
#[derive(Debug)]
pub(crate) struct Host {
    /// Bytes of memory that CPU and GPU share.
    pub(crate) total: u64,
    /// Bytes that the programs on the CPU hold.
    pub(crate) used: Curve,
    /// Bytes of free swap.
    pub(crate) swap_free: u64,
    /// All reserved huge pages, and the free ones.
    pub(crate) huge_pages: [u32; 2],
}

impl Host {
    /// `/proc/meminfo` (proc_meminfo(5)), shortened. `on_gpu`: bytes that processes hold on the GPU.
    pub(crate) fn meminfo(&self, on_gpu: u64, now: Nanos) -> String {
        let available = self.total.saturating_sub(on_gpu).saturating_sub(self.used.at(now, 0) as u64);
        let sizes = [
            ("MemTotal", self.total),
            ("MemFree", available / 2),
            ("MemAvailable", available),
            ("SwapTotal", self.swap_free),
            ("SwapFree", self.swap_free),
        ];
        let sizes = sizes.map(|(name, bytes)| format!("{:<16}{:>8} kB\n", format!("{name}:"), bytes >> 10));
        let [pages, free] = self.huge_pages;
        let pages = [("HugePages_Total", pages), ("HugePages_Free", free)];
        let pages = pages.map(|(name, count)| format!("{:<16}{count:>8}\n", format!("{name}:")));
        sizes.concat() + &pages.concat() + &format!("{:<16}{HUGE_PAGE:>8} kB\n", "Hugepagesize:")
    }
}
