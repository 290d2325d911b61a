//! The response when the metrics cannot be written.

use super::*;
use crate::faults::Faults;
use crate::metrics::Metrics;
use crate::snapshot::Snapshot;

#[tokio::test]
async fn an_exposition_that_cannot_be_built_is_an_error_and_a_fault() {
    let faults = Arc::new(Faults::default());
    let metrics = Arc::new(Metrics::unwritable());
    let state = HttpState::new(metrics, Snapshot::new(), faults.clone(), "/metrics");
    let answer = scrape(State(Arc::new(state.clone())), Method::GET, Version::HTTP_11, Wanted(Format::Text)).await;
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let body = axum::body::to_bytes(answer.into_body(), 1024).await.unwrap();
    assert!(String::from_utf8_lossy(&body).contains("could not be written"), "{body:?}");
    assert_eq!(faults.count(Source::Http, Reason::Encoding), 1);
    let answer = scrape(State(Arc::new(state)), Method::HEAD, Version::HTTP_11, Wanted(Format::Text)).await;
    assert_eq!(answer.status(), StatusCode::OK, "a HEAD writes nothing");
}
