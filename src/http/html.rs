//! Figures as the page shows them.

use std::fmt;
use std::time::Duration;

/// Displays a number of bytes in MiB, or in GiB from 1 GiB up.
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: f64 = 1_048_576.0;
        let mib = self.0 as f64 / MIB;
        if mib >= 1024.0 { write!(f, "{:.1} GiB", mib / 1024.0) } else { write!(f, "{mib:.0} MiB") }
    }
}

/// Displays a number of bytes that may be unknown.
pub(super) struct Known(pub(super) Option<u64>);

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => Bytes(bytes).fmt(f),
            None => f.write_str("unknown"),
        }
    }
}

/// Displays the age of an event that happened between two moments: one age if they are less than two
/// seconds apart, otherwise both.
pub(super) struct AgeBetween(pub(super) Duration, pub(super) Duration);

impl fmt::Display for AgeBetween {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(least, most) = *self;
        write_age(f, least)?;
        if most.saturating_sub(least) >= Duration::from_secs(2) {
            f.write_str(" to ")?;
            write_age(f, most)?;
        }
        f.write_str(" ago")
    }
}

fn write_age(f: &mut fmt::Formatter<'_>, age: Duration) -> fmt::Result {
    match age.as_secs() {
        seconds @ 0..120 => write!(f, "{seconds} s"),
        seconds @ 120..7200 => write!(f, "{} min", seconds / 60),
        seconds => write!(f, "{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_as_exact_as_they_are_known() {
        let between =
            |least: u64, most: u64| AgeBetween(Duration::from_millis(least), Duration::from_millis(most)).to_string();
        assert_eq!(between(12_900, 14_899), "12 s ago");
        assert_eq!(between(400, 2_400), "0 s to 2 s ago");
        assert_eq!(between(60_000, 600_000), "60 s to 10 min ago");
        assert_eq!(between(7_199_000, 7_200_000), "119 min ago");
        assert_eq!(between(7_200_000, 7_200_000), "2 h ago");
        assert_eq!(Known(None).to_string(), "unknown");
    }

    #[test]
    fn bytes_are_shown_in_mib_and_gib() {
        assert_eq!(Bytes(0).to_string(), "0 MiB");
        assert_eq!(Bytes(528 << 20).to_string(), "528 MiB");
        assert_eq!(Bytes(10 << 30).to_string(), "10.0 GiB");
    }
}
