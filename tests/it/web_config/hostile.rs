//! Whatever bytes a file or a header contains, the result is a verdict, with a message of at most one short line, and
//! never a panic.

use std::fs;

use axum::http::{HeaderMap, HeaderValue, header};
use proptest::prelude::*;
use web_config::{Guard, Refusal};

use super::pki::{Pki, fixtures, open};

/// Checks a file with these bytes. A refusal has a short message of one line.
fn check(pki: &Pki, bytes: &[u8]) {
    let file = pki.at("hostile.yml");
    fs::write(&file, bytes).unwrap();
    if let Err(error) = Guard::check(&file) {
        let error = error.to_string();
        assert!(error.len() < 2000 && !error.chars().any(char::is_control), "{error:?}");
    }
}

#[test]
fn files_of_any_bytes_are_accepted_or_refused() {
    let pki = Pki::new();
    proptest!(ProptestConfig::with_cases(256), |(bytes in proptest::collection::vec(any::<u8>(), 0..600))| {
        check(&pki, &bytes);
    });
    let marks = "[-{}\\[\\]:,&*!|>'\"%@`#? \na-c0-9\u{e9}\u{0}]{0,120}";
    proptest!(ProptestConfig::with_cases(256), |(text in marks)| check(&pki, text.as_bytes()));
}

#[test]
fn files_with_an_error_anywhere_are_accepted_or_refused() {
    let pki = Pki::new();
    let texts: Vec<Vec<u8>> = fs::read_dir(fixtures())
        .unwrap()
        .map(|entry| fs::read(pki.config(&fs::read_to_string(entry.unwrap().path()).unwrap())).unwrap())
        .collect();
    let edits = proptest::collection::vec((any::<prop::sample::Index>(), any::<Option<u8>>()), 1..4);
    proptest!(ProptestConfig::with_cases(512), |(which in any::<prop::sample::Index>(), edits in edits)| {
        let mut bytes = which.get(&texts).clone();
        for (at, byte) in &edits {
            match byte {
                Some(byte) => bytes.insert(at.index(bytes.len() + 1), *byte),
                None if bytes.is_empty() => {}
                None => drop(bytes.remove(at.index(bytes.len()))),
            }
        }
        check(&pki, &bytes);
    });
}

#[test]
fn headers_of_any_bytes_admit_no_client() {
    let pki = Pki::new();
    let guard = open(&pki.fixture("users.good.yml")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let values = prop_oneof!["Basic [A-Za-z0-9+/]{0,40}={0,3}", "[ -~]{0,60}", "[Bb]asic[ \t]*[ -~]{0,20}"];
    proptest!(ProptestConfig::with_cases(128), |(value in values)| {
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(&value).unwrap())]);
        prop_assert_eq!(runtime.block_on(guard.admit(&headers)), Err(Refusal::Unauthorized));
    });
}
