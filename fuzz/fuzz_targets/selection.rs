//! Patterns for `metrics.include` and `metrics.exclude`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    properties::selection(data);
});
