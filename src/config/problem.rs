//! What can be wrong with a configuration. One problem is one line, and all problems of a run are told together.

use std::fmt;

use super::keys::KEYS;

/// Further problems are only counted: a file of rubbish must not fill the log.
const SHOWN: usize = 20;
/// Longer names and values are cut in messages.
const PREVIEW: usize = 64;

/// Words in the names of other programs' flags, each with the key of the same purpose.
const ELSEWHERE: [(&str, &str); 5] = [
    ("port", LISTEN_ADDRESS),
    ("listen", LISTEN_ADDRESS),
    ("bind", LISTEN_ADDRESS),
    ("verbose", "log.level"),
    ("debug", "log.level"),
];
/// The key that a bare port can be meant for.
pub(super) const LISTEN_ADDRESS: &str = "web.listen-address";

/// Everything that is wrong with the configuration: at least one problem, one line each.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub struct Error {
    problems: Vec<Problem>,
}

/// One thing that is wrong. Its message names the place, the key, the value and what is allowed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Problem {
    /// A value that its key does not allow.
    #[error("{origin}: {key} = {value}: {why}")]
    Value {
        /// Where it was given.
        origin: String,
        /// The key.
        key: &'static str,
        /// The value, cut.
        value: String,
        /// What is allowed.
        why: String,
    },
    /// A key, flag or variable that does not exist.
    #[error("{origin}: unknown {what} {name}{}", hint(nearest))]
    Unknown {
        /// Where it was given.
        origin: String,
        /// Key, flag or environment variable.
        what: &'static str,
        /// The name, cut.
        name: String,
        /// The valid name that is most like it, if one is.
        nearest: Option<String>,
    },
    /// A file, a variable or a command line that cannot be read as a whole.
    #[error("{origin}: {why}")]
    Unreadable {
        /// What cannot be read.
        origin: String,
        /// Why, and the way out.
        why: String,
    },
    /// Two values that do not fit each other.
    #[error("{key} = {value} ({origin}) {why}")]
    Together {
        /// The key to change.
        key: &'static str,
        /// Its value.
        value: String,
        /// Where it was given.
        origin: String,
        /// What it must be, and because of which other key.
        why: String,
    },
}

fn hint(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!("; did you mean \"{name}\"?")).unwrap_or_default()
}

impl Error {
    /// `Ok(value)` where there is no problem.
    pub(super) fn unless_empty<T>(problems: Vec<Problem>, value: impl FnOnce() -> T) -> Result<T, Self> {
        if problems.is_empty() { Ok(value()) } else { Err(Self { problems }) }
    }

    /// The problems in the order: command line, environment, file, what does not fit together.
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

impl Problem {
    /// The key whose value is bad in itself.
    pub(super) fn bad_key(&self) -> Option<&'static str> {
        if let Self::Value { key, .. } = self { Some(key) } else { None }
    }
}

/// Foreign text for a message: quoted, escaped, cut.
pub(super) fn preview(text: &str) -> String {
    let cut: String = text.chars().take(PREVIEW).collect();
    let more = if cut.len() < text.len() { "…" } else { "" };
    format!("{cut:?}{more}")
}

/// The candidate that `name` was most likely meant to be; `None` where none is like it.
pub(super) fn nearest(name: &str, candidates: impl Iterator<Item = String>) -> Option<String> {
    if name.chars().count() > PREVIEW {
        return None;
    }
    candidates
        .map(|candidate| (strsim::osa_distance(name, &candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(2))
        .min()
        .map(|(_, candidate)| candidate)
}

/// The key that `name` was most likely meant to be: a name like it, the only key that ends in it, or what other programs call
/// so.
pub(super) fn nearest_key(name: &str) -> Option<String> {
    let near = nearest(name, KEYS.iter().map(|key| key.name.to_owned())).or_else(|| {
        let mut ends = KEYS.iter().filter(|key| key.parts().1 == name);
        ends.next().filter(|_| ends.next().is_none()).map(|key| key.name.to_owned())
    });
    near.or_else(|| {
        let mut words = name.split(['.', '-', '_']).map(|word| ELSEWHERE.iter().find(|(known, _)| *known == word));
        words.find_map(|found| found.map(|(_, key)| (*key).to_owned()))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found_or_none() {
        for (name, expected) in [
            ("memory.rat", Some("memory.rate")),
            ("memory.idle_rate", Some("memory.idle-rate")),
            ("memroy.rate", Some("memory.rate")),
            ("linger", Some("process.linger")),
            ("interval", None),
            ("gremlins", None),
            ("port", Some("web.listen-address")),
            ("web.listen_port", Some("web.listen-address")),
            ("verbose", Some("log.level")),
            ("report", None),
        ] {
            assert_eq!(nearest_key(name).as_deref(), expected, "{name}");
        }
        assert_eq!(nearest_key(&"x".repeat(1_000_000)), None);
    }

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
