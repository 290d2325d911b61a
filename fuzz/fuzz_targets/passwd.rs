//! Files of users.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    properties::passwd(data);
});
