//! The keys that choose the families.

use crate::config::key::Key;
use crate::config::setting::Kind;

/// The keys whose names begin with `metrics.`.
pub(super) const METRICS: &[Key] = &[
    Key {
        name: "metrics.include",
        default: None,
        kind: Kind::Globs,
        set: |c, s| c.metrics.include = s.list(),
        help: "Serve only the families with these names, and no others \
               (docs/configuration.md#choosing-families). A name may contain * (any characters), ? (one character) \
               and [ab] (one of these). Give several names as a list in a file, a repeated flag, or comma-separated \
               text. Not set: all families.",
    },
    Key {
        name: "metrics.exclude",
        default: None,
        kind: Kind::Globs,
        set: |c, s| c.metrics.exclude = s.list(),
        help: "Leave out the families with these names, written as in metrics.include. A family that both keys name is left \
               out.",
    },
];
