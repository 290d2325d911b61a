//! Web-config files, and the names and passwords that clients give.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if !vram_exporter::web_config::trials::credentials(data) {
        vram_exporter::web_config::trials::web_config(data);
    }
});
