//! Where the log goes: to standard error. If systemd's journal reads standard error, each line begins with its priority, as
//! sd-daemon(3) describes: `<4>` for a warning.
//!
//! Invariant: an event is written with one call, so that the lines of two threads do not mix.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// The name of the variable in which systemd describes the stream that the journal reads.
const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

/// Standard error, with or without priorities.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogOutput {
    /// Whether the journal reads it.
    journal: bool,
}

/// Writes one event.
#[derive(Debug)]
pub(super) struct Event {
    /// What the line begins with; empty without the journal, and once it has been written.
    prefix: &'static str,
}

/// Writes a message of the program to standard error, such as the error that ends it: one line for each line of `text`.
pub fn say(text: &str) {
    let prefix = LogOutput::new().prefix(Level::ERROR);
    let lines: String = format!("vram-exporter: {text}").lines().map(|line| format!("{prefix}{line}\n")).collect();
    // If standard error is closed, there is nowhere left to write to.
    let _ = io::stderr().lock().write_all(lines.as_bytes());
}

impl LogOutput {
    /// The standard error of this process.
    pub(super) fn new() -> Self {
        Self { journal: is_stream(std::env::var(JOURNAL_STREAM).ok().as_deref(), &io::stderr()) }
    }

    fn prefix(self, level: Level) -> &'static str {
        match (self.journal, level) {
            (false, _) => "",
            (true, Level::ERROR) => "<3>",
            (true, Level::WARN) => "<4>",
            (true, Level::INFO) => "<6>",
            (true, Level::DEBUG | Level::TRACE) => "<7>",
        }
    }
}

impl MakeWriter<'_> for LogOutput {
    type Writer = Event;

    fn make_writer(&self) -> Event {
        Event { prefix: self.prefix(Level::INFO) }
    }

    fn make_writer_for(&self, event: &Metadata<'_>) -> Event {
        Event { prefix: self.prefix(*event.level()) }
    }
}

impl Write for Event {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let line = [std::mem::take(&mut self.prefix).as_bytes(), text].concat();
        io::stderr().lock().write_all(&line)?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}

/// Whether `output` is the stream that `JOURNAL_STREAM` describes by its device and inode. A process that redirects its
/// output inherits the variable, but not the stream.
fn is_stream(described: Option<&str>, output: &impl AsFd) -> bool {
    let Some((device, inode)) = described.and_then(|text| text.split_once(':')) else { return false };
    let copy = output.as_fd().try_clone_to_owned();
    let Ok(metadata) = copy.and_then(|copy| File::from(copy).metadata()) else { return false };
    device.parse() == Ok(metadata.dev()) && inode.parse() == Ok(metadata.ino())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn only_the_described_stream_is_the_journal() {
        let (file, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let metadata = file.metadata().unwrap();
        let described = format!("{}:{}", metadata.dev(), metadata.ino());
        assert!(is_stream(Some(&described), &file));
        assert!(!is_stream(Some(&described), &other));
        for text in [None, Some(""), Some(":"), Some("8"), Some("8:x")] {
            assert!(!is_stream(text, &file), "{text:?}");
        }
    }

    #[test]
    fn each_level_has_the_priority_of_syslog() {
        let of = |journal| {
            [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE]
                .map(|level| LogOutput { journal }.prefix(level))
        };
        assert_eq!(of(true), ["<3>", "<4>", "<6>", "<7>", "<7>"]);
        assert_eq!(of(false), [""; 5]);
    }
}
