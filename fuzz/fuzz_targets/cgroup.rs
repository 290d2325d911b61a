//! Cgroup files: where a process lives.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vram_exporter::attribution::trials::cgroup(data);
});
