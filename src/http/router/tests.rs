//! The response when the metrics cannot be written.

use super::super::allowance::Admission;
use super::super::origin::Origin;
use super::super::pool::ConnectionPool;
use super::*;
use crate::config::Limits;
use crate::faults::Faults;
use crate::metrics::Metrics;
use crate::snapshot::Snapshot;
use std::time::Duration;

#[tokio::test]
async fn an_exposition_that_cannot_be_built_is_an_error_and_a_fault() {
    let faults = Arc::new(Faults::default());
    let metrics = Arc::new(Metrics::unwritable());
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
