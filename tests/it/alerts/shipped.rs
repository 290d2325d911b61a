//! The shipped files for Prometheus.

use std::path::{Path, PathBuf};

/// A file's name and text.
pub(crate) type File = (String, String);

pub(crate) fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus").join(path)
}

/// The shipped rule files.
pub(crate) fn rules() -> Vec<File> {
    let files = std::fs::read_dir(shipped("rules")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "yml")).collect();
    files.sort();
    assert!(!files.is_empty(), "no rules in {}", shipped("rules").display());
    let file = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    files.iter().map(file).collect()
}
