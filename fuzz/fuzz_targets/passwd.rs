//! Files of users.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vram_exporter::attribution::trials::passwd(data);
});
