//! What a metric family is: name, type, unit, labels, help and when its values are measured.
//!
//! Each source declares its families next to the code that fills them; [`super::table`] collects them.

/// A family's type in the exposition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only increases, and restarts at 0 with the exporter or the driver.
    Counter,
    /// Cumulative buckets, a sum and a count.
    Histogram,
}

impl Kind {
    /// The type as written in the TYPE line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

/// The unit of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// A share, 0 to 1.
    Ratio,
    /// Degrees Celsius.
    Celsius,
    /// Watts.
    Watts,
    /// Joules.
    Joules,
    /// Hertz.
    Hertz,
    /// Always 1; the labels carry the information.
    Info,
    /// A plain number, or 0 and 1 for no and yes.
    Number,
}

impl Unit {
    /// Every unit that a name shows.
    const NAMED: [Self; 8] =
        [Self::Bytes, Self::Seconds, Self::Ratio, Self::Celsius, Self::Watts, Self::Joules, Self::Hertz, Self::Info];

    /// The unit that a family's name, without a counter's `_total`, ends with; a plain number if it ends with none.
    const fn of(name: &[u8]) -> Self {
        let mut at = 0;
        while at < Self::NAMED.len() {
            if without(name, Self::NAMED[at].suffix()).is_some() {
                return Self::NAMED[at];
            }
            at += 1;
        }
        Self::Number
    }

    /// The suffix of every family name with this unit, before a counter's `_total`; empty for a plain number.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Bytes => "_bytes",
            Self::Seconds => "_seconds",
            Self::Ratio => "_ratio",
            Self::Celsius => "_celsius",
            Self::Watts => "_watts",
            Self::Joules => "_joules",
            Self::Hertz => "_hertz",
            Self::Info => "_info",
            Self::Number => "",
        }
    }
}

/// When a value is measured. No scrape ever calls the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cadence {
    /// On each tick of the memory lane.
    MemoryLane,
    /// By the process lane.
    ProcessLane,
    /// With the kubelet's latest response.
    PodResources,
    /// With the kubelet's latest response, and with the latest reading of Slurm's allocations.
    Allocations,
    /// With the fast telemetry readings.
    Fast,
    /// With the slow telemetry readings.
    Slow,
    /// From all fast telemetry readings.
    Integrated,
    /// With the profiling samples.
    Profiling,
    /// When the driver reports the event.
    Event,
    /// By the process itself, which reports it.
    Reported,
    /// From the driver's memory calls.
    Calls,
    /// By the recorder, about once a second.
    Recorder,
    /// When the driver is opened.
    Opening,
    /// At scrape time.
    Scrape,
}

impl Cadence {
    /// The last sentence of HELP.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::MemoryLane => "Sampled in the background at memory.rate or memory.idle-rate, not at the scrape.",
            Self::ProcessLane => {
                "Read in the background when memory changes and at least once per process.interval, not at the scrape."
            }
            Self::PodResources => {
                "Read from the kubelet once per kubernetes.pod-resources-interval, not at the scrape."
            }
            Self::Allocations => {
                "Read from the kubelet once per kubernetes.pod-resources-interval and from slurm.allocations every 10 s, not at the scrape."
            }
            Self::Fast => "Read in the background once per telemetry.interval, not at the scrape.",
            Self::Slow => "Read in the background once per telemetry.slow-interval, not at the scrape.",
            Self::Integrated => {
                "Integrated in the background from readings taken once per telemetry.interval, not at the scrape."
            }
            Self::Profiling => {
                "Integrated in the background from samples taken once per profiling.interval, not at the scrape."
            }
            Self::Event => "Counted when the driver reports the event, not at the scrape.",
            Self::Reported => "Reported by a client in the process, up to 5 seconds before the scrape.",
            Self::Calls => "Counted in the background from the driver's calls, up to half a second before the scrape.",
            Self::Recorder => "Recorded in the background, up to a second before the scrape.",
            Self::Opening => "Read when the driver is opened.",
            Self::Scrape => "Current at the scrape.",
        }
    }
}

