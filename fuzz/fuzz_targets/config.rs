//! Configuration files, flags and environment variables.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vram_exporter::config::trials::config(data);
});
