//! The profiler's counters (GPM), through nvml-wrapper.

#![allow(unsafe_code, reason = "the test calls the C functions")]

mod rig;

use std::time::Duration;

use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::{Device, Nvml};
use rig::Rig;

/// Four GPUs, half utilized, and one with two MIG devices: one is utilized to 70 %, the other is idle.
const HALF: &str = r#"
[[gpu]]
model = "H200"
profiling = { tensor = 0.8, pcie_received = "100MiB" }
[[gpu]]
model = "B200"
[[gpu]]
model = "A100-80GB"
[[gpu]]
model = "RTX 5090"
[[gpu]]
model = "H100"
mig = ["3g.40gb", "", "2g.20gb"]
profiling = { sm = 1.0 }
[[process]]
gpus = [0, 1, 2, 3]
start = "-1h"
command = ["train"]
utilization = 0.5
[[process]]
gpu = 4
mig = 0
start = "-1h"
command = ["train"]
utilization = 0.7
"#;

const METRICS: [GpmMetricId; 5] = [
    GpmMetricId::GraphicsUtil,
    GpmMetricId::AnyTensorUtil,
    GpmMetricId::PcieRxPerSec,
    GpmMetricId::SmUtil,
    GpmMetricId::Nvdec0Util,
];

/// The metrics between two samples; `None`: not filled.
fn between<'n>(nvml: &'n Nvml, sample: impl Fn() -> Result<GpmSample<'n>, NvmlError>) -> Vec<Option<f64>> {
    let first = sample().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let second = sample().unwrap();
    let metrics = gpm_metrics_get(nvml, &first, &second, &METRICS).unwrap();
    metrics.into_iter().map(|metric| metric.ok().map(|metric| (metric.value * 1e6).round() / 1e6)).collect()
}

#[test]
fn every_model_reports_what_it_has() {
    Rig::alone("every_model_reports_what_it_has", HALF, |rig| {
        let nvml = rig.nvml();
        let gpu = |index| nvml.device_by_index(index).unwrap();
        let of = |device: &Device<'_>| between(&nvml, || nvml.device_by_uuid(device.uuid()?)?.gpm_sample());
        let supported = (0..5).map(|index| gpu(index).gpm_support().unwrap());
        assert_eq!(supported.collect::<Vec<_>>(), [true, true, false, true, true]);
        assert_eq!(of(&gpu(0)), [Some(50.0), Some(40.0), Some(50.0), Some(41.0), None]);
        assert_eq!(of(&gpu(1)), [Some(50.0), Some(21.0), Some(1200.0), Some(41.0), None]);
        assert!(matches!(gpu(2).gpm_sample(), Err(NvmlError::NotSupported)));
        assert_eq!(of(&gpu(3)), [None; 5], "supported and never filled");
    });
}

#[test]
fn a_gpu_instance_has_samples_of_its_own() {
    Rig::alone("a_gpu_instance_has_samples_of_its_own", HALF, |rig| {
        let nvml = rig.nvml();
        let parent = nvml.device_by_index(4).unwrap();
        let sm = |values: Vec<Option<f64>>| values[3];
        let id = |index| parent.mig_device_by_index(index).unwrap();
        // The ids that the driver gives to these profiles.
        let (busy, idle) = (1, 3);
        assert_eq!(sm(between(&nvml, || parent.gpm_mig_sample(busy))), Some(70.0));
        assert_eq!(sm(between(&nvml, || parent.gpm_mig_sample(idle))), Some(0.0));
        assert_eq!(sm(between(&nvml, || id(0).gpm_sample())), Some(70.0));
        // Three of seven compute slices.
        assert_eq!(sm(between(&nvml, || parent.gpm_sample())), Some(30.0));
        assert!(matches!(parent.gpm_mig_sample(6), Err(NvmlError::InvalidArg)));
        assert!(matches!(id(0).gpm_mig_sample(busy), Err(NvmlError::NotSupported)));
    });
}

#[test]
fn a_metric_is_the_mean_of_the_interval() {
    const CHANGING: &str = r#"
[[gpu]]
model = "H200"
[[process]]
command = ["train"]
start = "-400ms"
utilization = [{ kind = "constant", value = 1.0, for = "400ms" }, { kind = "constant", value = 0.0, for = "400ms" }]
utilization_cycle = true
"#;
    Rig::alone("a_metric_is_the_mean_of_the_interval", CHANGING, |rig| {
        let nvml = rig.nvml();
        let gpu = nvml.device_by_index(0).unwrap();
        let first = gpu.gpm_sample().unwrap();
        std::thread::sleep(Duration::from_millis(1600));
        let second = gpu.gpm_sample().unwrap();
        let metrics = gpm_metrics_get(&nvml, &first, &second, &METRICS).unwrap();
        // The utilization is 1 for half of every 800 ms. The interval lasts for two to three of these periods.
        let graphics = metrics[0].as_ref().unwrap().value;
        assert!((33.0..=67.0).contains(&graphics), "{graphics}");
        assert!(gpm_metrics_get(&nvml, &second, &first, &METRICS).is_err(), "in the wrong order");
    });
}

#[test]
fn faults_affect_a_comparison_by_its_gpu() {
    Rig::alone("faults_affect_a_comparison_by_its_gpu", HALF, |rig| {
        rig.control(
            "[[fault]]\ncall = \"nvmlGpmMetricsGet\"\ngpu = 0\nkind = \"error\"\ncode = \"UNKNOWN\"\n\
             [[fault]]\ncall = \"nvmlGpmMetricsGet\"\ngpu = 1\nkind = \"implausible\"\n",
        );
        let nvml = rig.nvml();
        let samples = |index| {
            let gpu = nvml.device_by_index(index).unwrap();
            let first = gpu.gpm_sample().unwrap();
            std::thread::sleep(Duration::from_millis(20));
            (first, gpu.gpm_sample().unwrap())
        };
        let get = |(first, second): (GpmSample<'_>, GpmSample<'_>)| gpm_metrics_get(&nvml, &first, &second, &METRICS);
        assert!(matches!(get(samples(0)), Err(NvmlError::Unknown)));
        let implausible = get(samples(1)).unwrap();
        assert!(implausible[0].as_ref().unwrap().value.is_nan());
    });
}

#[test]
fn nothing_is_written_beyond_the_requested_metrics() {
    Rig::alone("nothing_is_written_beyond_the_requested_metrics", HALF, |rig| {
        use nvml_wrapper_sys::bindings as sys;
        let nvml = rig.nvml();
        let gpu = nvml.device_by_index(0).unwrap();
        let first = gpu.gpm_sample().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let second = gpu.gpm_sample().unwrap();
        // SAFETY: for the fields of this struct, 0 is valid.
        let mut request: sys::nvmlGpmMetricsGet_t = unsafe { std::mem::zeroed() };
        (request.version, request.numMetrics) = (sys::NVML_GPM_METRICS_GET_VERSION, 1);
        (request.metrics[0].metricId, request.metrics[1].metricId) = (1, 2);
        request.metrics[1].value = -1.0;
        // SAFETY: the library is open, and it allocated the samples.
        let call = |request: &mut sys::nvmlGpmMetricsGet_t| unsafe {
            (request.sample1, request.sample2) = (first.handle(), second.handle());
            nvml.lib().nvmlGpmMetricsGet.as_ref().unwrap()(request)
        };
        assert_eq!(call(&mut request), sys::nvmlReturn_enum_NVML_SUCCESS);
        assert_eq!((request.metrics[0].value.round(), request.metrics[1].value), (50.0, -1.0));
        request.version = 2;
        assert_eq!(call(&mut request), sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    });
}
