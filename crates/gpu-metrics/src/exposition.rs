//! Writes the text of one scrape, or passes the same families and series to a [`PointSink`].
//!
//! Invariants: each family is added at most once, with the type that the table gives it and with HELP and TYPE before
//! its series; a family without series is left out; all values are finite.

use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use super::family::{Family, Kind, Row, Rows, Split, Unit};
use super::label::{LabelText, Labels};
use super::openmetrics::{self, Exemplar, Format, Sample};
use super::points::PointSink;
use super::selection::{Hidden, is_hidden};

/// The size in bytes at which a chunk of the text is sent. The allocator serves chunks of this size from memory that
/// was used before; the memory for one long buffer would be requested from the system page by page on each scrape.
pub(super) const CHUNK: usize = 64 * 1024;
/// Bytes of spare room in a chunk, because a chunk ends only at the end of a line. Nearly every line is shorter than
/// this.
const LINE: usize = 4 * 1024;
/// Bytes reserved for the value and the punctuation of a line. Nearly every number is shorter than this.
const NUMBER: usize = 32;

/// Takes a chunk. Returns `false` when no more chunks are wanted.
pub(crate) type Take<'t> = dyn FnMut(Vec<u8>) -> bool + 't;

/// Families and their series in one format, in the order in which they are added.
pub struct Exposition<'t> {
    format: Format,
    /// Whether the creation times of counters are written. The text format has none.
    created: bool,
    text: Vec<u8>,
    sent: usize,
    take: Option<&'t mut Take<'t>>,
    points: Option<&'t mut dyn PointSink>,
    wanted: bool,
    hidden: Hidden,
}

impl<'t> Exposition<'t> {
    /// Creates an exposition that is kept whole, with room for `bytes` bytes.
    pub(crate) fn whole(format: Format, bytes: usize) -> Self {
        let text = Vec::with_capacity(bytes);
        Self { format, created: false, text, sent: 0, take: None, points: None, wanted: true, hidden: None }
    }

    /// Creates an exposition that is sent in chunks.
    pub(crate) fn in_chunks(format: Format, take: &'t mut Take<'t>) -> Self {
        Self { take: Some(take), ..Self::whole(format, CHUNK + LINE) }
    }

    /// Creates an exposition that passes everything to `points` and writes no text.
    pub(super) fn to_points(points: &'t mut dyn PointSink) -> Self {
        Self { points: Some(points), ..Self::whole(Format::Text, 0) }
    }

    /// The exposition with the creation times of counters, if the format has them and `created` is true.
    pub(super) fn with_created(self, created: bool) -> Self {
        Self { created: created && self.format == Format::OpenMetrics, ..self }
    }

    /// Leaves out these families from now on, without asking for their series.
    pub(super) fn hide(&mut self, hidden: Hidden) {
        self.hidden = hidden;
    }

    /// Adds a gauge or a counter with its series; adds nothing if there are no series.
    pub(super) fn add<L: LabelText, S: Sample>(
        &mut self,
        family: &'static Family,
        series: impl IntoIterator<Item = (L, S)>,
    ) {
        self.add_under(family.name, |out| out.head(family), series);
    }

    /// Adds a family that is not in the exporter's own table. The help is escaped.
    pub fn add_named<L: LabelText>(
        &mut self,
        (name, kind, help): (&str, Kind, &str),
        series: impl IntoIterator<Item = (L, f64)>,
    ) {
        self.add_under(name, |out| out.named_head(name, kind, help), series);
    }

    fn add_under<L: LabelText, S: Sample>(
        &mut self,
        name: &str,
        head: impl FnOnce(&mut Self),
        series: impl IntoIterator<Item = (L, S)>,
    ) {
        if !self.wanted || is_hidden(&self.hidden, name) {
            return;
        }
        // A value that is not finite is unknown, and unknown values are left out.
        let mut series = series.into_iter().filter(|(_, sample)| sample.value().is_finite()).peekable();
        if series.peek().is_none() {
            return;
        }
        head(self);
        for (labels, sample) in series {
            if let Some(points) = &mut self.points {
                points.number(labels.parts(), sample.value(), sample.since());
                continue;
            }
            self.series(name, "", &labels);
            self.value(sample.value());
            if let Some(exemplar) = sample.exemplar() {
                self.exemplar(exemplar);
            }
            self.end_line();
            if self.created {
                self.creation(openmetrics::stem(name, Kind::Counter), &labels, sample.since());
            }
            if !self.wanted {
                return;
            }
        }
    }