/// One metric family.
#[derive(Debug)]
pub struct Family {
    /// The name in the exposition. Its end shows the unit and, with `_total`, a counter.
    pub name: &'static str,
    /// The type in the exposition.
    pub kind: Kind,
    /// The unit of the values.
    pub unit: Unit,
    /// When the values are measured.
    pub cadence: Cadence,
    /// Every label that a series can have, in the order of the exposition. A label with an empty or unknown value is
    /// left out.
    pub labels: &'static [&'static str],
    meaning: &'static str,
}

impl Family {
    /// The text of the HELP line, unescaped.
    pub fn help(&self) -> String {
        [self.meaning, self.cadence.sentence()].join(" ")
    }

    /// The meaning of the values, without the sentence on when they are measured.
    pub fn meaning(&self) -> &'static str {
        self.meaning
    }
}

/// The labels of a series of a GPU.
pub(super) const GPU: &[&str] = &["gpu", "uuid"];

/// When the values of some families are measured, and the labels of their series.
#[derive(Clone, Copy)]
pub(super) struct Series {
    cadence: Cadence,
    labels: &'static [&'static str],
}

impl Series {
    /// One series without labels, whose value is current at the scrape.
    pub(super) const ONE: Self = Self::new(Cadence::Scrape, &[]);

    /// `labels`: see [`Family::labels`].
    pub(super) const fn new(cadence: Cadence, labels: &'static [&'static str]) -> Self {
        Self { cadence, labels }
    }

    /// A counter if the name ends in `_total`, else a gauge, in the unit that the name ends with.
    pub(super) const fn family(self, name: &'static str, meaning: &'static str) -> Family {
        let Self { cadence, labels } = self;
        let (kind, stem) = match without(name.as_bytes(), "_total") {
            Some(stem) => (Kind::Counter, stem),
            None => (Kind::Gauge, name.as_bytes()),
        };
        Family { name, kind, unit: Unit::of(stem), cadence, labels, meaning }
    }

    /// A histogram in the unit that the name ends with.
    pub(super) const fn histogram(self, name: &'static str, meaning: &'static str) -> Family {
        Family { kind: Kind::Histogram, ..self.family(name, meaning) }
    }

    /// A family as [`Self::family`] makes it, with the way in which its values are read.
    pub(super) const fn row<R: Copy>(self, name: &'static str, meaning: &'static str, read: R) -> Row<R> {
        Row { family: self.family(name, meaning), read }
    }
}

/// The text before this ending; `None` if it ends otherwise. The same method of `str` is not a `const fn`.
const fn without<'t>(text: &'t [u8], ending: &str) -> Option<&'t [u8]> {
    if text.len() < ending.len() {
        return None;
    }
    let (before, last) = text.split_at(text.len() - ending.len());
    let mut at = 0;
    while at < last.len() {
        if last[at] != ending.as_bytes()[at] {
            return None;
        }
        at += 1;
    }
    Some(before)
}

/// A family and how its values are read: one entry for both.
pub(super) struct Row<R> {
    pub(super) family: Family,
    pub(super) read: R,
}

/// The rows of families that have one value for each part of this type. A value that is unknown is `None`, and its
/// series is absent.
pub(super) type Rows<P, V = f64> = &'static [Row<fn(&P) -> Option<V>>];

/// What a row of a family with a label of its own reads: for each value of that label, given as the text that follows the
/// labels of a part, how the value of the series is read. The text is empty for a family without such a label.
pub(super) type Split<R> = &'static [(&'static str, R)];

/// What declares families: one family, or a table of rows.
pub(super) trait Declares: Sync {
    /// The family at this place of the reference, counted from 0; `None` after the last.
    fn family(&'static self, at: usize) -> Option<&'static Family>;
}

impl Declares for Family {
    fn family(&'static self, at: usize) -> Option<&'static Family> {
        (at == 0).then_some(self)
    }
}

impl<R: Sync + 'static> Declares for &'static [Row<R>] {
    fn family(&'static self, at: usize) -> Option<&'static Family> {
        self.get(at).map(|row| &row.family)
    }
}
