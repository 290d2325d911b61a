//! Runs a property on its seeds, its saved cases and generated inputs.
//!
//! Invariant: two runs of the same source try the same inputs.

use std::cell::Cell;
use std::fs;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any};
use proptest::prop_oneof;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use properties::choices::CHOICES;

/// The longest input that is not made from a seed, in bytes.
const LONGEST: usize = 400;
/// The highest number of changes made to a seed.
const EDITS: usize = 8;

/// One change to a seed: the position, and what happens there. 0 to 255 replaces the byte, 256 to 511 inserts one,
/// anything above truncates the input.
type Edit = (Index, u16);

/// Runs the property on every seed and saved case of the target and on `cases` generated inputs, of which more than
/// `least` must get past the parser. A generated input that breaks the property is shrunk and fails the test.
pub(crate) fn run(target: &str, cases: u32, property: fn(&[u8]) -> bool, least: u32) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let seeds = inputs(&root.join("fuzz/seeds").join(target));
    assert!(!seeds.is_empty(), "{target} has no seeds");
    for (name, seed) in &seeds {
        assert!(property(seed), "the seed {name} does not get past the parser");
    }
    for (_, case) in inputs(&root.join("tests/fixtures/fuzz").join(target)) {
        property(&case);
    }
    let passed = Cell::new(0);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let seeds: Vec<Vec<u8>> = seeds.into_iter().map(|(_, seed)| seed).collect();
    let outcome = runner.run(&generated(seeds), |input| {
        passed.set(passed.get() + u32::from(property(&input)));
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{target}: {failure}"));
    assert!(passed.get() > least, "{target}: only {} of {cases} generated inputs get past the parser", passed.get());
}

fn inputs(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| (file.display().to_string(), fs::read(&file).unwrap())).collect()
}

fn generated(seeds: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let choices = (Just(CHOICES), vec(any::<u8>(), 0..LONGEST)).prop_map(|(first, mut rest)| {
        rest.insert(0, first);
        rest
    });
    let edits = vec((any::<Index>(), 0..600_u16), 0..EDITS);
    prop_oneof![
        1 => vec(any::<u8>(), 0..LONGEST),
        4 => choices,
        4 => (select(seeds), edits).prop_map(|(seed, edits)| edits.iter().fold(seed, edited)),
    ]
}

fn edited(mut input: Vec<u8>, (index, what): &Edit) -> Vec<u8> {
    let at = index.index(input.len() + 1);
    match (u8::try_from(*what), u8::try_from(what.saturating_sub(256)), input.get_mut(at)) {
        (Ok(byte), _, Some(there)) => *there = byte,
        (Ok(byte), _, None) | (Err(_), Ok(byte), _) => input.insert(at, byte),
        (Err(_), Err(_), _) => input.truncate(at),
    }
    input
}
