//! What a process shows of itself: names, arguments, start, user.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vram_exporter::attribution::trials::process(data);
});
