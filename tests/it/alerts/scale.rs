//! The shipped Prometheus files on a faster clock: what takes minutes in production takes seconds in a test.
//!
//! Every time is divided by one factor, and every per-second value is multiplied by it. In a rule file these are
//!
//! - `interval` of a group, `for` and `keep_firing_for` of an alert,
//! - in an expression, each range, offset and step of a subquery (`[5m]`, `offset 5m`, `[1h:1m]`),
//! - in an expression, each number that is in seconds (`predict_linear(x[30m], 3600)`, `idle_seconds > 3600`,
//!   `deriv(x[30m]) * 3600`) or is a rate (`deriv(x[30m]) > 1048576`); `promql.rs` describes how they are recognized.
//!
//! In a scrape configuration they are `scrape_interval` and `evaluation_interval`, each 1 minute if it is not set.
//! Prometheus' lookback of 5 minutes, which a flag sets, is scaled with them. `scrape_timeout` becomes the whole scaled
//! interval, the most that Prometheus accepts, because a response still takes as long as before.
//!
//! The text is changed in place, so that everything else stays as shipped, byte for byte: names, order, labels,
//! annotations and comments.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;

use super::outline::{Entry, Outline};
use super::promql::{Recorded, Time, times};

/// A rule file: its name and content.
pub(crate) type File = (String, String);

/// The rule files with every time divided by the factor. They are scaled together, because one file may use a series
/// that another one records.
///
/// # Panics
/// If a file is not in the style of this repository's rule files.
pub(crate) fn scale_rules(files: &[File], factor: u32) -> Vec<File> {
    let outlines: Vec<Outline> = files.iter().map(|(_, text)| Outline::of(text)).collect();
    let mut recorded = Recorded::new();
    // Rules may use series that any file records, so this is repeated until nothing changes.
    loop {
        let before = recorded.clone();
        for ((_, text), outline) in files.iter().zip(&outlines) {
            for (name, range) in &outline.expressions {
                let (_, power) = times(&text[range.clone()], &recorded);
                name.iter().for_each(|name| _ = recorded.insert(name.clone(), power));
            }
        }
        if recorded == before {
            break;
        }
    }
    let scaled =
        |((name, text), outline): (&File, &Outline)| (name.clone(), divide_times(outline, text, &recorded, factor));
    files.iter().zip(&outlines).map(scaled).collect()
}

/// The scrape configuration with its intervals divided by the factor, and these targets in place of its own.
///
/// # Panics
/// If it does not have exactly one scrape job with static targets.
pub(crate) fn scale_scrape(text: &str, targets: &[SocketAddr], factor: u32) -> String {
    let mut scaled = String::new();
    let mut interval = String::new();
    let mut replaced = 0;
    for line in text.split_inclusive('\n') {
        let Some((key, value)) = Entry::of(line, 0).map(|entry| (entry.key, &line[entry.value])) else {
            if line.trim_start() == "- localhost:9836\n" {
                let indent = &line[..line.len() - line.trim_start().len()];
                targets.iter().for_each(|target| scaled += &format!("{indent}- {target}\n"));
                replaced += 1;
            } else {
                scaled += line;
            }
            continue;
        };
        let line = match key {
            "scrape_interval" | "evaluation_interval" => {
                let shorter = divide_duration(value, factor);
                if key == "scrape_interval" {
                    interval.clone_from(&shorter);
                }
                line.replace(value, &shorter)
            }
            "scrape_timeout" if factor > 1 => line.replace(value, &interval),
            "global" if !text.contains("evaluation_interval:") => {
                format!("{line}  evaluation_interval: {}\n", divide_duration("1m", factor))
            }
            _ => line.to_owned(),
        };
        scaled += &line;
    }
    assert_eq!(replaced, 1, "one list of targets in {text}");
    scaled
}

/// How far Prometheus looks back for a sample: 5 minutes, unless scaled.
pub(crate) fn lookback(factor: u32) -> String {
    divide_duration("5m", factor)
}

/// A Prometheus duration, divided but never shorter than 1 ms; its text is kept if the value stays the same.
pub(crate) fn divide_duration(duration: &str, factor: u32) -> String {
    let whole = milliseconds(duration);
    let part = (whole / u64::from(factor)).max(1);
    match part {
        _ if part == whole => duration.to_owned(),
        _ if part.is_multiple_of(1000) => format!("{}s", part / 1000),
        _ => format!("{part}ms"),
    }
}

/// `1h30m` in milliseconds.
pub(crate) fn milliseconds(duration: &str) -> u64 {
    let mut rest = duration;
    let mut sum = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
        let letters = rest[digits..].find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len() - digits);
        let each = match &rest[digits..digits + letters] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            _ => panic!("`{duration}` is not a duration"),
        };
        sum += rest[..digits].parse::<u64>().unwrap_or_else(|_| panic!("`{duration}` is not a duration")) * each;
        rest = &rest[digits + letters..];
    }
    sum
}

