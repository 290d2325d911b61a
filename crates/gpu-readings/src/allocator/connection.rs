//! Serves one process: reads its lines, one after another, until it or the exporter ends the connection.
//!
//! Invariants: the memory of a connection is bounded; all connections together use a bounded number of threads; a client that sends nothing or reads nothing delays nobody, and
//! the connection's values are removed when it ends.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, Semaphore};

use super::credentials::{Peer, Start, StartTicks, start_ticks};
use super::limits;
use super::message::{self, LONGEST_LINE, Message, Question, VERSION, VERSION_WITH_QUESTIONS};
use super::outcome::Outcomes;
use super::question::{self, Questions, Refusal};
use super::table::{Table, Turn};
use crate::faults::{Faults, Reason, Source};
use crate::snapshot::{ProcessId, Snapshot};

/// The state that all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) table: Mutex<Table>,
    /// Is never locked together with the table.
    pub(super) questions: Mutex<Questions>,
    /// Something in the table has changed.
    pub(super) changed: Notify,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) faults: Arc<Faults>,
    pub(super) sites: bool,
    pub(super) start_ticks: StartTicks,
    /// Grants the identifications of all users.
    pub(super) identifying: Arc<Semaphore>,
    pub(super) outcomes: Option<Outcomes>,
}

/// A place among the connections. Dropping it removes the connection's values.
#[derive(Debug)]
pub(super) struct Slot {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shared.close(self.id);
        self.shared.changed.notify_one();
    }
}

/// Why the exporter ends a connection, or refuses a message. No text from the client is repeated.
#[derive(Debug, thiserror::Error)]
#[error("process {}: {why}", pid.map_or_else(|| "outside the pid namespace".to_owned(), |pid| pid.to_string()))]
struct Refused {
    pid: Option<u32>,
    why: String,
}

/// The end of a connection.
enum End {
    /// The client ended it.
    ByClient,
    /// The client sent something that ends it.
    Refused(Reason, String),
}

impl Shared {
    /// Admits a connection, or counts a fault and closes it.
    pub(super) fn admit(self: &Arc<Self>, stream: &UnixStream) -> Option<(Slot, Peer)> {
        let peer = match Peer::of(stream) {
            Ok(peer) => peer,
            Err(error) => {
                self.faults.raise(Source::Allocator, Reason::Connection, None, &error);
                return None;
            }
        };
        let Some(id) = self.table.lock().admit(peer.uid, Instant::now()) else {
            self.refuse(stream, peer, Reason::TooManyConnections, "there are too many connections");
            return None;
        };
        Some((Slot { shared: self.clone(), id }, peer))
    }

    /// Removes a connection with its values, and hands over its outcomes if `outcomes` is set.
    pub(super) fn close(&self, id: u64) {
        self.questions.lock().disconnect(id);
        let closed = self.table.lock().close(id);
        if let Some((outcomes, closed)) = self.outcomes.as_ref().zip(closed) {
            outcomes.take(closed.outcomes());
        }
    }

    /// Serves a connection until either side ends it.
    pub(super) async fn serve(self: Arc<Self>, stream: UnixStream, slot: Slot, peer: Peer) {
        let (from, to) = stream.into_split();
        let (mut from, to) = (BufReader::with_capacity(LONGEST_LINE, from), Arc::new(to));
        if let End::Refused(reason, why) = self.follow(&mut from, &to, slot.id, peer).await {
            self.refuse((*to).as_ref(), peer, reason, &why);
        }
    }

