//! Names of every kind: as a process shows them, in the exposition, and on the page for people.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vram_exporter::attribution::trials::process(data);
    vram_exporter::metrics::trials::exposition(data);
    vram_exporter::http::trials::page(data);
});
