//! Bytes that clients send to the web server.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    properties::http(data);
});
