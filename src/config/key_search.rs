//! Finds a key by its name, or the key that was most likely meant by a wrong name.

use super::key::Key;
use super::keys::{LISTEN_ADDRESS, keys};
use super::problem::nearest;

/// Words in the names of other programs' flags, each with the key that serves the same purpose.
const ELSEWHERE: [(&str, &str); 5] = [
    ("port", LISTEN_ADDRESS),
    ("listen", LISTEN_ADDRESS),
    ("bind", LISTEN_ADDRESS),
    ("verbose", "log.level"),
    ("debug", "log.level"),
];

impl Key {
    /// The key with that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        keys().find(|key| key.name == name)
    }

    /// The key most likely meant by an unknown name: a key with a similar name, otherwise the only key that ends in the
    /// unknown name, otherwise the key that `ELSEWHERE` gives for a word in the unknown name.
    pub(super) fn nearest(name: &str) -> Option<&'static Self> {
        let similar = nearest(name, keys().map(|key| key.name.to_owned())).and_then(|near| Self::find(&near));
        let ending = || {
            let mut ends = keys().filter(|key| key.parts().1 == name);
            ends.next().filter(|_| ends.next().is_none())
        };
        let elsewhere = || {
            let mut words = name.split(['.', '-', '_']);
            let (_, key) = words.find_map(|word| ELSEWHERE.iter().find(|(known, _)| *known == word))?;
            Self::find(key)
        };
        similar.or_else(ending).or_else(elsewhere)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_found_or_none() {
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
            assert_eq!(Key::nearest(name).map(|key| key.name), expected, "{name}");
        }
        assert!(Key::nearest(&"x".repeat(1_000_000)).is_none());
    }
}
