//! A receiver of OTLP over HTTP or HTTPS in the test's process: records what it gets, and answers as a test asks.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::io::Read as _;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::{Request, Response};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use prost::Message as _;
use tokio_rustls::TlsAcceptor;

use crate::api_server::Authority;
use crate::connections::Double;
use crate::harness::eventually;

/// How a request is answered.
#[derive(Clone)]
pub(super) enum Reply {
    /// With success.
    Accept,
    /// With success, without this many points.
    Partial(i64, &'static str),
    /// With this status, `Retry-After` or `Location`, and text.
    Status(u16, Option<(&'static str, &'static str)>, &'static str),
    /// With this status and the value of `Authorization`.
    Echo(u16),
    /// With success and this text.
    Text(&'static str),
    /// With success and a body without end.
    Flood,
    /// Never.
    Silence,
}

/// One series of a push. A histogram has a point for each of its series in a scrape.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    pub(super) name: String,
    pub(super) unit: String,
    pub(super) shape: &'static str,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) value: Option<f64>,
    /// Whether the value is an integer by its type.
    pub(super) is_integer: bool,
    pub(super) start: u64,
    pub(super) time: u64,
    pub(super) gone: bool,
}

/// A request.
#[derive(Debug, Clone)]
pub(super) struct Push {
    pub(super) path: String,
    pub(super) headers: HashMap<String, String>,
    pub(super) body: Bytes,
    pub(super) at: Instant,
    pub(super) resource: BTreeMap<String, String>,
    pub(super) points: Vec<Point>,
}

impl Push {
    /// The points of a metric that have these labels.
    pub(super) fn all<'a>(&'a self, name: &'a str, labels: &'a [(&str, &str)]) -> impl Iterator<Item = &'a Point> {
        let fits =
            |point: &Point| labels.iter().all(|(name, value)| point.labels.get(*name).is_some_and(|v| v == value));
        self.points.iter().filter(move |point| point.name == name && fits(point))
    }

    /// The one point of a metric that has these labels.
    pub(super) fn one(&self, name: &str, labels: &[(&str, &str)]) -> Point {
        let found: Vec<_> = self.all(name, labels).collect();
        assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
        found[0].clone()
    }
}

#[derive(Default)]
struct State {
    pushes: Vec<Push>,
    replies: VecDeque<Reply>,
    /// The answer after those in `replies`.
    then: Option<Reply>,
}

/// The receiver. It ends with this value.
pub(super) struct Receiver {
    server: Double,
    state: Arc<Mutex<State>>,
}

impl Receiver {
    /// Gives these answers, one after the other, and then accepts everything.
    pub(super) fn start(replies: &[Reply]) -> Self {
        Self::with(replies, None)
    }

    /// Speaks TLS with a certificate of this authority.
    pub(super) fn start_tls(authority: &Authority) -> Self {
        Self::with(&[], Some(authority.acceptor()))
    }

    fn with(replies: &[Reply], tls: Option<TlsAcceptor>) -> Self {
        let state = Arc::new(Mutex::new(State { replies: replies.iter().cloned().collect(), ..State::default() }));
        let shared = state.clone();
        let answer = move |request| {
            let state = shared.clone();
            async move { reply(request, &state).await }
        };
        Self { server: Double::start(tls, answer), state }
    }

    /// The flag with which an exporter pushes here.
    pub(super) fn flag(&self) -> String {
        format!("--otlp.endpoint={}", self.url())
    }

    pub(super) fn url(&self) -> String {
        self.server.url()
    }

    /// How every request is answered from now on.
    pub(super) fn answer(&self, reply: Reply) {
        let mut state = self.state.lock().unwrap();
        state.replies.clear();
        state.then = Some(reply);
    }

    /// Every request so far.
    pub(super) fn pushes(&self) -> Vec<Push> {
        self.state.lock().unwrap().pushes.clone()
    }

    /// The first requests, once there are so many.
    pub(super) fn first<const N: usize>(&self) -> [Push; N] {
        let pushes = eventually("the pushes", || Some(self.pushes()).filter(|pushes| pushes.len() >= N));
        pushes.into_iter().take(N).collect::<Vec<_>>().try_into().unwrap()
    }

