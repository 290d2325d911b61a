//! Collects the points of one push.
//!
//! Invariants: every series of a scrape has one point with the same value (without a fraction of a byte) and the same labels as attributes, unless only
//! its name in the conventions is wanted or it has the call sites of a job, which do not leave the machine here. A series that is gone has one point without a value.

use std::collections::HashMap;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::body::Bytes;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, DataPointFlags, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::conventions::{INSTRUMENTS, Instrument, MEMORY_UTILIZATION, Rule, Shape, TOTAL, USED};
use super::encoding::{Writer, attribute};
use super::gpus::Gpus;
use super::ledger::Ledger;
use super::origin::Origin;
use crate::config::OtlpNames;
use gpu_metrics::{Family, Metrics, Parts, PointSink, pairs};

/// The label with the names of files and functions.
const CALL_SITE: &str = "site";

/// A push that is ready to be sent.
pub(super) struct Batch {
    pub(super) body: Bytes,
    pub(super) points: usize,
}

/// What a collection needs to know.
pub(super) struct Order<'a> {
    pub(super) names: OtlpNames,
    pub(super) gzip: bool,
    pub(super) resource: &'a Resource,
    pub(super) time: SystemTime,
}

/// Collects the current values and the series that are gone.
pub(super) fn collect(metrics: &Metrics, parts: &Parts, order: &Order<'_>, ledger: &mut Ledger) -> io::Result<Batch> {
    let mut collector = Collector::new(Gpus::new(&parts.driver), order, ledger);
    metrics.visit(parts, &mut collector);
    collector.finish(order)
}

/// Reports that all series are gone.
pub(super) fn end(parts: &Parts, order: &Order<'_>, ledger: &mut Ledger) -> io::Result<Batch> {
    Collector::new(Gpus::new(&parts.driver), order, ledger).finish(order)
}

/// Nanoseconds since the Unix epoch.
pub(super) fn nanos(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos().try_into().unwrap_or(u64::MAX))
}

struct Collector<'a> {
    time: u64,
    names: OtlpNames,
    gpus: Gpus,
    ledger: &'a mut Ledger,
    writer: Writer,
    points: usize,
    /// The family that is being collected, and how the conventions name it.
    family: Option<(&'static Family, Option<&'static Rule>)>,
    numbers: Vec<NumberDataPoint>,
    histograms: Vec<HistogramDataPoint>,
    /// The points under the names of the conventions, in the order of [`INSTRUMENTS`].
    named: [Option<(Origin, Vec<NumberDataPoint>)>; INSTRUMENTS.len()],
    /// The total memory of each GPU, by its labels.
    totals: HashMap<String, f64>,
    joined: String,
}

impl<'a> Collector<'a> {
    fn new(gpus: Gpus, order: &Order<'_>, ledger: &'a mut Ledger) -> Self {
        let time = nanos(order.time);
        ledger.begin(time);
        Self {
            time,
            names: order.names,
            gpus,
            ledger,
            writer: Writer::new(),
            points: 0,
            family: None,
            numbers: Vec::new(),
            histograms: Vec::new(),
            named: [const { None }; INSTRUMENTS.len()],
            totals: HashMap::new(),
            joined: String::new(),
        }
    }

    fn finish(mut self, order: &Order<'_>) -> io::Result<Batch> {
        self.end_family();
        for (origin, numbers) in std::mem::take(&mut self.named).into_iter().flatten() {
            self.write(origin, numbers, Vec::new());
        }
        for origin in self.ledger.empty() {
            self.write(origin, Vec::new(), Vec::new());
        }
        let body = self.writer.finish(order.resource, order.gzip)?;
        Ok(Batch { body: body.into(), points: self.points })
    }

    fn end_family(&mut self) {
        let (numbers, histograms) = (std::mem::take(&mut self.numbers), std::mem::take(&mut self.histograms));
        if let Some((family, _)) = self.family.take()
            && (!numbers.is_empty() || !histograms.is_empty())
        {
            self.write(Origin::Family(family), numbers, histograms);
        }
    }

