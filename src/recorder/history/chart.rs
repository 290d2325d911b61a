//! A chart: a value over time, divided into parts of one length. The API and the files use this format.

use serde::{Deserialize, Serialize};

use super::series::Series;
use super::{Micros, Now};

/// A part of a chart: when it begins, its lowest value, its highest value, and its last value.
pub type ChartPoint = (f64, Option<u64>, Option<u64>, Option<u64>);

/// A value over time. The parts before the first known value are left out, and so is a part with the same values as the
/// previous one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// Seconds: the length of each part.
    pub step_seconds: f64,
    /// The parts. Each consists of the Unix time at which it begins and of its lowest, highest and last value in bytes.
    /// The values are null from the time at which they became unknown.
    pub points: Vec<ChartPoint>,
}

/// The chart of a series, without parts that have the same values as the part before.
pub(crate) fn chart(series: &Series, from: Micros, to: Micros, step: Micros, now: Now) -> Chart {
    let mut points = Vec::new();
    let mut before = None;
    for point in series.points(from, to, step) {
        let (min, max) = point.range.unzip();
        let values = (min, max, point.last);
        // Unknown parts at the beginning are left out. Later ones must be distinguishable from repeated parts.
        if before != Some(values) && (before.is_some() || min.is_some()) {
            points.push((now.unix(point.at), min, max, point.last));
            before = Some(values);
        }
    }
    points.shrink_to_fit();
    Chart { step_seconds: step as f64 / 1e6, points }
}