    /// The first request that meets the condition.
    pub(super) fn until(&self, what: &str, wanted: impl Fn(&Push) -> bool) -> Push {
        eventually(what, || self.pushes().into_iter().find(&wanted))
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

async fn reply(request: Request<Incoming>, state: &Mutex<State>) -> Response<Body> {
    let at = Instant::now();
    assert_eq!(request.method(), "POST");
    assert_eq!(request.headers()["content-type"], "application/x-protobuf");
    let (head, body) = request.into_parts();
    // The exporter may have given up.
    let Ok(body) = body.collect().await else { return plain(400, "") };
    let body = body.to_bytes();
    let headers: HashMap<_, _> =
        head.headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    let mut content = Vec::new();
    match headers.get("content-encoding").map(String::as_str) {
        Some("gzip") => drop(flate2::read::GzDecoder::new(&*body).read_to_end(&mut content).unwrap()),
        None => content.extend_from_slice(&body),
        other => panic!("{other:?}"),
    }
    let message = ExportMetricsServiceRequest::decode(content.as_slice()).unwrap();
    let (resource, points) = read(message);
    let authorization: String;
    let reply = {
        let mut state = state.lock().unwrap();
        authorization = headers.get("authorization").cloned().unwrap_or_default();
        state.pushes.push(Push { path: head.uri.path().to_owned(), headers, body, at, resource, points });
        let next = state.replies.pop_front();
        next.or_else(|| state.then.clone()).unwrap_or(Reply::Accept)
    };
    match reply {
        Reply::Accept => plain(200, ""),
        Reply::Partial(rejected_data_points, message) => {
            let partial = ExportMetricsPartialSuccess { rejected_data_points, error_message: message.to_owned() };
            let answer = ExportMetricsServiceResponse { partial_success: Some(partial) };
            Response::new(Full::new(Bytes::from(answer.encode_to_vec())).boxed_unsync())
        }
        Reply::Status(code, header, text) => {
            let mut response = plain(code, text);
            if let Some((name, value)) = header {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            response
        }
        Reply::Echo(code) => plain(code, format!("{authorization} is unknown: who are you?")),
        Reply::Text(text) => plain(200, text),
        Reply::Flood => {
            let pieces = futures_util::stream::repeat_with(|| Ok(Frame::data(Bytes::from_static(&[0; 4096]))));
            Response::new(StreamBody::new(pieces).boxed_unsync())
        }
        Reply::Silence => std::future::pending().await,
    }
}

fn plain(code: u16, text: impl Into<Bytes>) -> Response<Body> {
    Response::builder().status(code).body(Full::new(text.into()).boxed_unsync()).unwrap()
}

fn labels(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value| match value {
        Some(Value::StringValue(text)) => text,
        other => panic!("{other:?}"),
    };
    let count = attributes.len();
    let labels: BTreeMap<_, _> = attributes.into_iter().map(|kv| (kv.key, text(kv.value.unwrap().value))).collect();
    assert_eq!(labels.len(), count, "an attribute is there twice: {labels:?}");
    labels
}

/// The resource and the points of a message, as a scrape would show them.
fn read(message: ExportMetricsServiceRequest) -> (BTreeMap<String, String>, Vec<Point>) {
    let [resource] = message.resource_metrics.try_into().unwrap();
    let [scope] = resource.scope_metrics.try_into().unwrap();
    assert_eq!(scope.scope.unwrap().name, "vram-exporter");
    let mut points = Vec::new();
    for metric in scope.metrics {
        assert!(!metric.description.is_empty());
        let (name, unit) = (metric.name, metric.unit);
        let mut add = |name: String,
                       shape,
                       labels,
                       (value, is_integer): (Option<f64>, bool),
                       (start, time, flags): (u64, u64, u32)| {
            assert_eq!(flags == 1, value.is_none(), "{name} {labels:?}");
            let unit = unit.clone();
            points.push(Point { name, unit, shape, labels, value, is_integer, start, time, gone: flags == 1 });
        };
        let (shape, numbers) = match metric.data.unwrap() {
            Data::Gauge(gauge) => ("gauge", gauge.data_points),
            Data::Sum(sum) => {
                assert_eq!(sum.aggregation_temporality, 2, "{name} is cumulative");
                (if sum.is_monotonic { "counter" } else { "updown" }, sum.data_points)
            }
            Data::Histogram(histogram) => {
                assert_eq!(histogram.aggregation_temporality, 2, "{name} is cumulative");
                for point in histogram.data_points {
                    let (own, gone) = (labels(point.attributes), point.flags == 1);
                    let times = (point.start_time_unix_nano, point.time_unix_nano, point.flags);
                    let value = |value: f64| ((!gone).then_some(value), false);
                    let mut below = 0;
                    let bounds = point.explicit_bounds.iter().map(bound).chain(["+Inf".to_owned()]);
                    for (bound, count) in bounds.zip(&point.bucket_counts) {
                        below += count;
                        let mut labels = own.clone();
                        labels.insert("le".to_owned(), bound);
                        add(format!("{name}_bucket"), "histogram", labels, value(below as f64), times);
                    }
                    add(format!("{name}_count"), "histogram", own.clone(), value(point.count as f64), times);
                    add(format!("{name}_sum"), "histogram", own, value(point.sum.unwrap_or_default()), times);
                }
                continue;
            }
            other => panic!("{other:?}"),
        };
        for point in numbers {
            let value = point.value.map(|value| match value {
                Number::AsDouble(value) => value,
                Number::AsInt(value) => value as f64,
            });
            let times = (point.start_time_unix_nano, point.time_unix_nano, point.flags);
            let is_integer = matches!(point.value, Some(Number::AsInt(_)));
            add(name.clone(), shape, labels(point.attributes), (value, is_integer), times);
        }
    }
    (labels(resource.resource.unwrap().attributes), points)
}

/// A bound of a bucket as a scrape writes it.
fn bound(bound: &f64) -> String {
    let text = format!("{bound:?}");
    match text.split_once("e-") {
        Some((digits, exponent)) => format!("{digits}e-{exponent:0>2}"),
        None => text,
    }
}
