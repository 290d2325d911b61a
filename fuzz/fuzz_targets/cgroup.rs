//! Cgroup files: where a process runs.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    properties::cgroup(data);
});