    /// Writes a metric with its points, and with a point for each of its series that is gone.
    fn write(&mut self, origin: Origin, mut numbers: Vec<NumberDataPoint>, mut histograms: Vec<HistogramDataPoint>) {
        const GONE: u32 = DataPointFlags::NoRecordedValueMask as u32;
        for labels in self.ledger.gone(origin.name()) {
            if origin.shape() == Shape::Histogram {
                // The buckets and the sum are series of their own for some receivers, so they are there too.
                let explicit_bounds = self.ledger.bounds(origin.name());
                let (bucket_counts, sum) = (vec![0; explicit_bounds.len() + 1], Some(0.0));
                let point = self.observations(&labels, 0);
                histograms.push(HistogramDataPoint { flags: GONE, sum, bucket_counts, explicit_bounds, ..point });
            } else {
                numbers.push(NumberDataPoint { flags: GONE, ..self.point(&labels, 0, None) });
            }
        }
        if numbers.is_empty() && histograms.is_empty() {
            return;
        }
        self.points += numbers.len() + histograms.len();
        let aggregation_temporality = AggregationTemporality::Cumulative.into();
        let sum = |is_monotonic, data_points| Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic });
        let data = match origin.shape() {
            Shape::Gauge => Data::Gauge(Gauge { data_points: numbers }),
            Shape::UpDown => sum(false, numbers),
            Shape::Counter => sum(true, numbers),
            Shape::Histogram => Data::Histogram(Histogram { data_points: histograms, aggregation_temporality }),
        };
        self.writer.metric(&Metric {
            name: origin.name().to_owned(),
            description: origin.description(),
            unit: origin.unit().to_owned(),
            data: Some(data),
            ..Metric::default()
        });
    }

    fn point(&self, labels: &str, start: u64, value: Option<Value>) -> NumberDataPoint {
        NumberDataPoint {
            attributes: pairs(labels).map(|(name, value)| attribute(name, &value)).collect(),
            start_time_unix_nano: start,
            time_unix_nano: self.time,
            value,
            ..NumberDataPoint::default()
        }
    }

    fn observations(&self, labels: &str, start: u64) -> HistogramDataPoint {
        HistogramDataPoint {
            attributes: pairs(labels).map(|(name, value)| attribute(name, &value)).collect(),
            start_time_unix_nano: start,
            time_unix_nano: self.time,
            ..HistogramDataPoint::default()
        }
    }

    /// The point of a series, which is recorded as present.
    fn seen(&mut self, origin: Origin, labels: &str, value: f64, since: Option<u64>) -> NumberDataPoint {
        let start = self.ledger.see(origin, labels, value, since);
        // The start time of a gauge has no meaning.
        let start = if origin.shape() == Shape::Gauge { 0 } else { start };
        let value = if origin.is_integer() { Value::AsInt(value as i64) } else { Value::AsDouble(value) };
        self.point(labels, start, Some(value))
    }

    fn name(
        &mut self,
        instrument: &'static Instrument,
        (rule, family): (&Rule, &'static Family),
        labels: &str,
        value: f64,
        since: Option<u64>,
    ) {
        let Some(attributes) = self.gpus.attributes(rule, labels) else { return };
        let Some(index) = INSTRUMENTS.iter().position(|known| std::ptr::eq(*known, instrument)) else { return };
        let origin = Origin::Convention(instrument, family);
        let point = self.seen(origin, attributes.as_str(), value, since);
        self.named[index].get_or_insert_with(|| (origin, Vec::new())).1.push(point);
    }

    fn add(&mut self, labels: &str, value: f64, since: Option<u64>) {
        let Some((family, rule)) = self.family else { return };
        let named = rule.filter(|_| self.names != OtlpNames::Scrape);
        if named.is_none() || self.names == OtlpNames::Both {
            let point = self.seen(Origin::Family(family), labels, value, since);
            self.numbers.push(point);
        }
        let Some(rule) = named else { return };
        self.name(rule.instrument, (rule, family), labels, value, since);
        match family.name {
            TOTAL => drop(self.totals.insert(labels.to_owned(), value)),
            USED => {
                if let Some(total) = self.totals.get(labels).copied().filter(|total| *total > 0.0) {
                    self.name(&MEMORY_UTILIZATION, (rule, family), labels, value / total, None);
                }
            }
            _ => {}
        }
    }

    /// Calls `with` with the labels in one part.
    fn with_joined(&mut self, [first, second]: [&str; 2], with: impl FnOnce(&mut Self, &str)) {
        if second.is_empty() {
            return with(self, first);
        }
        let mut joined = std::mem::take(&mut self.joined);
        joined.clear();
        joined.push_str(first);
        joined.push_str(second);
        with(self, &joined);
        self.joined = joined;
    }
}

impl PointSink for Collector<'_> {
    fn family(&mut self, family: &'static Family) {
        self.end_family();
        let leaves = !family.labels.contains(&CALL_SITE);
        self.family = leaves.then(|| (family, Rule::find(family.name)));
    }

    fn number(&mut self, labels: [&str; 2], value: f64, since: Option<SystemTime>) {
        let since = since.map(nanos);
        self.with_joined(labels, |collector, labels| collector.add(labels, value, since));
    }

    fn histogram(&mut self, labels: [&str; 2], bounds: &[String], counts: &[u64], sum: f64, since: Option<SystemTime>) {
        let Some((family, _)) = self.family else { return };
        self.with_joined(labels, |collector, labels| {
            let count = counts.iter().sum();
            let start = collector.ledger.see(Origin::Family(family), labels, count as f64, since.map(nanos));
            let explicit_bounds: Vec<f64> = bounds.iter().filter_map(|bound| bound.parse().ok()).collect();
            collector.ledger.set_bounds(family.name, &explicit_bounds);
            let point = HistogramDataPoint {
                count,
                sum: Some(sum),
                bucket_counts: counts.to_vec(),
                explicit_bounds,
                ..collector.observations(labels, start)
            };
            collector.histograms.push(point);
        });
    }
}
