//! The driver of `cargo test`: the seeds, the kept cases, and inputs made from them and from nothing.
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

/// The longest input that is made from nothing, in bytes.
const LONGEST: usize = 400;
/// How many changes are made to a seed at most.
const EDITS: usize = 8;

/// One change of a seed: where, and what. 0 to 255 replaces a byte, more inserts one, and the rest cuts the input there.
type Edit = (Index, u16);

/// Runs the trial on every seed and kept case of the target below `root`, and on `cases` generated inputs. Returns how many
/// of the generated ones the trial said got anywhere; one that breaks what must hold is made small and fails the test.
pub(crate) fn drive(root: &str, target: &str, cases: u32, trial: fn(&[u8]) -> bool) -> u32 {
    let seeds = inputs(&Path::new(root).join("fuzz/seeds").join(target));
    assert!(!seeds.is_empty(), "{target} has no seeds");
    for (name, seed) in &seeds {
        assert!(trial(seed), "the seed {name} gets nowhere");
    }
    for (_, case) in inputs(&Path::new(root).join("tests/fixtures/fuzz").join(target)) {
        trial(&case);
    }
    let reached = Cell::new(0);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let seeds: Vec<Vec<u8>> = seeds.into_iter().map(|(_, seed)| seed).collect();
    let run = runner.run(&generated(seeds), |input| {
        reached.set(reached.get() + u32::from(trial(&input)));
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{target}: {failure}"));
    reached.get()
}

fn inputs(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| (file.display().to_string(), fs::read(&file).unwrap())).collect()
}

fn generated(seeds: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let pieces = (Just(super::PIECES), vec(any::<u8>(), 0..LONGEST)).prop_map(|(first, mut rest)| {
        rest.insert(0, first);
        rest
    });
    let edits = vec((any::<Index>(), 0..600_u16), 0..EDITS);
    prop_oneof![
        1 => vec(any::<u8>(), 0..LONGEST),
        4 => pieces,
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