    /// Adds a family that has one series without labels.
    pub(super) fn add_one(&mut self, family: &'static Family, sample: impl Sample) {
        self.add(family, [(Labels::default(), sample)]);
    }

    /// Adds the families of a table. For each of `parts`, a family has a series with its labels and the value that the
    /// family's row reads from it.
    pub(super) fn add_rows<'p, L: LabelText, P: 'static, S: Sample + 'static>(
        &mut self,
        rows: Rows<P, S>,
        parts: impl IntoIterator<Item = (L, &'p P), IntoIter: Clone>,
    ) {
        let parts = parts.into_iter();
        for Row { family, read } in rows {
            self.add(family, parts.clone().filter_map(|(labels, part)| Some((labels, read(part)?))));
        }
    }

    /// Adds the families of a table whose series have a label of their own. `value` reads the value of one series of a
    /// family from a part.
    pub(super) fn add_split<'p, P: 'p, R: 'static, S: Sample>(
        &mut self,
        rows: &'static [Row<Split<R>>],
        parts: impl IntoIterator<Item = (&'p str, &'p P), IntoIter: Clone>,
        value: impl Fn(&'static Family, &P, &R) -> Option<S>,
    ) {
        let (parts, value) = (parts.into_iter(), &value);
        for Row { family, read } in rows {
            let series = parts.clone().flat_map(|(labels, part)| {
                read.iter().filter_map(move |(own, read)| Some(([labels, *own], value(family, part, read)?)))
            });
            self.add(family, series);
        }
    }

    /// Adds a histogram that was empty at `since`. `bounds` are the bounds of the buckets as text; a series has labels,
    /// the count of each bucket (not cumulative, the last one unbounded) and the sum.
    pub(super) fn add_histogram<'a>(
        &mut self,
        family: &'static Family,
        since: Option<SystemTime>,
        bounds: &[String],
        series: impl IntoIterator<Item = (Labels, &'a [u64], f64)>,
    ) {
        let mut series = series.into_iter().peekable();
        if is_hidden(&self.hidden, family.name) || series.peek().is_none() {
            return;
        }
        self.head(family);
        for (labels, counts, sum) in series {
            if let Some(points) = &mut self.points {
                points.histogram(labels.parts(), bounds, counts, sum, since);
                continue;
            }
            let mut below = 0;
            for (bound, count) in bounds.iter().zip(counts) {
                below += count;
                let bounded = labels.with_room(1).and("le", bound);
                self.series(family.name, "_bucket", &bounded);
                self.number(below);
                self.end_line();
            }
            let all = counts.iter().sum();
            self.series(family.name, "_bucket", &labels.with_room(1).and("le", "+Inf"));
            self.number(all);
            self.end_line();
            self.series(family.name, "_sum", &labels);
            self.value(sum);
            self.end_line();
            self.series(family.name, "_count", &labels);
            self.number(all);
            self.end_line();
            if self.created {
                self.creation(family.name, &labels, since);
            }
        }
    }

    /// Appends `rest` and ends the exposition. Returns the text, or its last chunk, and the length of the whole text;
    /// `None` if the receiver stopped before the end.
    pub(crate) fn end(mut self, rest: &[u8]) -> Option<(Vec<u8>, usize)> {
        self.text.extend_from_slice(rest);
        let length = self.sent + self.text.len();
        self.wanted.then_some((self.text, length))
    }

    /// Ends a line, and sends a chunk if it is full. Once no more chunks are wanted, nothing more is written.
    fn end_line(&mut self) {
        self.text.push(b'\n');
        if self.text.len() < CHUNK {
            return;
        }
        let Some(take) = &mut self.take else { return };
        self.sent += self.text.len();
        let chunk = std::mem::replace(&mut self.text, Vec::with_capacity(CHUNK + LINE));
        self.wanted = take(chunk);
    }

