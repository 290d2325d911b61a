//! Lines of the allocator protocol.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    properties::allocator(data);
});