/// The text with the numbers at these places divided.
fn divide_times(outline: &Outline, text: &str, recorded: &Recorded, factor: u32) -> String {
    let divide = |range: Range<usize>| (range.start, (range.clone(), divide_duration(&text[range], factor)));
    let mut edits: BTreeMap<usize, (Range<usize>, String)> = outline.durations.iter().cloned().map(divide).collect();
    for (_, expression) in &outline.expressions {
        let absolute = |range: Range<usize>| expression.start + range.start..expression.start + range.end;
        for time in times(&text[expression.clone()], recorded).0 {
            let (start, edit) = match time {
                Time::Duration(range) => divide(absolute(range)),
                Time::Number(range, power) => {
                    let range = absolute(range);
                    (range.start, (range.clone(), divide_number(&text[range], factor, power)))
                }
            };
            edits.insert(start, edit);
        }
    }
    let mut scaled = text.to_owned();
    for (range, new) in edits.into_values().rev() {
        scaled.replace_range(range, &new);
    }
    scaled
}

/// Divides a number by `factor` to the power of `power`, the exponent of time in the number's unit; returns the
/// original text if the value does not change.
fn divide_number(number: &str, factor: u32, power: i32) -> String {
    let whole: f64 = number.parse().unwrap_or_else(|_| panic!("`{number}` is not a number"));
    let part = whole / f64::from(factor).powi(power);
    if part == whole { number.to_owned() } else { part.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "\
groups:
  - name: a # every 1m
    interval: 1m
    rules:
      - record: gpu:idle:min
        expr: min by (gpu) (gpu_process_idle_seconds)

      - alert: Idle
        expr: |
          gpu:idle:min > 3600
          # not in the first 10m
            and on (gpu) max_over_time(used_bytes[30m] offset 10m) > 1073741824
        for: 5m # long
        keep_firing_for: 90s
        annotations:
          summary: Idle for: 5m, and [5m] is no range
          description: >-
            Waited
            for: 5m
";

    #[test]
    fn times_of_a_rule_file_are_divided_and_nothing_else_changes() {
        let expected = RULES
            .replace("interval: 1m", "interval: 1s")
            .replace("> 3600", "> 60")
            .replace("[30m] offset 10m", "[30s] offset 10s")
            .replace("for: 5m # long", "for: 5s # long")
            .replace("keep_firing_for: 90s", "keep_firing_for: 1500ms");
        let file = ("a.yml".to_owned(), RULES.to_owned());
        assert_eq!(scale_rules(std::slice::from_ref(&file), 60), [("a.yml".to_owned(), expected)]);
        assert_eq!(scale_rules(std::slice::from_ref(&file), 1), [file]);
    }

    #[test]
    fn a_series_that_another_file_records_keeps_its_power_of_time() {
        let rule = |kind: &str, expr: &str| {
            format!("groups:\n  - name: a\n    rules:\n      - {kind}: b\n        expr: {expr}\n")
        };
        let uses = ("a.yml".to_owned(), rule("alert", "b / 2 > 600"));
        let records = ("b.yml".to_owned(), rule("record", "time() - started_seconds"));
        let scaled = scale_rules(&[uses, records], 60);
        assert!(scaled[0].1.ends_with("expr: b / 2 > 10\n"), "{}", scaled[0].1);
    }

    #[test]
    fn a_scrape_configuration_gets_other_targets_and_intervals() {
        let config = "\
global:
  scrape_interval: 15s
scrape_configs:
  - job_name: a
    scrape_timeout: 5s # short
    static_configs:
      - targets:
          - localhost:9836
";
        let targets = [SocketAddr::from(([127, 0, 0, 1], 1)), SocketAddr::from(([127, 0, 0, 1], 2))];
        let expected = config
            .replace("global:\n", "global:\n  evaluation_interval: 1s\n")
            .replace("15s", "250ms")
            .replace("5s #", "250ms #")
            .replace("- localhost:9836", "- 127.0.0.1:1\n          - 127.0.0.1:2");
        assert_eq!(scale_scrape(config, &targets, 60), expected);
        let one = scale_scrape(config, &["127.0.0.1:9836".parse().unwrap()], 1);
        let same =
            config.replace("localhost", "127.0.0.1").replace("global:\n", "global:\n  evaluation_interval: 1m\n");
        assert_eq!(one, same);
    }

    #[test]
    fn durations_add_up_and_are_never_nothing() {
        assert_eq!(milliseconds("1h30m"), 5_400_000);
        assert_eq!(milliseconds("1d2s5ms"), 86_402_005);
        for (whole, part) in [("1h", "60s"), ("15s", "250ms"), ("5ms", "1ms"), ("1m30s", "1500ms")] {
            assert_eq!(divide_duration(whole, 60), part);
        }
    }
}
