//! One heap for all threads.
//!
//! glibc gives each thread its own heap, so that threads do not wait for one another when they allocate. The threads of
//! the exporter rarely allocate: sampling memory never does, and listing processes does once per second. Several heaps
//! would only retain the memory that each of them once needed (1.1 of 14 MiB with 512 processes on 8 GPUs).

#![allow(unsafe_code, reason = "the C library's settings have no safe interface; the only call states why it is sound")]

/// Sets up the single heap. Call it before other threads start. It has no effect with any other C library.
pub(super) fn share() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the function takes two numbers, sets one of glibc's parameters, and may be called at any time
    // (mallopt(3)).
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
