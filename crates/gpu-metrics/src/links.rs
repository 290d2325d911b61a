//! The links of GPUs to each other and to their CPU, and the fabric that they form.

use super::exposition::Exposition;
use super::family::{Cadence, Family, GPU, Rows, Series};
use super::label::Labels;
use super::section::{Pass, Section};
use gpu_readings::snapshot::{C2cLinks, FabricProblem, FabricState, NvlinkError, NvlinkErrors, Nvlinks, SlowTelemetry};

const SLOW: Series = Series::new(Cadence::Slow, GPU);

static NVLINKS: Rows<Nvlinks> = &[
    SLOW.row("gpu_nvlink_links", "NVLinks that the GPU has, whether they connect anything or not.", |l| {
        Some(l.links.into())
    }),
    SLOW.row(
        "gpu_nvlink_payload_transmitted_bytes_total",
        "Bytes of data from the GPU over all NVLinks, without what the protocol adds, as the driver counts them in KiB.",
        |l| l.transmitted.map(|bytes| bytes as f64),
    ),
    SLOW.row(
        "gpu_nvlink_payload_received_bytes_total",
        "Bytes of data to the GPU over all NVLinks, without what the protocol adds, as the driver counts them in KiB.",
        |l| l.received.map(|bytes| bytes as f64),
    ),
];
static DOWN: Rows<SlowTelemetry> = &[SLOW.row(
    "gpu_nvlink_links_down",
    "NVLinks that are not active. A link that connects nothing, as without a bridge, is not active either.",
    |s| s.nvlinks_down.map(f64::from),
)];
static ERRORS: Family = Series::new(Cadence::Slow, &["gpu", "uuid", "kind"]).family(
    "gpu_nvlink_errors_total",
    "Errors of all NVLinks of the GPU, as the driver adds them up. A kind that the driver does not count is absent. Where the driver adds up none of them, as that of an H200, the sum over the links, only with telemetry.nvlink-errors-by-link.",
);
static LINK_ERRORS: Family = Series::new(Cadence::Slow, &["gpu", "uuid", "link", "kind"])
    .family("gpu_nvlink_link_errors_total", "Errors of one NVLink. Read only with telemetry.nvlink-errors-by-link.");
static C2C: Rows<C2cLinks> = &[
    SLOW.row("gpu_c2c_links", "C2C links of the GPU to the chip beside it.", |l| Some(l.links.into())),
    SLOW.row("gpu_c2c_links_down", "C2C links that are not active.", |l| Some(l.down.into())),
];
static STATE: Family = Series::new(Cadence::Slow, &["gpu", "uuid", "state"]).family(
    "gpu_fabric_state",
    "1 for the state of the GPU's registration with its fabric of NVSwitches, 0 for the other states. failed: it ended with an error, and the GPU cannot use NVLink. Absent for a GPU that is in no fabric.",
);
static PROBLEM: Family = Series::new(Cadence::Slow, &["gpu", "uuid", "problem"]).family(
    "gpu_fabric_problem_active",
    "1 if the driver reports the problem of the GPU's part of the fabric, 0 if it reports that there is none. A problem of which it reports nothing is absent.",
);

pub(super) static SECTION: Section = Section {
    title: "Links between GPUs",
    intro: "For a GPU with such links only. `kind` is `replay` (a packet was sent again), `recovery` (the link was restored, \
            or should have been), `crc_flit` and `crc_data` (a wrong checksum of a flow control or data packet) or `ecc_data`. `state` is \
            `not_started`, `in_progress`, `completed` or `failed`; `problem` is `degraded_bandwidth`, `route_recovery`, \
            `route_unhealthy`, `access_timeout_recovery` or `incorrect_configuration`. The traffic with what the protocol adds \
            is in `gpu_nvlink_transmitted_bytes_total` (profiling counters).",
    families: &[&NVLINKS, &DOWN, &ERRORS, &LINK_ERRORS, &C2C, &STATE, &PROBLEM],
    collect,
};

fn collect(&Pass { gpus, .. }: &Pass<'_>, out: &mut Exposition<'_>) {
    let slow: Vec<_> = gpus.iter().filter_map(|gpu| Some((&gpu.labels, gpu.slow?))).collect();
    let nvlinks: Vec<_> = slow.iter().filter_map(|(labels, slow)| Some((*labels, slow.nvlinks.as_ref()?))).collect();
    out.add_rows(NVLINKS, nvlinks.iter().copied());
    out.add_rows(DOWN, slow.iter().copied());
    let errors = slow.iter().filter_map(|(labels, slow)| {
        let links = slow.nvlinks.as_ref()?;
        let mut errors = links.totals(&slow.nvlink_errors);
        let recoveries = &mut errors[NvlinkError::Recovery as usize];
        *recoveries = recoveries.or(links.recovery_events);
        Some(by_kind(labels, &errors))
    });
    out.add(&ERRORS, errors.flatten());
    let by_link = slow.iter().flat_map(|(labels, slow)| {
        let links = (0_u32..).zip(&slow.nvlink_errors);
        links.flat_map(|(link, errors)| by_kind(&labels.with_room(2).and_number("link", link), errors))
    });
    out.add(&LINK_ERRORS, by_link);
    out.add_rows(C2C, slow.iter().filter_map(|(labels, slow)| Some((*labels, slow.c2c_links.as_ref()?))));
    let fabrics: Vec<_> = slow.iter().filter_map(|(labels, slow)| Some((*labels, slow.fabric.as_ref()?))).collect();
    let states = fabrics.iter().flat_map(|(labels, fabric)| {
        FabricState::ALL
            .map(|state| (labels.with_room(1).and("state", state.label()), f64::from(state == fabric.state)))
    });
    out.add(&STATE, states);
    let problems = fabrics.iter().flat_map(|(labels, fabric)| {
        let known = FabricProblem::ALL.into_iter().filter_map(|problem| Some((problem, fabric.has(problem)?)));
        known.map(|(problem, is_there)| (labels.with_room(1).and("problem", problem.label()), f64::from(is_there)))
    });
    out.add(&PROBLEM, problems);
}

/// The series of the errors that are known.
fn by_kind(labels: &Labels, errors: &NvlinkErrors) -> Vec<(Labels, f64)> {
    let known = NvlinkError::ALL.into_iter().zip(errors).filter_map(|(kind, count)| Some((kind, (*count)?)));
    known.map(|(kind, count)| (labels.with_room(1).and("kind", kind.label()), count as f64)).collect()
}
