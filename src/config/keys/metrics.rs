//! The keys that choose the families.

use super::Key;

/// The keys whose names begin with `metrics.`.
pub(super) const METRICS: &[Key] = &[
    Key::globs("metrics.include", |c| &mut c.metrics.include).help(
        "Serve only the families with these names, and no others (docs/configuration.md#choosing-families). A name may \
         contain * (any characters), ? (one character) and [ab] (one of these). Give several names as a list in a file, \
         a repeated flag, or comma-separated text. Not set: all families.",
    ),
    Key::globs("metrics.exclude", |c| &mut c.metrics.exclude).help(
        "Leave out the families with these names, written as in metrics.include. A family that both keys name is left \
         out.",
    ),
];
