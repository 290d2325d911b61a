//! User files in the format of `/etc/passwd`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    properties::passwd(data);
});
