//! Asks an exporter for its reports, over a connection of its own.
//!
//! Invariants: neither redirects nor proxies from the environment are followed; the request ends after the timeout; no more
//! than [`ANSWER_LIMIT`] bytes are read; a password never appears in a message.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use web_client::server_url::ServerUrl;
use web_client::{AccessError, Answer, Client, innermost};

use super::arguments::Arguments;
use crate::format::Format;

const PATH: &str = "/api/v1/reports";
/// The longest response that is read, in bytes.
const ANSWER_LIMIT: usize = 8 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{0} did not answer within {seconds} s; --timeout sets the limit", seconds = .1.as_secs())]
    Timeout(ServerUrl, Duration),
    #[error("{0} cannot be asked: {1}; --url names the exporter")]
    Unreachable(ServerUrl, String),
    #[error("{0} requires a password; --http-config names a file with it")]
    Unauthorized(ServerUrl),
    #[error("{0} answered with status {1}: {2}")]
    Refused(ServerUrl, u16, String),
    #[error("{0} is not a vram-exporter that has reports, or is older than this program")]
    Foreign(ServerUrl),
    #[error("{0} returned more than {ANSWER_LIMIT} bytes")]
    TooLong(ServerUrl),
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// The reports as text or as JSON Lines, empty if there are none.
///
/// # Errors
/// When there is no such answer within the timeout.
pub(super) fn ask(arguments: &Arguments) -> Result<String, Error> {
    let client = Client::new(arguments.url.clone(), arguments.http_config.as_deref())?;
    let answered = web_client::within(arguments.timeout, answer(&client, arguments));
    let late = || Err(Error::Timeout(arguments.url.clone(), arguments.timeout));
    answered.map_err(|error| failed(&arguments.url, &error))?.unwrap_or_else(late)
}

async fn answer(client: &Client, arguments: &Arguments) -> Result<String, Error> {
    let url = &arguments.url;
    let (format, wanted) = match arguments.format {
        // What the energy costs is computed here, from the values.
        Format::Text if arguments.price.is_none() => ("text", "text/plain"),
        _ => ("lines", "application/x-ndjson"),
    };
    let named = [("job", &arguments.job), ("workload", &arguments.workload)];
    let named = named.iter().filter_map(|(what, name)| Some((*what, name.as_deref()?)));
    let query: Vec<_> = std::iter::once(("format", format)).chain(named).collect();
    let answer = client.get(PATH, &query, ANSWER_LIMIT).await.map_err(|error| failed(url, &error))?;
    let body = String::from_utf8_lossy(&answer.body);
    match answer.status {
        StatusCode::OK if answer.header(CONTENT_TYPE).starts_with(wanted) => Ok(body.into_owned()),
        StatusCode::OK => Err(Error::Foreign(url.clone())),
        StatusCode::UNAUTHORIZED => Err(Error::Unauthorized(url.clone())),
        _ => Err(refused(url, &answer, &body)),
    }
}

/// The exporter answers with a reason as JSON; anything else is another server, or an exporter without reports.
fn refused(url: &ServerUrl, answer: &Answer, body: &str) -> Error {
    let reason = serde_json::from_str::<serde_json::Value>(body).ok();
    match (reason.as_ref().and_then(|reason| reason.get("error")?.as_str()), answer.status) {
        (None, StatusCode::NOT_FOUND) => Error::Foreign(url.clone()),
        (reason, status) => Error::Refused(url.clone(), status.as_u16(), answer.secrets.quote(reason.unwrap_or(body))),
    }
}

fn failed(url: &ServerUrl, error: &web_client::Error) -> Error {
    match error {
        web_client::Error::TooLong(_) => Error::TooLong(url.clone()),
        error => Error::Unreachable(url.clone(), innermost(error)),
    }
}
