//! Questions about the call sites of a process: who may ask, which connection is asked, and where its answer goes.
//!
//! Invariants: only root and the user of the process may ask. The number of questions, their answers and their time are bounded,
//! and neither side can make anyone but the other side wait. What a process sends is never passed on as it came. A question ends
//! with either of its connections.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::limits;
use super::message::{Answered, LONGEST_LINE, LeakSites, Question};
use crate::faults::Reason;
use crate::snapshot::ProcessId;

/// Which users the kernel shows as this one: `nobody`, and all that the exporter's user namespace does not contain.
const UNKNOWN_USER: u32 = 65534;

/// The processes that can be asked, and the open questions.
#[derive(Debug, Default)]
pub(super) struct Questions {
    /// By the numbers of their connections, which are those of the table.
    clients: BTreeMap<u64, Client>,
    /// By the numbers of the questions.
    open: HashMap<u64, Open>,
    next: u64,
}

/// A connection that reports.
#[derive(Debug)]
struct Client {
    process: ProcessId,
    uid: u32,
    /// Where a question is written; `None` if the client does not support questions.
    to: Option<Arc<OwnedWriteHalf>>,
}

#[derive(Debug)]
struct Open {
    client: u64,
    /// The user who asks.
    uid: u32,
    lines: Sender<Line>,
    /// How many parts of an answer were accepted.
    parts: usize,
}

/// A line for the asker.
#[derive(Debug)]
struct Line {
    text: String,
    is_last: bool,
}

/// Why a question has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the exporter takes in no call sites; set allocator.sites")]
    SitesOff,
    #[error("the process does not report to this exporter")]
    NotReporting,
    #[error("only root and the user of the process may ask")]
    NotPermitted,
    #[error("the process does not look for call sites, or its client is older than this question")]
    NotSupported,
    #[error("another question about the process is open")]
    Busy,
    #[error("too many questions are open")]
    TooMany,
    #[error("the process does not read its connection")]
    NotReading,
    #[error("the process ended its connection before it answered")]
    Ended,
    #[error("the process did not answer in time")]
    NoAnswer,
    #[error("the asker sent a second message")]
    SecondMessage,
}

impl Refusal {
    /// The word for programs.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::SitesOff => "sites_off",
            Self::NotReporting => "not_reporting",
            Self::NotPermitted => "not_permitted",
            Self::NotSupported => "not_supported",
            Self::Busy => "busy",
            Self::TooMany => "too_many_questions",
            Self::NotReading => "not_reading",
            Self::Ended => "ended",
            Self::NoAnswer => "no_answer",
            Self::SecondMessage => Reason::InvalidMessage.label(),
        }
    }
}

impl Questions {
    /// Adds a connection that reports. `to` is where a question is written; `None` if the client does not support questions.
    pub(super) fn connect(&mut self, id: u64, process: ProcessId, uid: u32, to: Option<Arc<OwnedWriteHalf>>) {
        self.clients.insert(id, Client { process, uid, to });
    }

    /// Removes a connection and ends its question.
    pub(super) fn disconnect(&mut self, id: u64) {
        self.clients.remove(&id);
        self.open.retain(|_, open| open.client != id);
    }

    /// Puts a question of the user `uid` to the process. Returns its number and the lines of the answer.
    fn open(&mut self, question: &Question, uid: u32) -> Result<(u64, Receiver<Line>), Refusal> {
        let latest = self.clients.values().rev().find(|client| client.process.pid == question.pid);
        let latest = latest.ok_or(Refusal::NotReporting)?;
        let is_permitted = |client: &Client| uid == 0 || (uid == client.uid && uid != UNKNOWN_USER);
        if !is_permitted(latest) {
            return Err(Refusal::NotPermitted);
        }
        let is_asked = |client: &Client| client.process == latest.process && is_permitted(client);
        let (id, to) = (self.clients.iter().rev())
            .find_map(|(id, client)| Some((*id, client.to.as_ref().filter(|_| is_asked(client))?)))
            .ok_or(Refusal::NotSupported)?;
        let is_same = |open: &Open| self.clients.get(&open.client).is_some_and(|asked| asked.process == latest.process);
        if self.open.values().any(is_same) {
            return Err(Refusal::Busy);
        }
        let of_user = self.open.values().filter(|open| open.uid == uid).count();
        if self.open.len() >= limits::QUESTIONS || of_user >= limits::QUESTIONS_OF_USER {
            return Err(Refusal::TooMany);
        }
        let number = self.next + 1;
        let (seconds, looks) = (question.seconds, question.looks);
        if !tell(to, &json!({ "type": "leaks", "id": number, "seconds": seconds, "looks": looks })) {
            return Err(Refusal::NotReading);
        }
        self.next = number;
        // With room for every line, so that the process never waits for the asker.
        let (lines, answer) = channel(limits::PARTS + 1);
        self.open.insert(number, Open { client: id, uid, lines, parts: 0 });
        Ok((number, answer))
    }

