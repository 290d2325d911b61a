//! One heap for all threads.
//!
//! glibc gives each thread its own heap, so that threads do not wait for one another when they allocate. The threads here rarely allocate: a
//! tick never does, and a list of processes once per second. Several heaps only keep what each of them once needed: 1.1 MiB of 14 with 512
//! processes on 8 GPUs.

#![allow(unsafe_code, reason = "the C library's settings have no safe face; the one call says why it is sound")]

/// Sets it up; call it before other threads start. It has no effect with another C library.
pub(super) fn share() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two numbers, sets one of glibc's parameters, and may be called at any time (mallopt(3)).
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
