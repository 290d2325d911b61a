//! The list and the watch of this node's objects of one kind in the API server's formats: JSON, and one JSON object per line.

use std::marker::PhantomData;
use std::time::Duration;

use hyper::body::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::body::{self, ANSWER_LIMIT, Lines};
use super::client::Client;
use super::declared::{Wanted, each, with_wanted};
use super::error::{Error, Status};
use crate::client::{Body, innermost};

/// The most objects of a list, with their parts: pods with their containers, slices with their devices. A node runs a few
/// hundred pods, and a cluster keeps thousands that have ended.
const OBJECTS_LIMIT: usize = 65_536;
/// The most pages of a list. A server divides a list only if it is asked to, and it is not.
const PAGES_LIMIT: usize = 100;
/// The longest token of a page, and the longest version, in bytes. Both are sent back in a URL.
const LONGEST_TOKEN: usize = 8192;
/// The most bytes of a watch. A watch takes a minute, in which a busy node changes a few hundred pods of some kilobytes.
const WATCH_LIMIT: usize = 64 << 20;
/// A text of at least this length is decoded on a thread of its own.
const LONG: usize = 64 << 10;
/// The time after which the server should end a watch.
const WATCH_TIMEOUT: Duration = Duration::from_secs(60);
/// A watch that the server has not ended this long after [`WATCH_TIMEOUT`] counts as dead.
const WATCH_GRACE: Duration = Duration::from_secs(5);

/// The characters that are escaped in a parameter's value.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A kind of object that can be listed and watched.
pub trait Object: DeserializeOwned + Send + 'static {
    /// The path of the list.
    const PATH: &'static str;

    /// The version at which the object was in this state.
    fn version(&self) -> Option<&str>;

    /// How many parts of it are kept, such as containers.
    fn parts(&self) -> usize;
}

/// A list of objects, or a page of it.
#[derive(Debug, Deserialize)]
#[serde(bound = "T: Object")]
pub struct List<T> {
    metadata: ListMetadata,
    /// Required, but may be `null`.
    pub items: Items<T>,
}

/// The objects of a page, at most as many as a list may have.
#[derive(Debug)]
pub struct Items<T> {
    /// The objects, in the order of the page.
    pub kept: Vec<T>,
    /// How many objects and parts there are, including those that were left out.
    count: usize,
}

impl<'de, T: Object> Deserialize<'de> for Items<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut items = Self { kept: Vec::new(), count: 0 };
        let left_out = each(from, |object: T| {
            items.count += 1 + object.parts();
            items.kept.push(object);
            items.count <= OBJECTS_LIMIT
        })?;
        items.count += left_out;
        Ok(items)
    }
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
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE", bound = "T: Object")]
pub enum WatchEvent<T> {
    /// An object that is new to the watch.
    Added(T),
    /// An object in its new state.
    Modified(T),
    /// An object in its last state.
    Deleted(T),
    /// A version to resume from; the object has no other field.
    Bookmark(T),
    /// Why the server ends the watch.
    Error(Status),
}

/// What happened to an object.
#[derive(Debug)]
pub(super) enum Change<T> {
    Put(T),
    Remove(T),
}

/// Lists the objects that `selector` selects. Returns them with the version to watch from.
///
/// With version 0 and no `limit` the server answers from its memory, where pods are indexed by node; anything else
/// makes it read every pod in the cluster. The returned state can be older than a state seen before. This is harmless,
/// because an id keeps its names and the watch continues from the returned state.
pub(super) async fn list<T: Object>(client: &Client, selector: &str) -> Result<(Vec<T>, String), Error> {
    let first = [("fieldSelector", selector), ("resourceVersion", "0"), ("resourceVersionMatch", "NotOlderThan")];
    let all_pages = async {
        let (mut all, mut page, mut last) = (Vec::new(), target::<T>(&first), String::new());
        let (mut bytes, mut objects) = (ANSWER_LIMIT, OBJECTS_LIMIT);
        for _ in 0..PAGES_LIMIT {
            let body = body::whole(client.get(&page).await?.into_body(), bytes).await;
            let body = body.map_err(|error| error.of_a_list(ANSWER_LIMIT))?;
            bytes -= body.len();
            let List::<T> { metadata, items } = decode(body, &client.labels).await?;
            objects = objects.checked_sub(items.count).ok_or(Error::TooMany(OBJECTS_LIMIT))?;
            all.extend(items.kept);
            let Some(token) = metadata.next_page.filter(|token| !token.is_empty()) else {
                return Ok((all, version(metadata.resource_version.as_deref())?));
            };
            if token == last || token.len() > LONGEST_TOKEN {
                return Err(Error::Malformed("a page of the list does not lead to the next one".to_owned()));
            }
            page = target::<T>(&[("fieldSelector", selector), ("continue", &token)]);
            last = token;
        }
        Err(Error::Malformed(format!("the list has more than {PAGES_LIMIT} pages")))
    };
    client.in_time(all_pages).await
}

