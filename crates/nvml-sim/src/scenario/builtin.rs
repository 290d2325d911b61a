//! The scenarios built into the library.

macro_rules! scenarios {
    ($($name:literal),* $(,)?) => {
        const ALL: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../scenarios/", $name, ".toml")))),*];
    };
}

scenarios![
    "demo",
    "idle-h200",
    "busy-h200",
    "eight-h200",
    "mig-a100",
    "mig-h100",
    "mixed",
    "old-driver",
    "unified-memory",
    "gb10",
    "throttled",
    "dra",
    "hostile-names",
];

/// The text of a built-in scenario.
pub(crate) fn find(name: &str) -> Option<&'static str> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// All names.
pub(crate) fn all() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// What a built-in scenario is, in one sentence: the first sentence of its file.
pub(crate) fn describe(name: &str) -> Option<&'static str> {
    let comment = find(name)?.lines().next()?.strip_prefix("# ")?;
    Some(comment.find(". ").map_or(comment, |end| &comment[..=end]))
}

/// All names, for a message.
pub(crate) fn names() -> String {
    all().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::{ALL, describe};

    #[test]
    fn every_built_in_scenario_makes_a_machine() {
        for (name, _) in ALL {
            let source = crate::scenario::load(name).unwrap_or_else(|problem| panic!("{problem}"));
            let machine = crate::machine::Machine::build(&source, None).unwrap_or_else(|problem| panic!("{problem}"));
            assert!(!machine.gpus.is_empty(), "{name}");
        }
    }

    #[test]
    fn every_file_begins_with_a_sentence() {
        for (name, _) in ALL {
            let sentence = describe(name).unwrap_or_else(|| panic!("{name} does not begin with a comment"));
            assert!(sentence.ends_with('.') && !sentence.contains(". "), "{name}: {sentence}");
        }
        assert_eq!(describe("idle-h200"), Some("One H200 on which nothing runs."));
        assert_eq!(describe("nonsense"), None);
    }
}