    async fn follow(&self, from: &mut Lines, to: &Arc<OwnedWriteHalf>, id: u64, peer: Peer) -> End {
        let stream: &UnixStream = (**to).as_ref();
        let deadline = tokio::time::Instant::now() + limits::HELLO_WITHIN;
        let Ok(identified) = tokio::time::timeout_at(deadline, self.identify(stream, id, peer)).await else {
            let why = "the start time of the process could not be read in time";
            return End::Refused(Reason::UnknownProcess, why.to_owned());
        };
        let Some(process) = identified else {
            let why = "the exporter does not see the process in its pid namespace and path.procfs";
            return End::Refused(Reason::UnknownProcess, why.to_owned());
        };
        if let Err(reason) = self.table.lock().identify(id, process) {
            return End::Refused(reason, "the process has too many connections".to_owned());
        }
        let mut line = Vec::new();
        let hello = tokio::time::timeout_at(deadline, next_line(from, &mut line)).await;
        let hello = hello.unwrap_or(Ok(Line::TooLate));
        let version = match hello.map(|read| (read, message::parse(&line))) {
            Ok((Line::Whole, Ok(Message::Hello { version: version @ (VERSION | VERSION_WITH_QUESTIONS) }))) => version,
            Ok((Line::Whole, Ok(Message::Question(asked)))) if asked.version == VERSION_WITH_QUESTIONS => {
                return self.answer(&asked, peer.uid, from, stream).await;
            }
            Ok((Line::Whole, Ok(Message::Hello { version } | Message::Question(Question { version, .. })))) => {
                let supported = format!("versions {VERSION} and {VERSION_WITH_QUESTIONS}");
                let why = format!("version {version} is not supported; this exporter supports {supported}");
                return End::Refused(Reason::UnsupportedVersion, why);
            }
            Ok((Line::Whole, Err(invalid))) => return End::Refused(Reason::InvalidMessage, invalid.to_string()),
            Ok((Line::TooLong, _)) => return too_long(),
            Ok((Line::Whole | Line::TooLate, _)) => {
                return End::Refused(Reason::UnsupportedVersion, "the first message is not hello".to_owned());
            }
            Ok((Line::End, _)) | Err(_) => return End::ByClient,
        };
        reply(stream, &json!({ "type": "welcome", "version": version, "interval_seconds": 0.2 }));
        self.table.lock().hear(id, Instant::now());
        let asked_here = (version == VERSION_WITH_QUESTIONS).then(|| to.clone());
        self.questions.lock().connect(id, process, peer.uid, asked_here);
        loop {
            match next_line(from, &mut line).await {
                Ok(Line::Whole) => {}
                Ok(Line::TooLong) => return too_long(),
                Ok(Line::End | Line::TooLate) | Err(_) => return End::ByClient,
            }
            if let Err(end) = self.take(&line, id, peer).await {
                return end;
            }
        }
    }

    /// Answers a question about a process.
    async fn answer(&self, asked: &Question, uid: u32, from: &mut Lines, to: &UnixStream) -> End {
        let answered = if self.sites {
            let limit = Duration::from_secs(asked.seconds) + limits::ANSWER_WITHIN;
            question::ask(&self.questions, asked, uid, from, to, limit).await
        } else {
            Err(Refusal::SitesOff)
        };
        match answered {
            Ok(()) => {}
            Err(refusal @ Refusal::SecondMessage) => {
                return End::Refused(Reason::InvalidMessage, refusal.to_string());
            }
            Err(refusal) => {
                let (reason, why) = (refusal.label(), refusal.to_string());
                let version = VERSION_WITH_QUESTIONS;
                reply(to, &json!({ "type": "error", "version": version, "reason": reason, "message": why }));
            }
        }
        End::ByClient
    }

    /// The process; `None` if the connection cannot be served.
    async fn identify(&self, stream: &UnixStream, id: u64, peer: Peer) -> Option<ProcessId> {
        let pid = peer.pid?;
        let of_user = self.table.lock().identifying(id)?;
        // The user's own turn comes first, so that at most one connection of a user waits for a turn among all.
        let permits = (of_user.acquire_owned().await.ok()?, self.identifying.clone().acquire_owned().await.ok()?);
        match start_ticks(stream, pid, &self.start_ticks, permits).await {
            Start::Known(process) => Some(process),
            // The values of such a process are never shown, but its connection has outcomes.
            Start::Ended if self.outcomes.is_some() => Some(ProcessId { pid, start_ticks: None }),
            Start::Ended | Start::Unknown => None,
        }
    }

