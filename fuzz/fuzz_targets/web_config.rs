//! Web-config files, and the names and passwords that clients send.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if !properties::credentials(data) {
        properties::web_config(data);
    }
});