    fn head(&mut self, family: &'static Family) {
        if let Some(points) = &mut self.points {
            return points.family(family);
        }
        debug_assert!(!self.holds(family.name, family.kind), "{} is added twice", family.name);
        if self.format == Format::OpenMetrics {
            let help = [family.meaning(), " ", family.cadence.sentence()];
            return openmetrics::head(&mut self.text, (family.name, family.kind, family.unit), help);
        }
        let kind = family.kind.word();
        for part in ["# HELP ", family.name, " ", family.meaning(), " ", family.cadence.sentence(), "\n"] {
            self.text.extend_from_slice(part.as_bytes());
        }
        for part in ["# TYPE ", family.name, " ", kind, "\n"] {
            self.text.extend_from_slice(part.as_bytes());
        }
    }

    fn named_head(&mut self, name: &str, kind: Kind, help: &str) {
        debug_assert!(!self.holds(name, kind), "{name} is added twice");
        if self.format == Format::OpenMetrics {
            return openmetrics::head(&mut self.text, (name, kind, Unit::Number), [help]);
        }
        for part in ["# HELP ", name, " "] {
            self.text.extend_from_slice(part.as_bytes());
        }
        openmetrics::escape_help(&mut self.text, help, false);
        for part in ["\n# TYPE ", name, " ", kind.word(), "\n"] {
            self.text.extend_from_slice(part.as_bytes());
        }
    }

    /// Writes a line up to its value.
    fn series(&mut self, name: &str, suffix: &str, labels: &impl LabelText) {
        let [labels, more] = labels.parts();
        let (begin, end) = if labels.is_empty() { ("", " ") } else { ("{", "} ") };
        self.text.reserve(name.len() + suffix.len() + labels.len() + more.len() + NUMBER);
        for part in [name, suffix, begin, labels, more, end] {
            self.text.extend_from_slice(part.as_bytes());
        }
    }

    /// Writes an exemplar after the value of its series, if the format has exemplars.
    fn exemplar(&mut self, exemplar: Exemplar<'_>) {
        if self.format == Format::OpenMetrics && exemplar.is_writable() {
            for part in [" # {", exemplar.name, "=\"", exemplar.id, "\"} 1 "] {
                self.text.extend_from_slice(part.as_bytes());
            }
            self.value(exemplar.at);
        }
    }

    /// Writes the line with the creation time of a counter or histogram, if the time is known.
    fn creation(&mut self, stem: &str, labels: &impl LabelText, since: Option<SystemTime>) {
        let Some(since) = since.and_then(|since| since.duration_since(UNIX_EPOCH).ok()) else { return };
        self.series(stem, "_created", labels);
        self.value(since.as_millis() as f64 / 1e3);
        self.end_line();
    }

    fn value(&mut self, value: f64) {
        // Below this limit, every integer is exact. Nearly all values are integers.
        const EXACT: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;
        // Below this limit, two numbers that differ in the third decimal place are different floats. Nearly all values
        // that are not integers have at most three decimal places.
        const THREE_DECIMALS: f64 = 1e12;
        // Checked by conversion, because rounding is a function call on the oldest supported processors.
        if value.is_sign_positive() && value < EXACT && value as u64 as f64 == value {
            return self.number(value as u64);
        }
        let thousandths = (value * 1e3 + 0.5) as u64;
        if value > 0.0 && value < THREE_DECIMALS && thousandths as f64 / 1e3 == value {
            return self.three_decimals(thousandths);
        }
        write!(self.text, "{value}").expect("writing to a vector cannot fail");
    }

    /// Writes a number that is not an integer, given in thousandths, without trailing zeros.
    fn three_decimals(&mut self, value: u64) {
        self.text.extend_from_slice(itoa::Buffer::new().format(value / 1000).as_bytes());
        let digit = |unit: u64| b'0' + (value / unit % 10) as u8;
        let digits = [digit(100), digit(10), digit(1)];
        let needed = 3 - digits.iter().rev().take_while(|&&digit| digit == b'0').count();
        self.text.push(b'.');
        self.text.extend_from_slice(&digits[..needed]);
    }

