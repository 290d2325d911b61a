//! Responses of the kubelet and the API server, and amounts of memory in them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    properties::pod_resources(data);
    properties::pods(data);
    properties::claims(data);
    properties::quantity(data);
});
