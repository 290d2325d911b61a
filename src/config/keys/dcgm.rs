//! The keys of the listener that serves dcgm-exporter's families.

use super::Key;
use crate::config::model::DcgmNames;

/// The keys of the section `dcgm`.
pub(super) const DCGM: &[Key] = &[
    Key::addresses("dcgm.listen-address", None, |c| &mut c.dcgm.listen_addresses).help(
        "Additional address that serves /metrics with the families of dcgm-exporter, such as \":9400\" \
         (docs/from-dcgm.md), with the same web.config-file and limits as web.listen-address. Not set: no additional \
         address.",
    ),
    Key::choice(
        "dcgm.names",
        "exporter-4.8",
        &[
            ("exporter-4.8", |c| c.dcgm.names = DcgmNames::Exporter48),
            ("exporter-main", |c| c.dcgm.names = DcgmNames::ExporterMain),
            ("dcgm-4.6", |c| c.dcgm.names = DcgmNames::Dcgm46),
        ],
    )
    .help(
        "Names of families and labels. exporter-4.8: those of dcgm-exporter 4.5 to 4.8, with the label Hostname. \
         exporter-main: those of its main branch, with the label hostname. dcgm-4.6: the fields as DCGM 4.6 renamed \
         them, with the label hostname.",
    ),
    Key::path("dcgm.collectors-file", "FILE", |c| &mut c.dcgm.collectors_file).help(
        "A CSV file of dcgm-exporter that lists the fields to serve, with their types and help texts. The names of the \
         families are those in the file. Not set: the fields that dcgm-exporter serves by default.",
    ),
    Key::switch("dcgm.virtual-gpus", "false", |c| &mut c.dcgm.virtual_gpus).help(
        "Serve one series for each container that shares a GPU (time-slicing, MPS), like KUBERNETES_VIRTUAL_GPUS of \
         dcgm-exporter. The used memory and the utilization of a container are those of its own processes.",
    ),
];