    /// Processes one line. An error ends the connection.
    async fn take(&self, line: &[u8], id: u64, peer: Peer) -> Result<(), End> {
        loop {
            let turn = self.table.lock().turn(id, Instant::now());
            match turn {
                Turn::Read => break,
                Turn::Wait => tokio::time::sleep(limits::PAUSE).await,
                Turn::Drop => {
                    self.complain(peer.pid, Reason::TooManyMessages, "more than 200 messages in a second");
                    // Dropping messages must not take up the exporter's time, so further ones wait in the socket.
                    tokio::time::sleep(limits::PAUSE).await;
                    return Ok(());
                }
            }
        }
        let message =
            message::parse(line).map_err(|invalid| End::Refused(Reason::InvalidMessage, invalid.to_string()))?;
        let now = Instant::now();
        let mut table = self.table.lock();
        let was_stale = table.hear(id, now);
        let taken = match &message {
            Message::Hello { version: VERSION | VERSION_WITH_QUESTIONS }
            | Message::Alive
            | Message::Question(_)
            | Message::LeakSites(_)
            | Message::Answered(_)
            | Message::Unknown => Ok(was_stale),
            Message::Hello { version } => {
                return Err(End::Refused(Reason::UnsupportedVersion, format!("version {version} after the beginning")));
            }
            Message::Report(report) => table.report(id, report, now).map(|()| true),
            Message::Measurement(measured) => table.measure(id, measured).map(|()| true),
            Message::Sites(looked) if self.sites => table.look(id, looked, now).map(|()| true),
            // Only an incident shows what grew and the modules.
            Message::Growth(growth) if self.sites => table.grow(id, growth).map(|()| was_stale),
            Message::Modules(divided) if self.sites => table.divide(id, divided).map(|()| was_stale),
            Message::Sites(_) | Message::Growth(_) | Message::Modules(_) => Ok(was_stale),
            Message::OutOfMemory(failed) => table.failure(id, failed, self.sites, now).map(|failed| {
                self.snapshot.feed.add_failure(failed);
                was_stale
            }),
        };
        drop(table);
        let taken = match &message {
            Message::LeakSites(part) => self.questions.lock().take(id, part).map(|()| was_stale),
            Message::Answered(answered) => {
                self.questions.lock().finish(id, answered);
                taken
            }
            _ => taken,
        };
        match taken {
            Ok(true) => self.changed.notify_one(),
            Ok(false) => {}
            Err(reason) => self.complain(peer.pid, reason, explain(reason)),
        }
        Ok(())
    }

    /// Counts a fault and tells the client why its connection ends, if its socket has room for that.
    fn refuse(&self, stream: &UnixStream, peer: Peer, reason: Reason, why: &str) {
        self.complain(peer.pid, reason, why);
        reply(stream, &json!({ "type": "error", "version": VERSION, "reason": reason.label(), "message": why }));
    }

    /// Counts a fault of a process.
    pub(super) fn complain(&self, pid: Option<u32>, reason: Reason, why: &str) {
        self.faults.raise(Source::Allocator, reason, None, &Refused { pid, why: why.to_owned() });
    }
}

fn explain(reason: Reason) -> &'static str {
    match reason {
        Reason::Inconsistent => "a report contradicts itself or an earlier one",
        Reason::TooManyKeys => "too many devices, frameworks or regions",
        Reason::TooManyMessages => "too many failed allocations",
        _ => "a message is refused",
    }
}

fn too_long() -> End {
    End::Refused(Reason::MessageTooLong, format!("a line has more than {LONGEST_LINE} bytes"))
}

/// Where the lines of a connection come from.
type Lines = BufReader<OwnedReadHalf>;

/// What was read.
enum Line {
    /// A line, without its line break.
    Whole,
    /// More than [`LONGEST_LINE`] bytes without a line break.
    TooLong,
    /// No complete line arrived in time.
    TooLate,
    /// The client has closed the connection. An unfinished line is dropped.
    End,
}

/// Reads the next line into `line`.
async fn next_line(from: &mut Lines, line: &mut Vec<u8>) -> io::Result<Line> {
    line.clear();
    from.take(LONGEST_LINE as u64 + 1).read_until(b'\n', line).await?;
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Line::Whole);
    }
    Ok(if line.len() > LONGEST_LINE { Line::TooLong } else { Line::End })
}

/// Sends a line, unless the client's socket has no room for it, which can happen because a client need not read.
fn reply(stream: &UnixStream, message: &serde_json::Value) {
    let _ = stream.try_write(format!("{message}\n").as_bytes());
}
