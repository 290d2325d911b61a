//! Names of every kind: in `/proc`, in the exposition, and on the page.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    properties::process(data);
    properties::exposition(data);
    properties::page(data);
});
