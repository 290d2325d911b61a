//! Names of every kind, in the exposition and on the page for people.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vram_exporter::metrics::trials::exposition(data);
    vram_exporter::http::trials::page(data);
});
