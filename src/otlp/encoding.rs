//! The body of a push.
//!
//! The metrics are encoded one by one, so that the messages of a large machine are never in memory all together. The
//! lengths of the messages that contain them are known only at the end, so their first bytes are written last.

use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::{Message, encode_length_delimiter};

/// The first byte of a message that is field 1 of another: `resource_metrics` of a request, `resource` of them, and `scope`
/// of a scope's metrics.
const FIELD_1: u8 = 1 << 3 | 2;
/// The first byte of a message that is field 2 of another: `scope_metrics`, and `metrics` of a scope.
const FIELD_2: u8 = 2 << 3 | 2;

/// Writes the metrics of one push.
pub(super) struct Writer {
    /// `ScopeMetrics`.
    scope: Vec<u8>,
}

impl Writer {
    pub(super) fn new() -> Self {
        let scope = InstrumentationScope {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let mut writer = Self { scope: Vec::new() };
        field(&mut writer.scope, FIELD_1, &scope);
        writer
    }

    pub(super) fn metric(&mut self, metric: &Metric) {
        field(&mut self.scope, FIELD_2, metric);
    }

    /// The request.
    pub(super) fn finish(self, resource: &Resource, gzip: bool) -> io::Result<Vec<u8>> {
        // `ResourceMetrics`, without the scope's metrics at its end.
        let mut inner = Vec::new();
        field(&mut inner, FIELD_1, resource);
        begin(&mut inner, FIELD_2, self.scope.len());
        let mut head = Vec::with_capacity(inner.len() + 16);
        begin(&mut head, FIELD_1, inner.len() + self.scope.len());
        head.extend_from_slice(&inner);
        if !gzip {
            head.extend_from_slice(&self.scope);
            return Ok(head);
        }
        let mut encoder = GzEncoder::new(Vec::with_capacity(self.scope.len() / 8), Compression::default());
        encoder.write_all(&head)?;
        encoder.write_all(&self.scope)?;
        encoder.finish()
    }
}

fn field(out: &mut Vec<u8>, first: u8, message: &impl Message) {
    out.push(first);
    message.encode_length_delimited(out).expect("a vector has room for every message");
}

fn begin(out: &mut Vec<u8>, first: u8, length: usize) {
    out.push(first);
    encode_length_delimiter(length, out).expect("a vector has room for every length");
}

/// An attribute whose value is text.
pub(super) fn attribute(name: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(Value::StringValue(value.to_owned())) };
    KeyValue { key: name.to_owned(), value: Some(value), ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
    use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};

    use super::*;

    #[test]
    fn what_is_written_is_the_message_that_the_protocol_defines() {
        let metric = |name: &str| Metric { name: name.to_owned(), ..Metric::default() };
        let resource = Resource { attributes: vec![attribute("a", "b")], ..Resource::default() };
        for count in [0_usize, 1, 3, 300] {
            let metrics: Vec<_> = (0..count).map(|n| metric(&format!("metric_{n}"))).collect();
            let written = |gzip| {
                let mut writer = Writer::new();
                metrics.iter().for_each(|metric| writer.metric(metric));
                writer.finish(&resource, gzip).unwrap()
            };
            let request = ExportMetricsServiceRequest::decode(written(false).as_slice()).unwrap();
            let scope = InstrumentationScope {
                name: "vram-exporter".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ..InstrumentationScope::default()
            };
            let scope = ScopeMetrics { scope: Some(scope), metrics: metrics.clone(), ..ScopeMetrics::default() };
            let expected = ResourceMetrics {
                resource: Some(resource.clone()),
                scope_metrics: vec![scope],
                ..ResourceMetrics::default()
            };
            assert_eq!(request.resource_metrics, [expected]);
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(written(true).as_slice()).read_to_end(&mut plain).unwrap();
            assert_eq!(plain, written(false));
        }
    }
}
