//! Lists of fields in dcgm-exporter's CSV format.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    properties::collectors(data);
});
