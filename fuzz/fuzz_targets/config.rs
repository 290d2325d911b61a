//! Configuration files, flags and environment variables.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    properties::config(data);
});
