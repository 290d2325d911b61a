//! Opens the guard of the web server, and logs and counts what it reports.

use std::path::Path;
use std::sync::Arc;

use web_config::{ErrorKind, Event, Guard};

use crate::faults::{Faults, Reason, Source};

/// Opens the guard of a web-config file; if there is no file, opens a guard that admits every request.
///
/// # Errors
/// When the file, or a file that it names, is refused.
pub(super) fn open(file: Option<&Path>, faults: Arc<Faults>) -> Result<Guard, web_config::Error> {
    Guard::open(file, move |event| record(&faults, event))
}

fn record(faults: &Faults, event: Event<'_>) {
    match event {
        Event::Accepted(summary) => {
            tracing::info!(settings = %summary, "web-config read");
            summary.notes.iter().for_each(|note| tracing::warn!(note, "web-config"));
        }
        Event::Refused(error) => {
            let reason = match error.kind() {
                ErrorKind::Unreadable => Reason::Unreadable,
                ErrorKind::Invalid => Reason::Malformed,
            };
            faults.raise(Source::WebConfig, reason, None, error);
        }
        Event::Panicked(error) => faults.raise(Source::WebConfig, Reason::Panicked, None, error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_event_is_counted_under_its_own_reason() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("web.yml");
        std::fs::write(&file, "").unwrap();
        let faults = Arc::new(Faults::default());
        let guard = open(Some(&file), faults.clone()).unwrap();
        let counts =
            || [Reason::Malformed, Reason::Unreadable, Reason::Panicked].map(|r| faults.count(Source::WebConfig, r));
        assert_eq!(counts(), [0, 0, 0]);
        std::fs::write(&file, "nonsense: true\n").unwrap();
        assert!(guard.reload().is_err());
        assert_eq!(counts(), [1, 0, 0]);
        std::fs::remove_file(&file).unwrap();
        assert!(guard.reload().is_err());
        assert_eq!(counts(), [1, 1, 0]);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let panicked = runtime.block_on(async { tokio::spawn(async { panic!("on purpose") }).await }).unwrap_err();
        record(&faults, Event::Panicked(&panicked));
        assert_eq!(counts(), [1, 1, 1]);
    }
}
