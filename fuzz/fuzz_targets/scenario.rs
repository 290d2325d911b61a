//! Scenario and control files of the simulator.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    properties::scenario(data);
});
