//! The problems with a configuration. Each is one line, and all problems in a run are reported together.

use std::fmt;

use crate::text;

/// The maximum number of problems that are shown; further ones are only counted, so that a file of random bytes does
/// not fill the log.
const SHOWN: usize = 20;
/// The maximum number of characters of a name or value that a message shows.
const PREVIEW: usize = 64;
/// The maximum number of characters of a parser's message.
pub(super) const MESSAGE: usize = 320;

/// Everything that is wrong with the configuration: at least one problem, one line each.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub struct Error {
    problems: Vec<Problem>,
}

/// One problem. Its message names the origin, the key, the value and what is allowed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Problem {
    /// A value that its key does not allow.
    #[error("{origin}: {key} = {value}: {why}")]
    Value {
        /// The origin of the value.
        origin: String,
        /// The key.
        key: &'static str,
        /// The value, shortened.
        value: String,
        /// What is allowed.
        why: String,
    },
    /// A key, flag or variable that does not exist.
    #[error("{origin}: unknown {what} {name}{}", hint(nearest))]
    Unknown {
        /// The origin of the value.
        origin: String,
        /// Key, flag or environment variable.
        what: &'static str,
        /// The name, shortened.
        name: String,
        /// The most similar valid name, if one is similar.
        nearest: Option<String>,
    },
    /// A file, a variable or a command line that cannot be read as a whole.
    #[error("{origin}: {why}")]
    Unreadable {
        /// What cannot be read.
        origin: String,
        /// Why, and what to do.
        why: String,
    },
    /// Two values that contradict each other.
    #[error("{key} = {value} ({origin}) {why}")]
    Together {
        /// The key to change.
        key: &'static str,
        /// Its value.
        value: String,
        /// The origin of the value.
        origin: String,
        /// What it must be, and the other key that requires this.
        why: String,
    },
}

fn hint(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!("; did you mean \"{name}\"?")).unwrap_or_default()
}

impl Error {
    /// `Ok(value)` if there is no problem.
    pub(super) fn unless_empty<T>(problems: Vec<Problem>, value: impl FnOnce() -> T) -> Result<T, Self> {
        if problems.is_empty() { Ok(value()) } else { Err(Self { problems }) }
    }

    /// The problems in this order: command line, environment, file, contradictions.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().take(SHOWN).enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        match self.problems.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

/// Untrusted text for a message: quoted, escaped and shortened.
pub(super) fn preview(text: &str) -> String {
    text::quoted(text, PREVIEW)
}

/// The candidate most similar to `name`; `None` if none is similar.
pub(crate) fn nearest(name: &str, candidates: impl Iterator<Item = String>) -> Option<String> {
    if name.chars().count() > PREVIEW {
        return None;
    }
    candidates
        .map(|candidate| (strsim::osa_distance(name, &candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(2))
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_stays_on_one_short_line() {
        let shown = preview(&"a\n\u{1b}[31m\"".repeat(1000));
        assert!(shown.len() < 4 * PREVIEW && !shown.contains(char::is_control), "{shown}");
    }

    #[test]
    fn many_problems_are_counted() {
        let one = Problem::Unreadable { origin: "x".into(), why: "y".into() };
        let error = Error::unless_empty(vec![one; 500], || ()).unwrap_err();
        assert_eq!(error.to_string().lines().count(), SHOWN + 1);
        assert!(error.to_string().ends_with("and 480 more"));
    }
}