    fn number(&mut self, value: u64) {
        self.text.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    /// Whether the family is in the part of the text that has not been sent yet.
    fn holds(&self, name: &str, kind: Kind) -> bool {
        let name = match self.format {
            Format::Text => name,
            Format::OpenMetrics => openmetrics::stem(name, kind),
        };
        let head = format!("# TYPE {name} ");
        self.text.split(|&byte| byte == b'\n').any(|line| line.starts_with(head.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::family::{Cadence, Series};
    use super::super::openmetrics::Counted;
    use super::*;

    const SERIES: Series = Series::new(Cadence::Scrape, &["a"]);
    static GAUGE: Family = SERIES.family("g", "A gauge.");
    static COUNTER: Family = SERIES.family("c_bytes_total", "A \"counter\".");
    static HISTOGRAM: Family = SERIES.histogram("h_seconds", "Times.");

    fn text(write: impl FnOnce(&mut Exposition<'_>)) -> String {
        let mut out = Exposition::whole(Format::Text, 0);
        write(&mut out);
        String::from_utf8(out.end(b"").unwrap().0).unwrap()
    }

    fn many(out: &mut Exposition<'_>) {
        out.add(&GAUGE, (0..5_000).map(|n| (Labels::default().and("a", &"x".repeat(n % 120)).and_number("b", n), 1.0)));
    }

    #[test]
    fn chunks_join_to_the_whole_text_and_end_at_a_line() {
        let mut chunks = Vec::new();
        let mut take = |chunk: Vec<u8>| {
            chunks.push(chunk);
            true
        };
        let mut out = Exposition::in_chunks(Format::Text, &mut take);
        many(&mut out);
        let (last, length) = out.end(b"# end\n").unwrap();
        assert!(chunks.len() > 3 && chunks.iter().all(|chunk| chunk.len() >= CHUNK && chunk.ends_with(b"\n")));
        let joined = [chunks.concat(), last].concat();
        assert_eq!(joined.len(), length);
        assert_eq!(String::from_utf8(joined).unwrap(), text(many) + "# end\n");
    }

    #[test]
    fn nothing_is_written_after_the_receiver_stopped() {
        let mut sent = 0;
        let mut take = |_: Vec<u8>| {
            sent += 1;
            sent < 2
        };
        let mut out = Exposition::in_chunks(Format::Text, &mut take);
        let mut asked = 0;
        let endless = std::iter::repeat_with(|| {
            asked += 1;
            (Labels::default().and_number("a", asked), 1.0)
        });
        out.add(&GAUGE, endless);
        out.add(&HISTOGRAM, std::iter::from_fn(|| -> Option<(Labels, f64)> { unreachable!("the receiver stopped") }));
        assert!(out.end(b"").is_none());
        assert_eq!(sent, 2);
    }

    #[test]
    fn a_value_is_written_exactly() {
        let values: [(f64, &str); 20] = [
            (0.0, "0"),
            (-0.0, "-0"),
            (150_754_820_096.0, "150754820096"),
            (9_007_199_254_740_991.0, "9007199254740991"),
            (9_007_199_254_740_992.0, "9007199254740992"),
            (1e21, "1000000000000000000000"),
            (-5.0, "-5"),
            (0.000_005, "0.000005"),
            (1_700_000_000.25, "1700000000.25"),
            (0.1, "0.1"),
            (0.001, "0.001"),
            (0.009, "0.009"),
            (12.050, "12.05"),
            (-0.25, "-0.25"),
            (0.0004, "0.0004"),
            (0.0005, "0.0005"),
            (0.577_215_66, "0.57721566"),
            (999_999_999_999.999, "999999999999.999"),
            (1_000_000_000_000.001, "1000000000000.001"),
            (f64::MIN_POSITIVE, &f64::MIN_POSITIVE.to_string()),
        ];
        for (value, written) in values {
            let line = text(|out| out.add_one(&GAUGE, value)).lines().last().unwrap().to_owned();
            assert_eq!(line, format!("g {written}"));
            assert_eq!(written.parse::<f64>().unwrap().to_bits(), value.to_bits());
        }
    }

    #[test]
    fn three_decimals_are_written_as_by_the_standard_library() {
        for number in (0..2_000_000_u64).step_by(7).chain((0..50).map(|power| (1 << power) + 1)) {
            for value in [number as f64 / 1e3, (number as f64 / 1e3).next_up(), number as f64 / 1e4] {
                let line = text(|out| out.add_one(&GAUGE, value));
                assert_eq!(line.lines().last().unwrap(), format!("g {value}"));
            }
        }
    }

    #[test]
    fn values_that_are_not_finite_and_families_without_series_are_absent() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(text(|out| out.add_one(&GAUGE, value)), "");
        }
        assert_eq!(text(|out| out.add(&GAUGE, Vec::<(Labels, f64)>::new())), "");
        let a = |value| Labels::default().and("a", value);
        let some = text(|out| out.add(&GAUGE, [(a("1"), f64::NAN), (a("2"), 3.0)]));
        assert_eq!(some, "# HELP g A gauge. Current at the scrape.\n# TYPE g gauge\ng{a=\"2\"} 3\n");
    }

    #[test]
    fn the_help_of_a_named_family_is_escaped() {
        let write = |out: &mut Exposition<'_>| out.add_named(("f", Kind::Counter, "a\\b\nc\0\"é"), [("a=\"1\"", 2.0)]);
        assert_eq!(text(write), "# HELP f a\\\\b\\nc\u{FFFD}\"é\n# TYPE f counter\nf{a=\"1\"} 2\n");
    }

    #[test]
    fn buckets_are_cumulative_and_the_last_is_unbounded() {
        let series = [(Labels::default().and("a", "b"), &[1, 2, 4][..], 0.75)];
        let lines = text(|out| out.add_histogram(&HISTOGRAM, None, &["0.5".to_owned(), "1".to_owned()], series));
        let lines: Vec<_> = lines.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "h_seconds_bucket{a=\"b\",le=\"0.5\"} 1",
                "h_seconds_bucket{a=\"b\",le=\"1\"} 3",
                "h_seconds_bucket{a=\"b\",le=\"+Inf\"} 7",
                "h_seconds_sum{a=\"b\"} 0.75",
                "h_seconds_count{a=\"b\"} 7",
            ]
        );
    }

    /// An exposition in OpenMetrics with creation times.
    fn open_metrics(write: impl FnOnce(&mut Exposition<'_>)) -> String {
        let mut out = Exposition::whole(Format::OpenMetrics, 0).with_created(true);
        write(&mut out);
        String::from_utf8(out.end(Format::OpenMetrics.end()).unwrap().0).unwrap()
    }

    fn counted(value: f64, exemplar: Option<&str>) -> Counted<'_> {
        let exemplar = exemplar.map(|id| Exemplar { name: "id", id, at: 12.5 });
        Counted { value, since: Some(UNIX_EPOCH + Duration::from_millis(1_500)), exemplar }
    }

    #[test]
    fn a_counter_in_openmetrics_has_its_creation_time_and_its_exemplar() {
        let series = || [("a=\"1\"", counted(3.0, Some("x"))), ("a=\"2\"", counted(0.0, None))];
        let written = open_metrics(|out| out.add(&COUNTER, series()));
        let expected = "# TYPE c_bytes counter\n# UNIT c_bytes bytes\n\
                        # HELP c_bytes A \\\"counter\\\". Current at the scrape.\n\
                        c_bytes_total{a=\"1\"} 3 # {id=\"x\"} 1 12.5\nc_bytes_created{a=\"1\"} 1.5\n\
                        c_bytes_total{a=\"2\"} 0\nc_bytes_created{a=\"2\"} 1.5\n# EOF\n";
        assert_eq!(written, expected);
        let without = text(|out| out.add(&COUNTER, series()));
        assert!(without.ends_with("counter\nc_bytes_total{a=\"1\"} 3\nc_bytes_total{a=\"2\"} 0\n"), "{without}");
    }

    #[test]
    fn a_creation_time_that_is_not_known_and_an_exemplar_that_is_too_long_are_absent() {
        let written = open_metrics(|out| out.add_one(&COUNTER, Counted { since: None, ..counted(3.0, None) }));
        assert!(written.ends_with("c_bytes_total 3\n# EOF\n"), "{written}");
        let long = "x".repeat(127);
        let written = open_metrics(|out| out.add_one(&COUNTER, counted(3.0, Some(&long))));
        assert!(written.ends_with("c_bytes_total 3\nc_bytes_created 1.5\n# EOF\n"), "{written}");
    }

    #[test]
    fn a_histogram_in_openmetrics_has_its_creation_time() {
        let since = Some(UNIX_EPOCH + Duration::from_secs(7));
        let series = || [(Labels::default().and("a", "b"), &[1, 2][..], 0.75)];
        let written = open_metrics(|out| out.add_histogram(&HISTOGRAM, since, &["0.5".to_owned()], series()));
        assert!(written.ends_with("h_seconds_count{a=\"b\"} 3\nh_seconds_created{a=\"b\"} 7\n# EOF\n"), "{written}");
    }
}
