//! The list and the watch of this node's pods in the API server's formats: JSON, and one JSON object per line.

use std::time::Duration;

use hyper::body::Incoming;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use super::body::{self, Lines};
use super::client::Client;
use super::error::{Error, Status};
use super::pod::Pod;

/// The time after which the server should end a watch.
const WATCH_TIMEOUT: Duration = Duration::from_secs(60);
/// A watch that the server has not ended this long after [`WATCH_TIMEOUT`] counts as dead.
const WATCH_GRACE: Duration = Duration::from_secs(5);

/// The characters that are escaped in a parameter's value.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A list of pods, or a page of it.
#[derive(Debug, Deserialize)]
pub struct PodList {
    metadata: ListMetadata,
    /// Required, but may be `null`.
    #[serde(deserialize_with = "Option::deserialize")]
    pub items: Option<Vec<Pod>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    next_page: Option<String>,
}

/// A line of a watch.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
pub enum WatchEvent {
    /// A pod that is new to the watch.
    Added(Pod),
    /// A pod in its new state.
    Modified(Pod),
    /// A pod in its last state.
    Deleted(Pod),
    /// A version to resume from; the pod has no other field.
    Bookmark(Pod),
    /// Why the server ends the watch.
    Error(Status),
}

/// What happened to a pod.
#[derive(Debug)]
pub(super) enum Change {
    Put(Pod),
    Remove(Pod),
}

/// Lists the pods that `selector` selects. Returns them with the version to watch from.
///
/// With version 0 and no `limit` the server answers from its memory, where pods are indexed by node; anything else
/// makes it read every pod in the cluster. The returned state can be older than a state seen before. This is harmless,
/// because an id keeps its names and the watch continues from the returned state.
pub(super) async fn list(client: &Client, selector: &str) -> Result<(Vec<Pod>, String), Error> {
    let first = [("fieldSelector", selector), ("resourceVersion", "0"), ("resourceVersionMatch", "NotOlderThan")];
    let all_pages = async {
        let (mut pods, mut page) = (Vec::new(), query(&first));
        loop {
            let body = body::whole(client.pods(&page).await?.into_body()).await?;
            let PodList { metadata, items } = serde_json::from_slice(&body).map_err(Error::malformed)?;
            pods.extend(items.unwrap_or_default());
            match metadata.next_page.filter(|token| !token.is_empty()) {
                Some(token) => page = query(&[("fieldSelector", selector), ("continue", &token)]),
                None => return Ok((pods, version(metadata.resource_version.as_deref())?)),
            }
        }
    };
    client.in_time(all_pages).await
}

/// An open watch.
#[derive(Debug)]
pub(super) struct Watch {
    lines: Lines<Incoming>,
    /// When the watch counts as dead.
    deadline: Instant,
}

impl Watch {
    /// Opens a watch for the changes since `version`.
    pub(super) async fn open(client: &Client, selector: &str, version: &str) -> Result<Self, Error> {
        let seconds = WATCH_TIMEOUT.as_secs().to_string();
        let query = query(&[
            ("watch", "true"),
            ("timeoutSeconds", &seconds),
            ("fieldSelector", selector),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
        ]);
        let response = client.in_time(client.pods(&query)).await?;
        Ok(Self { lines: Lines::new(response.into_body()), deadline: Instant::now() + WATCH_TIMEOUT + WATCH_GRACE })
    }

    /// The next change; `None` at the end of the watch. `seen` becomes the version from which the next watch continues.
    pub(super) async fn next(&mut self, seen: &mut String) -> Result<Option<Change>, Error> {
        loop {
            let Ok(line) = timeout_at(self.deadline, self.lines.next()).await else { return Ok(None) };
            let Some(line) = line? else { return Ok(None) };
            match serde_json::from_slice(&line).map_err(Error::malformed)? {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                    *seen = version(pod.version())?;
                    return Ok(Some(Change::Put(pod)));
                }
                WatchEvent::Deleted(pod) => {
                    *seen = version(pod.version())?;
                    return Ok(Some(Change::Remove(pod)));
                }
                WatchEvent::Bookmark(pod) => *seen = version(pod.version())?,
                WatchEvent::Error(status) => return Err(status.into()),
            }
        }
    }
}

/// Returns the version, which must not be missing or empty, so that a request can name it.
fn version(version: Option<&str>) -> Result<String, Error> {
    let version = version.filter(|version| !version.is_empty());
    version.map(str::to_owned).ok_or_else(|| Error::Malformed("an object without a resourceVersion".to_owned()))
}

fn query(parameters: &[(&str, &str)]) -> String {
    let parameter = |(name, value): &(&str, &str)| format!("{name}={}", utf8_percent_encode(value, ESCAPED));
    parameters.iter().map(parameter).collect::<Vec<_>>().join("&")
}
