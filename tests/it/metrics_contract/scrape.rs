//! The exposition of a hand-built machine, read by the strict reader.

use std::collections::BTreeSet;

use exposition::{Family, Series};

/// An exposition.
#[derive(Debug)]
pub(crate) struct Scrape {
    pub(crate) families: Vec<Family>,
}

impl Scrape {
    pub(crate) fn parse(text: &str) -> Self {
        Self { families: exposition::read(text) }
    }

    pub(crate) fn series(&self) -> impl Iterator<Item = &Series> {
        self.families.iter().flat_map(|family| &family.series)
    }

    pub(crate) fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Series> {
        self.series().filter(move |series| series.name == name)
    }

    pub(crate) fn count(&self, name: &str) -> usize {
        self.of(name).count()
    }

    /// The value of the one series with this name and these labels.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> &str {
        let found: Vec<_> = self.series().filter(|series| series.name == name && series.has(labels)).collect();
        assert_eq!(found.len(), 1, "{name}{labels:?}: {found:?}");
        &found[0].value
    }

    pub(crate) fn names(&self) -> BTreeSet<&str> {
        self.families.iter().map(|family| family.name.as_str()).collect()
    }

    /// The names of the series with this label.
    pub(crate) fn with(&self, label: &str, value: &str) -> BTreeSet<&str> {
        self.series().filter(|series| series.has(&[(label, value)])).map(|series| series.name.as_str()).collect()
    }

    pub(crate) fn starting(&self, prefix: &str) -> Vec<&str> {
        self.names().into_iter().filter(|name| name.starts_with(prefix)).collect()
    }
}