/// An open watch.
#[derive(Debug)]
pub(super) struct Watch<T> {
    lines: Lines<Body>,
    labels: Wanted,
    kind: PhantomData<fn() -> T>,
    /// When the watch counts as dead.
    deadline: Instant,
}

impl<T: Object> Watch<T> {
    /// Opens a watch for the changes since `version`.
    pub(super) async fn open(client: &Client, selector: &str, version: &str) -> Result<Self, Error> {
        let seconds = WATCH_TIMEOUT.as_secs().to_string();
        let target = target::<T>(&[
            ("watch", "true"),
            ("timeoutSeconds", &seconds),
            ("fieldSelector", selector),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
        ]);
        let response = client.in_time(client.get(&target)).await?;
        Ok(Self {
            lines: Lines::new(response.into_body(), WATCH_LIMIT),
            labels: client.labels.clone(),
            kind: PhantomData,
            deadline: Instant::now() + WATCH_TIMEOUT + WATCH_GRACE,
        })
    }

    /// The next change; `None` at the end of the watch. `seen` becomes the version from which the next watch continues.
    pub(super) async fn next(&mut self, seen: &mut String) -> Result<Option<Change<T>>, Error> {
        loop {
            let Ok(line) = timeout_at(self.deadline, self.lines.next()).await else { return Ok(None) };
            let Some(line) = line? else { return Ok(None) };
            match decode::<WatchEvent<T>>(line.into(), &self.labels).await? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    *seen = version(object.version())?;
                    return Ok(Some(Change::Put(object)));
                }
                WatchEvent::Deleted(object) => {
                    *seen = version(object.version())?;
                    return Ok(Some(Change::Remove(object)));
                }
                WatchEvent::Bookmark(object) => *seen = version(object.version())?,
                WatchEvent::Error(status) => return Err(status.into()),
            }
        }
    }
}

/// Returns the version, which must not be missing or empty, so that a request can name it.
fn version(version: Option<&str>) -> Result<String, Error> {
    let version = version.filter(|version| !version.is_empty() && version.len() <= LONGEST_TOKEN);
    version.map(str::to_owned).ok_or_else(|| Error::Malformed("an object without a usable resourceVersion".to_owned()))
}

/// Decodes a text, a long one without delaying the web server, with which the follower shares its thread. Of the labels of
/// pods, `wanted` is kept.
pub(super) async fn decode<T: DeserializeOwned + Send + 'static>(text: Bytes, wanted: &Wanted) -> Result<T, Error> {
    let wanted = wanted.clone();
    let decode = move |text: &[u8]| {
        let decoded = with_wanted(&wanted, || serde_json::from_slice(text));
        decoded.map_err(|error| Error::Malformed(innermost(&error)))
    };
    if text.len() < LONG {
        return decode(&text);
    }
    let decoded = spawn_blocking(move || decode(&text)).await;
    decoded.unwrap_or_else(|died| Err(Error::Malformed(died.to_string())))
}

/// The path and the query of a request for objects.
fn target<T: Object>(parameters: &[(&str, &str)]) -> String {
    let parameter = |(name, value): &(&str, &str)| format!("{name}={}", utf8_percent_encode(value, ESCAPED));
    let query = parameters.iter().map(parameter).collect::<Vec<_>>().join("&");
    format!("{}?{query}", T::PATH)
}
