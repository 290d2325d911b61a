//! A client of Prometheus' HTTP API, which Thanos, Mimir and VictoriaMetrics have too.
//!
//! Invariants: every request is counted; an answer is at most [`ANSWER_LIMIT`] bytes, all
//! together are at most [`ANSWERS_LIMIT`], and what is kept of them is at most [`KEPT_LIMIT`]; an answer that is not Prometheus' is an
//! error, never an empty result; the server's warnings are kept.

mod answer;

use std::collections::BTreeSet;

use hyper::StatusCode;
use hyper::header::LOCATION;
use web_client::server_url::ServerUrl;
use web_client::{AccessError, Answer, Client, innermost};

pub(super) use self::answer::Series;
#[cfg(test)]
pub(super) use self::answer::{Labels, Point};
use super::arguments::Arguments;

/// The longest answer to one request, in bytes.
const ANSWER_LIMIT: usize = 64 << 20;
/// The most bytes of all answers together.
const ANSWERS_LIMIT: usize = 1 << 30;
/// The most memory that the series of all answers need, in bytes.
const KEPT_LIMIT: usize = 512 << 20;
/// What is said of an answer that VictoriaMetrics marks as partial.
const PARTIAL: &str = "isPartial: a part of its data is missing, so the advice can be too low";
/// The most warnings that are kept.
const WARNINGS: usize = 20;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(
        "{0} did not answer everything within {1} s; --timeout sets the limit, and a shorter --range takes less time"
    )]
    Timeout(ServerUrl, u64),
    #[error("{0} cannot be asked: {1}; --prometheus.url names the server")]
    Unreachable(ServerUrl, String),
    #[error("{0} requires authentication (status {1}): {2}; --http-config names a file with a password or a token")]
    Unauthorized(ServerUrl, u16, String),
    #[error("{0} redirects to {1}; redirects are not followed, so name the server's own URL with --prometheus.url")]
    Redirect(ServerUrl, String),
    #[error("{0} answered with status {1}: {2}")]
    Refused(ServerUrl, u16, String),
    #[error(
        "{0} does not answer like a Prometheus server: {1}; --prometheus.url names the server, with its path prefix"
    )]
    Foreign(ServerUrl, String),
    #[error(
        "{0} has no gpu_workload_memory_window_peak_bytes above 0 in this range; is vram-exporter scraped, is the metric kept, and \
         is the tenant in --http-config the right one?"
    )]
    Empty(ServerUrl),
    #[error(
        "{0} returned more series and samples than {1} bytes of memory hold; a shorter --range, or the server of one cluster, has less"
    )]
    TooLarge(ServerUrl, usize),
    #[error("{0} has {1} series of gpu_workload_memory_window_peak_bytes in this range, and none can be used: {2}")]
    Unusable(ServerUrl, usize, String),
    #[error("{0} returned more than {1} bytes {2}; a shorter --range is less")]
    TooLong(ServerUrl, usize, &'static str),
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// The server, and what it said apart from its results.
#[derive(Debug)]
pub(super) struct Prometheus {
    client: Client,
    /// The number of requests that were sent.
    pub(super) requests: u64,
    /// How many more bytes of answers are read.
    left: usize,
    room: answer::Room,
    warnings: BTreeSet<String>,
}

impl Prometheus {
    /// Reads the files of the configuration. Sends nothing.
    pub(super) fn new(arguments: &Arguments) -> Result<Self, Error> {
        Ok(Self {
            client: Client::new(arguments.url.clone(), arguments.http_config.as_deref())?,
            requests: 0,
            left: ANSWERS_LIMIT,
            room: answer::Room { left: KEPT_LIMIT, left_out: 0 },
            warnings: BTreeSet::new(),
        })
    }

    /// The number of values in the answers that are no amounts and were left out.
    pub(super) fn left_out(&self) -> u64 {
        self.room.left_out
    }

    /// What the server warned of, such as partial data, in order and without repetition.
    pub(super) fn warnings(&self) -> impl Iterator<Item = &str> {
        self.warnings.iter().map(String::as_str)
    }

    /// The answer is not that of this API.
    pub(super) fn foreign(&self, why: String) -> Error {
        Error::Foreign(self.client.server.clone(), why)
    }

    /// The series at a time, in seconds since the Unix epoch, each with one point.
    pub(super) async fn query(&mut self, query: &str, time: u64) -> Result<Vec<Series>, Error> {
        self.ask("query", &[("query", query), ("time", &time.to_string())]).await
    }

    /// The series at the times `start`, `start + step`, … up to `end`, in seconds since the Unix epoch.
    pub(super) async fn query_range(
        &mut self,
        query: &str,
        [start, end, step]: [u64; 3],
    ) -> Result<Vec<Series>, Error> {
        let [start, end, step] = [start, end, step].map(|seconds| seconds.to_string());
        self.ask("query_range", &[("query", query), ("start", &start), ("end", &end), ("step", &step)]).await
    }

    async fn ask(&mut self, method: &str, parameters: &[(&str, &str)]) -> Result<Vec<Series>, Error> {
        self.requests += 1;
        let limit = ANSWER_LIMIT.min(self.left);
        let answer = self.client.post(&format!("/api/v1/{method}"), parameters, limit).await;
        let answer = answer.map_err(|error| match error {
            web_client::Error::TooLong(_) => self.too_long(),
            error => self.unreachable(&error),
        })?;
        self.left = self.left.saturating_sub(answer.body.len());
        self.result(&answer)
    }

    /// The server could not be asked.
    pub(super) fn unreachable(&self, error: &web_client::Error) -> Error {
        Error::Unreachable(self.client.server.clone(), innermost(error))
    }

    fn too_long(&self) -> Error {
        let of_all = self.left < ANSWER_LIMIT;
        let (limit, of) = if of_all { (ANSWERS_LIMIT, "for all requests") } else { (ANSWER_LIMIT, "for one request") };
        Error::TooLong(self.client.server.clone(), limit, of)
    }

    fn result(&mut self, answer: &Answer) -> Result<Vec<Series>, Error> {
        let (url, code) = (self.client.server.clone(), answer.status.as_u16());
        let text = || answer.secrets.quote(&String::from_utf8_lossy(&answer.body[..answer.body.len().min(4096)]));
        let parsed = answer::parse(&answer.body, &mut self.room);
        let said = |parsed: &Result<_, answer::Error>| match parsed {
            Err(answer::Error::Said(said)) => answer.secrets.quote(said),
            _ => text(),
        };
        match answer.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(Error::Unauthorized(url, code, said(&parsed))),
            status if status.is_redirection() => {
                Err(Error::Redirect(url, answer.secrets.quote(answer.header(LOCATION))))
            }
            status if status.is_success() => match parsed {
                Ok(found) => {
                    let warnings = found.warnings.iter().map(|warning| answer.secrets.quote(warning));
                    let partial = found.is_partial.then(|| PARTIAL.to_owned());
                    let warnings = partial.into_iter().chain(warnings);
                    self.warnings.extend(warnings.take(WARNINGS.saturating_sub(self.warnings.len())));
                    Ok(found.series)
                }
                Err(answer::Error::TooLarge) => Err(Error::TooLarge(url, KEPT_LIMIT)),
                Err(answer::Error::Said(why)) => Err(Error::Refused(url, code, answer.secrets.quote(&why))),
                Err(answer::Error::Foreign(why)) => Err(Error::Foreign(url, answer.secrets.quote(&why))),
            },
            StatusCode::NOT_FOUND if !matches!(parsed, Err(answer::Error::Said(_))) => {
                Err(Error::Foreign(url, format!("status 404: {}", text())))
            }
            _ => Err(Error::Refused(url, code, said(&parsed))),
        }
    }
}
