//! The families of one scrape while they are built.
//!
//! Invariant: each family is added at most once, in the type that the table gives it, and holds finite values only.

use prometheus::proto::{Bucket, Counter, Gauge, Histogram, Metric, MetricFamily, MetricType};

use super::family::{Family, Kind};
use super::label::Labels;

/// What the collector hands to the registry.
#[derive(Default)]
pub(super) struct Exposition(Vec<MetricFamily>);

impl Exposition {
    /// Adds a gauge or a counter with its series; nothing where there is no series.
    pub(super) fn add(&mut self, family: &Family, series: impl IntoIterator<Item = (Labels, f64)>) {
        // A value that is no number is not known, and so it is absent.
        let series = series.into_iter().filter(|(_, value)| value.is_finite());
        let metrics = series.map(|(labels, value)| metric(family.kind, labels, value)).collect();
        self.push(family, metrics);
    }

    /// Adds the one series of a family without labels.
    pub(super) fn add_one(&mut self, family: &Family, value: f64) {
        self.add(family, [(Labels::default(), value)]);
    }

    /// Adds a histogram: for each series its labels, the counts of each bucket (not cumulative, the last one unbounded) and the sum.
    pub(super) fn add_histogram<'a>(
        &mut self,
        family: &Family,
        bounds: &[f64],
        series: impl IntoIterator<Item = (Labels, &'a [u64], f64)>,
    ) {
        let metrics = series.into_iter().map(|(labels, counts, sum)| {
            let mut histogram = Histogram::default();
            let mut below = 0;
            let buckets = bounds.iter().zip(counts).map(|(&bound, count)| {
                below += count;
                let mut bucket = Bucket::default();
                bucket.set_upper_bound(bound);
                bucket.set_cumulative_count(below);
                bucket
            });
            histogram.set_bucket(buckets.collect());
            histogram.set_sample_count(counts.iter().sum());
            histogram.set_sample_sum(sum);
            let mut metric = Metric::from_label(labels.into_pairs());
            metric.set_histogram(histogram);
            metric
        });
        let metrics = metrics.collect();
        self.push(family, metrics);
    }

    pub(super) fn into_families(self) -> Vec<MetricFamily> {
        self.0
    }

    fn push(&mut self, family: &Family, metrics: Vec<Metric>) {
        if metrics.is_empty() {
            return;
        }
        debug_assert!(self.0.iter().all(|f| f.name() != family.name), "{} is added twice", family.name);
        let mut built = MetricFamily::default();
        built.set_name(family.name.to_owned());
        built.set_help(family.help());
        built.set_field_type(match family.kind {
            Kind::Gauge => MetricType::GAUGE,
            Kind::Counter => MetricType::COUNTER,
            Kind::Histogram => MetricType::HISTOGRAM,
        });
        built.set_metric(metrics);
        self.0.push(built);
    }
}

fn metric(kind: Kind, labels: Labels, value: f64) -> Metric {
    let mut metric = Metric::from_label(labels.into_pairs());
    if kind == Kind::Counter {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
    metric
}