    /// Takes a part of an answer. One to a question that is not open is ignored, because its asker may have left.
    ///
    /// # Errors
    /// When there are too many parts, or the part would be too long for a line.
    pub(super) fn take(&mut self, client: u64, part: &LeakSites<'_>) -> Result<(), Reason> {
        let Some(open) = self.open.get_mut(&part.id).filter(|open| open.client == client) else { return Ok(()) };
        if open.parts >= limits::PARTS {
            return Err(Reason::TooManyKeys);
        }
        open.parts += 1;
        open.send(part, false)
    }

    /// Takes the end of an answer.
    pub(super) fn finish(&mut self, client: u64, answered: &Answered<'_>) {
        if self.open.get(&answered.id).is_some_and(|open| open.client == client)
            && let Some(open) = self.open.remove(&answered.id)
        {
            // It is short, and the last one of the lines for which there is room.
            let _ = open.send(answered, true);
        }
    }

    /// Ends a question. If it is still open, the process gets a message to stop looking.
    fn close(&mut self, number: u64) {
        let client = self.open.remove(&number).and_then(|open| self.clients.get(&open.client));
        if let Some(to) = client.and_then(|client| client.to.as_ref()) {
            tell(to, &json!({ "type": "stop", "id": number }));
        }
    }
}

impl Open {
    /// Writes a message again and leaves it to the asker's task.
    fn send(&self, message: &impl Serialize, is_last: bool) -> Result<(), Reason> {
        // What was written in a short form, such as an array in place of an object, becomes longer.
        let text = serde_json::to_string(message).ok().filter(|text| text.len() <= LONGEST_LINE);
        let line = Line { text: text.ok_or(Reason::MessageTooLong)? + "\n", is_last };
        // It fails only if the asker has left.
        let _ = self.lines.try_send(line);
        Ok(())
    }
}

/// An open question. Dropping it ends the question.
struct Place<'a> {
    questions: &'a Mutex<Questions>,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.questions.lock().close(self.number);
    }
}

/// Puts a question of the user `uid`, and passes on the answer until it is complete, the asker leaves, or `limit` has passed.
///
/// # Errors
/// When there is no answer, or only a part of it.
pub(super) async fn ask(
    questions: &Mutex<Questions>,
    question: &Question,
    uid: u32,
    from: &mut (impl AsyncRead + Unpin),
    to: &UnixStream,
    limit: Duration,
) -> Result<(), Refusal> {
    let (number, mut lines) = questions.lock().open(question, uid)?;
    let place = Place { questions, number };
    let passing = async {
        while let Some(Line { text, is_last }) = lines.recv().await {
            // An asker that has left is noticed below.
            if send(to, text.as_bytes()).await.is_err() || is_last {
                return Ok(());
            }
        }
        Err(Refusal::Ended)
    };
    let mut more = [0];
    let ended = tokio::select! {
        passed = tokio::time::timeout(limit, passing) => passed.unwrap_or(Err(Refusal::NoAnswer)),
        read = from.read(&mut more) => if read.is_ok_and(|length| length > 0) { Err(Refusal::SecondMessage) } else { Ok(()) },
    };
    drop(place);
    ended
}

/// Sends a text; waits for a reader that is slow.
async fn send(to: &UnixStream, mut text: &[u8]) -> io::Result<()> {
    while !text.is_empty() {
        to.writable().await?;
        match to.try_write(text) {
            Ok(sent) => text = &text[sent..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends a line to a process. Returns whether its socket had room for it.
fn tell(to: &OwnedWriteHalf, message: &serde_json::Value) -> bool {
    let line = format!("{message}\n");
    to.try_write(line.as_bytes()).is_ok_and(|sent| sent == line.len())
}

#[cfg(test)]
mod tests;
