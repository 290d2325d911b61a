//! Responses of the kubelet and the API server.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    properties::pod_resources(data);
    properties::pods(data);
});
