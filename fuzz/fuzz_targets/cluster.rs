//! What the kubelet and the API server answer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vram_exporter::kubernetes::pod_resources::trials::pod_resources(data);
    vram_exporter::kubernetes::api::trials::pods(data);
});
