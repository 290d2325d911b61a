//! Checks that each pattern of `metrics.include` and `metrics.exclude` matches a family.

use anyhow::{Result, bail};
use glob::Pattern;

use super::settings;
use crate::config::{self, Config};

/// Checks the patterns against the exporter's own families and, if `dcgm.listen-address` is set, those that it serves.
///
/// # Errors
/// When a pattern matches no family: one line for each of them. When the list of dcgm-exporter's fields is refused.
pub(super) fn check(config: &Config) -> Result<()> {
    let lists = [("metrics.include", &config.metrics.include), ("metrics.exclude", &config.metrics.exclude)];
    if lists.iter().all(|(_, list)| list.is_empty()) {
        return Ok(());
    }
    let mut known: Vec<String> = gpu_metrics::families().map(|family| family.name.to_owned()).collect();
    if let Some(dcgm) = settings::dcgm(config)? {
        known.extend(dcgm.collectors.families().map(str::to_owned));
    }
    let matches_any =
        |text: &str| Pattern::new(text).is_ok_and(|pattern| known.iter().any(|name| pattern.matches(name)));
    let mut unmatched = Vec::new();
    for (key, list) in lists {
        for text in list.iter().filter(|text| !matches_any(text)) {
            let hint = nearest(text, &known).map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
            unmatched.push(format!("{key} = \"{text}\": matches no family that is served (docs/metrics.md){hint}"));
        }
    }
    if !unmatched.is_empty() {
        bail!(unmatched.join("\n"));
    }
    Ok(())
}

/// The name most similar to the pattern, or the beginning of a name, up to an underscore, followed by an asterisk.
fn nearest(text: &str, known: &[String]) -> Option<String> {
    let beginnings =
        known.iter().flat_map(|name| name.match_indices('_').map(move |(at, _)| format!("{}*", &name[..=at])));
    let candidates: Vec<String> = if text.contains('*') { beginnings.collect() } else { known.to_vec() };
    config::nearest(text, candidates.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_or_beginning_is_suggested() {
        let known = ["gpu_memory_used_bytes", "gpu_memory_free_bytes", "gpu_up"].map(str::to_owned);
        for (text, expected) in [
            ("gpu_memory_used_byte", Some("gpu_memory_used_bytes")),
            ("gpu_memmory_*", Some("gpu_memory_*")),
            ("gpu_op", Some("gpu_up")),
            ("node_cpu_seconds_total", None),
        ] {
            assert_eq!(nearest(text, &known).as_deref(), expected, "{text}");
        }
    }
}
