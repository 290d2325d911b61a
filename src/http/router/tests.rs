//! The response when the metrics cannot be written.

use super::super::allowance::Admission;
use super::super::origin::Origin;
use super::super::pool::ConnectionPool;
use super::*;
use crate::config::Limits;
use crate::faults::Faults;
use crate::snapshot::Snapshot;
use gpu_metrics::{Metrics, Settings};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Metric, MetricFamily, MetricType};
use std::collections::HashMap;
use std::time::Duration;

/// A family that the encoder refuses, because it has no name.
struct Nameless(Desc);

impl Collector for Nameless {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut family = MetricFamily::default();
        family.set_field_type(MetricType::GAUGE);
        family.set_metric(vec![Metric::default()]);
        vec![family]
    }
}

#[tokio::test]
async fn an_exposition_that_cannot_be_built_is_an_error_and_a_fault() {
    let faults = Arc::new(Faults::default());
    let metrics = Arc::new(Metrics::new(Snapshot::new(), faults.clone(), Settings::default()).unwrap());
    let desc = Desc::new("x".to_owned(), "x".to_owned(), vec![], HashMap::new()).unwrap();
    metrics.registry().register(Box::new(Nameless(desc))).unwrap();
    let state = HttpState::new(metrics, Snapshot::new(), faults.clone(), "/metrics");
    let second = Duration::from_secs(1);
    let (max_requests, max_connections) = (1, 1);
    let (read_timeout, write_timeout, idle_timeout) = (second, second, second);
    let limits = Limits { max_requests, max_connections, read_timeout, write_timeout, idle_timeout };
    let allowance = Extension(Allowance::new(ConnectionPool::new(limits), Origin::default(), Admission::Open));
    let wanted = Wanted(Format::Text);
    let answer = scrape(State(Arc::new(state.clone())), Method::GET, allowance.clone(), wanted).await;
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let body = axum::body::to_bytes(answer.into_body(), 1024).await.unwrap();
    assert!(String::from_utf8_lossy(&body).contains("could not be written"), "{body:?}");
    assert_eq!(faults.count(Source::Http, Reason::Encoding), 1);
    let answer = scrape(State(Arc::new(state)), Method::HEAD, allowance, wanted).await;
    assert_eq!(answer.status(), StatusCode::OK, "a HEAD writes nothing");
}
