//! Sends a push, over a connection of its own: pushes are rare, so keeping connections open would save nothing.
//!
//! Invariants: an attempt ends after the timeout, and no more than [`ANSWER_LIMIT`] bytes of a response are read.

use std::sync::atomic::{AtomicBool, Ordering};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Request, Response};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use prost::Message;

use super::error::Error;
use super::settings::Settings;
use super::{headers, resource};
use crate::client::{self, Body, Connection, Secrets, Tls, retry_after, whole};
use crate::server_url::ServerUrl;

/// The path of metrics, which the protocol defines.
const PATH: &str = "/v1/metrics";
/// The longest response that is read, in bytes.
const ANSWER_LIMIT: usize = 64 << 10;

/// The error that a receiver describes in a response, `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
}

/// What the receiver did not accept of a push that it accepted.
pub(super) struct Rejected {
    pub(super) points: u64,
    pub(super) text: String,
}

/// What is sent, and whether it was.
pub(super) struct Push<'a> {
    pub(super) body: Bytes,
    pub(super) points: usize,
    pub(super) gzip: bool,
    /// Set when the request may have left.
    pub(super) sent: &'a AtomicBool,
}

/// What a connection needs, as the files specify it at the time.
pub(super) struct Access {
    tls: Tls,
    headers: HeaderMap,
}

impl Access {
    /// Reads the files. May block for a long time.
    pub(super) fn read(settings: &Settings) -> Result<Self, Error> {
        let tls = Tls::trusting(&url(&settings.endpoint)?, settings.ca_file.as_deref());
        let tls = tls.map_err(|error| {
            let from = settings.ca_file.as_ref().map(|path| format!("{}: ", path.display()));
            Error::NoTrust(format!("{}{error}", from.unwrap_or_default()))
        })?;
        Ok(Self { tls, headers: headers::read(settings)? })
    }
}

/// The URL of metrics at the endpoint.
pub(super) fn url(endpoint: &str) -> Result<ServerUrl, Error> {
    let url = ServerUrl::parse(endpoint, "http://localhost:4318", "otlp.headers-file").map_err(Error::Url)?;
    url.below(PATH).map_err(|error| Error::Url(format!("is not a URL: {error}")))
}

/// Checks the endpoint, the headers, the certificates and the attributes. Nothing is sent.
///
/// # Errors
/// When one of them cannot be used.
pub fn check(settings: &Settings) -> Result<(), Error> {
    url(&settings.endpoint)?;
    resource::read(settings, false)?;
    Access::read(settings).map(drop)
}

/// How many of the points were rejected according to the receiver, whose number may be any.
fn rejected(number: i64, points: usize) -> u64 {
    u64::try_from(number).unwrap_or(0).min(points.try_into().unwrap_or(u64::MAX))
}

/// Sends a push. Returns what the receiver did not accept of it.
pub(super) async fn post(url: &ServerUrl, access: Access, push: Push<'_>) -> Result<Option<Rejected>, Error> {
    let (endpoint, secrets) = (url.to_string(), Secrets::of(&access.headers));
    let transport = |error: client::Error| Error::transport(&endpoint, &error);
    let response = send(url, access, &push).await?;
    let (code, after) = (response.status(), retry_after(response.headers()));
    // Without a content if it is too long.
    let content = match whole(response.into_body(), ANSWER_LIMIT).await {
        Err(client::Error::TooLong(_)) => None,
        read => Some(read.map_err(transport)?),
    };
    if !code.is_success() {
        // A proxy or a server of another kind answers with text, a receiver of OTLP with a message.
        let described =
            content.as_deref().and_then(|content| Status::decode(content).ok()).map(|status| status.message);
        let text = described.filter(|text| !text.is_empty()).unwrap_or_else(|| {
            content.as_deref().map(|content| String::from_utf8_lossy(content).into_owned()).unwrap_or_default()
        });
        return Err(Error::Answer { endpoint, code: code.as_u16(), text: secrets.quote(&text), after });
    }
    let decoded = content.as_deref().map(ExportMetricsServiceResponse::decode);
    let Some(Ok(response)) = decoded else { return Err(Error::NotOtlp { endpoint, code: code.as_u16() }) };
    let partial = response.partial_success.unwrap_or_default();
    let points = rejected(partial.rejected_data_points, push.points);
    Ok((points > 0 || !partial.error_message.is_empty())
        .then(|| Rejected { points, text: secrets.quote(&partial.error_message) }))
}

async fn send(url: &ServerUrl, access: Access, push: &Push<'_>) -> Result<Response<Body>, Error> {
    let endpoint = url.to_string();
    let transport = |error: client::Error| Error::transport(&endpoint, &error);
    let request = Request::post(url.path()).header(CONTENT_TYPE, "application/x-protobuf");
    let request = request.body(Full::new(push.body.clone()));
    let mut request = request.map_err(|error| Error::Url(error.to_string()))?;
    if push.gzip {
        request.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    request.headers_mut().extend(access.headers);
    let connection = Connection::open(url, access.tls).await.map_err(transport)?;
    push.sent.store(true, Ordering::Relaxed);
    connection.send(request).await.map_err(transport)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_connection_ends_with_its_attempt() {
        const LENGTH: usize = 64 << 20;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = url(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let access = Access { tls: Tls::trusting(&uri, None).unwrap(), headers: HeaderMap::new() };
        let body = Bytes::from(vec![0; LENGTH]);
        let attempt = tokio::spawn(async move {
            let push = Push { body, points: 1, gzip: false, sent: &AtomicBool::new(false) };
            post(&uri, access, push).await.map(drop)
        });
        let (mut stream, _) = listener.accept().await.unwrap();
        // The request is on its way, and its buffers are smaller than the body.
        stream.read_u8().await.unwrap();
        attempt.abort();
        assert!(attempt.await.unwrap_err().is_cancelled());
        let mut content = Vec::new();
        // The client may close the connection with or without a reset.
        let _ = stream.read_to_end(&mut content).await;
        assert!(content.len() < LENGTH, "the rest of the body was sent after the attempt");
    }

    #[test]
    fn no_more_points_are_rejected_than_were_sent() {
        for (number, expected) in [(-1, 0), (0, 0), (3, 3), (10, 10), (11, 10), (i64::MAX, 10), (i64::MIN, 0)] {
            assert_eq!(rejected(number, 10), expected, "{number}");
        }
    }

    #[test]
    fn an_endpoint_that_names_no_port_of_a_host_is_refused() {
        assert_eq!(url("http://[::1]:9090/otlp").unwrap().to_string(), "http://[::1]:9090/otlp/v1/metrics");
        for endpoint in crate::server_url::samples::REFUSED {
            let error = url(endpoint).unwrap_err().to_string();
            assert!(error.starts_with("otlp.endpoint must "), "{error}");
        }
    }
}
