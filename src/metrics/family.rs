//! What a metric family is: name, type, unit, labels, help and when the value is measured.
//!
//! Each source declares its own families beside the code that fills them; [`super::table`] gathers them.

/// A family's type in the exposition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only rises, and starts anew with its source.
    Counter,
    /// Cumulative buckets, a sum and a count.
    Histogram,
}

impl Kind {
    /// The word of the TYPE line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

/// What a value counts.
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
    /// Always 1: the labels are the information.
    Info,
    /// A plain number, or 0 and 1 for no and yes.
    Number,
}

impl Unit {
    /// What a name of this unit ends in, before a counter's `_total`; empty for a plain number.
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
pub enum When {
    /// At each tick of the memory lane.
    MemoryLane,
    /// By the process lane.
    ProcessLane,
    /// When the kubelet was last asked.
    PodResources,
    /// With the quick telemetry readings.
    Quick,
    /// With the slow telemetry readings.
    Slow,
    /// As the driver reports the event.
    Event,
    /// When the driver is opened.
    Opening,
    /// At the scrape: kept by the exporter about stats.
    Scrape,
}

impl When {
    /// The last sentence of HELP.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::MemoryLane => "Sampled by the memory lane, not at the scrape.",
            Self::ProcessLane => {
                "Read by the process lane at a change of memory and once per interval, not at the scrape."
            }
            Self::PodResources => "Read from the kubelet once per interval, not at the scrape.",
            Self::Quick => "Read by the telemetry lane once per interval, not at the scrape.",
            Self::Slow => "Read by the telemetry lane once per slow interval, not at the scrape.",
            Self::Event => "Counted as the driver reports it, not at the scrape.",
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
    /// What the values count.
    pub unit: Unit,
    /// When the values are measured.
    pub when: When,
    /// Every label that a series can bear, in the order of the exposition; those with an empty or unknown value are left out.
    pub labels: &'static [&'static str],
    meaning: &'static str,
}

impl Family {
    pub(super) const fn gauge(
        name: &'static str,
        unit: Unit,
        when: When,
        labels: &'static [&'static str],
        meaning: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Gauge, unit, when, labels, meaning }
    }

    pub(super) const fn counter(
        name: &'static str,
        unit: Unit,
        when: When,
        labels: &'static [&'static str],
        meaning: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Counter, unit, when, labels, meaning }
    }

    pub(super) const fn histogram(
        name: &'static str,
        unit: Unit,
        when: When,
        labels: &'static [&'static str],
        meaning: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Histogram, unit, when, labels, meaning }
    }

    /// The text of the HELP line, not escaped.
    pub fn help(&self) -> String {
        [self.meaning, self.when.sentence()].join(" ")
    }

    /// What the values mean, without when they are measured.
    pub fn meaning(&self) -> &'static str {
        self.meaning
    }
}

/// The families of one source.
#[derive(Debug)]
pub struct Section {
    /// Heading in the reference.
    pub title: &'static str,
    /// What holds for all families of the source.
    pub intro: &'static str,
    /// The families.
    pub families: &'static [&'static Family],
}
