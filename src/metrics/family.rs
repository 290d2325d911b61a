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
    /// The suffix of every family name with this unit, before a counter's `_total`; empty for a plain number.
    pub fn suffix(self) -> &'static str {
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
    /// With the profiling samples.
    Profiling,
    /// When the driver reports the event.
    Event,
    /// By the process itself, which reports it.
    Reported,
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
            Self::Profiling => {
                "Integrated in the background from samples taken once per profiling.interval, not at the scrape."
            }
            Self::Event => "Counted when the driver reports the event, not at the scrape.",
            Self::Reported => "Reported by a client in the process, up to 5 seconds before the scrape.",
            Self::Recorder => "Recorded in the background, up to a second before the scrape.",
            Self::Opening => "Read when the driver is opened.",
            Self::Scrape => "Current at the scrape.",
        }
    }
}

/// One metric family.
#[derive(Debug)]
pub struct Family {
    /// The name in the exposition.
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

/// The constructors of a family, one for each kind.
macro_rules! constructors {
    ($($constructor:ident: $kind:ident),+) => {
        impl Family {
            $(pub(super) const fn $constructor(
                name: &'static str,
                unit: Unit,
                cadence: Cadence,
                labels: &'static [&'static str],
                meaning: &'static str,
            ) -> Self {
                Self { name, kind: Kind::$kind, unit, cadence, labels, meaning }
            })+
        }
    };
}

constructors!(gauge: Gauge, counter: Counter, histogram: Histogram);

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

/// A family and how its value is read from the part of the snapshot that it is about: one entry for both.
pub(super) struct Row<P: 'static, V: 'static = f64> {
    pub(super) family: Family,
    /// `None` if the value is unknown; the series is then absent.
    pub(super) read: fn(&P) -> Option<V>,
}

impl<P, V> Row<P, V> {
    pub(super) const fn new(family: Family, read: fn(&P) -> Option<V>) -> Self {
        Self { family, read }
    }
}

/// What declares families: one family, or a table of rows.
pub(super) trait Declares: Sync {
    /// Passes on each family, in the order of the reference.
    fn each(&'static self, see: &mut dyn FnMut(&'static Family));
}

impl Declares for Family {
    fn each(&'static self, see: &mut dyn FnMut(&'static Family)) {
        see(self);
    }
}

impl<P, V> Declares for &'static [Row<P, V>] {
    fn each(&'static self, see: &mut dyn FnMut(&'static Family)) {
        self.iter().for_each(|row| see(&row.family));
    }
}

/// The families of one source.
pub struct Section {
    /// The heading in the reference.
    pub title: &'static str,
    /// What all families of the source have in common.
    pub intro: &'static str,
    /// The families and tables, in the order of the reference.
    pub(super) families: &'static [&'static dyn Declares],
}

impl Section {
    /// Passes on each family of the source.
    pub(super) fn each(&self, see: &mut dyn FnMut(&'static Family)) {
        self.families.iter().for_each(|declared| declared.each(see));
    }
}
