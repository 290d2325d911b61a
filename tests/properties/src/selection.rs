//! Any `metrics.include` and `metrics.exclude`: the families shown are exactly those that the patterns choose from the
//! whole exposition, in both formats.

mod glob;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use exposition::{Family, open_metrics, read};
use gpu_metrics::{Format, Metrics, Settings, families};
use gpu_readings::faults::Faults;
use gpu_readings::snapshot::Snapshot;
use vram_exporter::config::{Command, load};
use vram_exporter::internals::metrics_settings;

use crate::choices::{Choose, Unstructured, choices};
use crate::exposition::{settings, varies};
use crate::machine::{Names, publish};
use glob::Glob;

/// Fewer families than this in the whole exposition would leave too little to choose from.
const FEWEST: usize = 40;

/// One machine for all runs, used by one run at a time, and the metrics that show all families.
static MACHINE: LazyLock<Mutex<(Arc<Snapshot>, Arc<Metrics>)>> = LazyLock::new(|| {
    let snapshot = Snapshot::new();
    let metrics = metrics(&snapshot, settings());
    Mutex::new((snapshot, metrics))
});

fn metrics(snapshot: &Arc<Snapshot>, settings: Settings) -> Arc<Metrics> {
    let metrics = Metrics::new(snapshot.clone(), Arc::new(Faults::default()), settings);
    Arc::new(metrics.expect("the table of families is sound"))
}

/// Shows a machine with a selection. In plain input, each line is `include PATTERNS` or `exclude PATTERNS`. True if the
/// configuration accepts the patterns, and there are any.
pub fn selection(data: &[u8]) -> bool {
    let flags = choices(data).map_or_else(|| plain(data), |mut u| arbitrary(&mut u));
    let arguments = [b"vram-exporter".to_vec()].into_iter().chain(flags).map(OsString::from_vec);
    let Ok(Command::Run(config)) = load(arguments, std::iter::empty::<(OsString, OsString)>()) else { return false };
    let globs = |texts: &[String]| texts.iter().map(|text| Glob::of(text)).collect::<Vec<_>>();
    let (include, exclude) = (globs(&config.metrics.include), globs(&config.metrics.exclude));
    let chosen = |name: &str| {
        (include.is_empty() || include.iter().any(|glob| glob.matches(name)))
            && !exclude.iter().any(|glob| glob.matches(name))
    };

    let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let (snapshot, whole) = &*machine;
    publish(&mut Names::of(b"a name"), snapshot);
    let selection = metrics_settings(&config, Some(true)).selection;
    let mut hidden: Vec<_> = families().map(|family| family.name).filter(|name| !chosen(name)).collect();
    hidden.sort_unstable();
    assert_eq!(selection.left_out(), hidden, "{:?} without {:?}", config.metrics.include, config.metrics.exclude);
    let part = metrics(snapshot, Settings { selection, ..settings() });

    let all = text_of(whole);
    let all = read(&all);
    assert!(all.len() >= FEWEST, "only {} families to choose from", all.len());
    let expected: Vec<_> = all.into_iter().filter(|family| chosen(&family.name)).collect();
    let text = text_of(&part);
    let open = part.encode(Format::OpenMetrics).expect("any selection can be written");
    let open = String::from_utf8(open).expect("the text is UTF-8");
    if expected.is_empty() {
        assert_eq!((text.as_str(), open.as_str()), ("", "# EOF\n"));
    } else {
        let shown = read(&text);
        assert_same(&expected, &shown);
        open_metrics::assert_same(&shown, &open_metrics::read(&open), varies);
    }
    !(include.is_empty() && exclude.is_empty())
}

/// A scrape, received in chunks.
fn text_of(metrics: &Arc<Metrics>) -> String {
    let mut text = Vec::new();
    let scrape = metrics.scrape(Format::Text).expect("any selection can be written");
    scrape.in_chunks(|chunk| {
        text.extend_from_slice(&chunk);
        true
    });
    String::from_utf8(text).expect("the text is UTF-8")
}

/// The same families in the same order with the same series, except for values that change between two expositions.
fn assert_same(expected: &[Family], shown: &[Family]) {
    let names = |families: &[Family]| families.iter().map(|family| family.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(expected), names(shown));
    for (expected, shown) in expected.iter().zip(shown) {
        assert_eq!((&expected.kind, &expected.help), (&shown.kind, &shown.help), "{}", shown.name);
        assert_eq!(expected.series.len(), shown.series.len(), "{}", shown.name);
        for (expected, shown) in expected.series.iter().zip(&shown.series) {
            assert_eq!((&expected.name, &expected.labels), (&shown.name, &shown.labels));
            let may_differ = varies(&shown.name) || shown.name == "vram_exporter_scrapes_total";
            assert!(expected.value == shown.value || may_differ, "{expected:?} {shown:?}");
        }
    }
}

fn plain(data: &[u8]) -> Vec<Vec<u8>> {
    let flag = |line: &[u8]| {
        let at = line.iter().position(|byte| *byte == b' ')?;
        let key = ["include", "exclude"].into_iter().find(|key| key.as_bytes() == &line[..at])?;
        Some(flag(key, &line[at + 1..]))
    };
    data.split(|byte| *byte == b'\n').filter_map(flag).collect()
}

fn arbitrary(u: &mut Unstructured<'_>) -> Vec<Vec<u8>> {
    let names: Vec<_> = families().map(|family| family.name).collect();
    let mut flags = Vec::new();
    for key in ["include", "exclude"] {
        for _ in 0..u.below(4) {
            let patterns: Vec<_> = (0..1 + u.below(3)).map(|_| pattern(u, &names)).collect();
            flags.push(flag(key, patterns.join(",").as_bytes()));
        }
    }
    flags
}

/// An argument cannot contain a zero byte.
fn flag(key: &str, patterns: &[u8]) -> Vec<u8> {
    let patterns = patterns.iter().copied().filter(|byte| *byte != 0);
    format!("--metrics.{key}=").into_bytes().into_iter().chain(patterns).collect()
}

/// The name of a family, of which a part is replaced, so that the pattern matches this family, several, or none.
fn pattern(u: &mut Unstructured<'_>, names: &[&str]) -> String {
    let name = u.pick(names);
    let (from, to) = (u.below(name.len()), u.below(name.len()));
    let (from, to) = (from.min(to), from.max(to));
    let (start, middle, end) = (&name[..from], &name[from..=to], &name[to + 1..]);
    if u.once_in(20) {
        return u.text(12);
    }
    match u.below(8) {
        0 => name.to_owned(),
        1 => format!("{start}*"),
        2 => format!("*{end}"),
        3 => format!("*{middle}*"),
        4 => format!("{start}*{end}"),
        5 => format!("{start}{}{end}", "?".repeat(middle.len())),
        6 => format!("{start}[{}{middle}]*", u.pick(&["", "!", "a-m", "]"])),
        _ => format!("{start}{}*{end}", u.text(2)),
    }
}
