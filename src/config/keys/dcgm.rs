//! The keys of the listener that serves dcgm-exporter's families.

use super::Key;
use crate::config::model::DcgmNames;
use crate::config::setting::Kind;

/// The keys of the section `dcgm`.
pub(super) const DCGM: &[Key] = &[
    Key {
        name: "dcgm.listen-address",
        default: None,
        kind: Kind::Addresses,
        set: |c, s| c.dcgm.listen_addresses = s.addresses(),
        help: "Additional address that serves /metrics with the families of dcgm-exporter, such as \":9400\" \
               (docs/from-dcgm.md), with the same web.config-file and limits as web.listen-address. Not set: no additional \
               address.",
    },
    Key {
        name: "dcgm.names",
        default: Some("exporter-4.8"),
        kind: Kind::Choice(&DcgmNames::WORDS),
        set: |c, s| c.dcgm.names = DcgmNames::of(s.text().as_deref()),
        help: "Names of families and labels. exporter-4.8: those of dcgm-exporter 4.5 to 4.8, with the label Hostname. \
               exporter-main: those of its main branch, with the label hostname. dcgm-4.6: the fields as DCGM 4.6 renamed \
               them, with the label hostname.",
    },
    Key {
        name: "dcgm.collectors-file",
        default: None,
        kind: Kind::Path("FILE"),
        set: |c, s| c.dcgm.collectors_file = s.path(),
        help: "A CSV file of dcgm-exporter that lists the fields to serve, with their types and help texts. The names of the \
               families are those in the file. Not set: the fields that dcgm-exporter serves by default.",
    },
    Key {
        name: "dcgm.virtual-gpus",
        default: Some("false"),
        kind: Kind::Switch,
        set: |c, s| c.dcgm.virtual_gpus = s.switch(),
        help: "Serve one series for each container that shares a GPU (time-slicing, MPS), like KUBERNETES_VIRTUAL_GPUS of \
               dcgm-exporter. The used memory and the utilization of a container are those of its own processes.",
    },
];
