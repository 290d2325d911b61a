//! How the process asks the system for memory.
//!
//! glibc gives each thread a heap of its own, so that threads do not wait for one another when they ask for memory. The threads
//! here hardly ever ask: a tick asks for nothing, and a list once a second. What several heaps do instead is to keep what each of
//! them once needed: 1.1 MiB of 14 with 512 processes on 8 GPUs. So there is one.

#![allow(unsafe_code, reason = "the C library's settings have no safe face; the one call says why it is sound")]

/// To be called before other threads are started. Where it has no effect, or the C library is another one, memory is as it would be.
pub(super) fn share() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two numbers, sets one of glibc's parameters, and may be called at any time (mallopt(3)).
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
