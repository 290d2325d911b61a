//! Checks that each pattern of `metrics.include` and `metrics.exclude` matches a family.

use glob::Pattern;

use crate::config::Config;
use crate::dcgm;
use crate::metrics;

use super::settings;

/// Patterns that match no family, one line each.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct Unmatched(Vec<String>);

/// Checks the patterns against the exporter's own families and, if `dcgm.listen-address` is set, those that it serves.
///
/// # Errors
/// When a pattern matches no family.
pub(super) fn check(config: &Config) -> Result<(), SelectionError> {
    let lists = [("metrics.include", &config.metrics.include), ("metrics.exclude", &config.metrics.exclude)];
    if lists.iter().all(|(_, list)| list.is_empty()) {
        return Ok(());
    }
    let mut known: Vec<String> = metrics::families().map(|family| family.name.to_owned()).collect();
    if let Some(dcgm) = settings::dcgm(config)? {
        known.extend(dcgm.collectors.families().map(str::to_owned));
    }
    let mut unmatched = Vec::new();
    for (key, list) in lists {
        for text in list.iter().filter(|text| !matches_any(text, &known)) {
            let hint = nearest(text, &known).map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
            unmatched.push(format!("{key} = \"{text}\": matches no family that is served (docs/metrics.md){hint}"));
        }
    }
    if unmatched.is_empty() { Ok(()) } else { Err(Unmatched(unmatched).into()) }
}

/// Why the patterns cannot be checked, or what is wrong with them.
#[derive(Debug, thiserror::Error)]
pub enum SelectionError {
    /// Patterns match no family.
    #[error(transparent)]
    Unmatched(#[from] Unmatched),
    /// The list of fields for dcgm-exporter's families is refused.
    #[error(transparent)]
    Collectors(#[from] dcgm::Error),
}

fn matches_any(text: &str, known: &[String]) -> bool {
    Pattern::new(text).is_ok_and(|pattern| known.iter().any(|name| pattern.matches(name)))
}

/// The name most similar to the pattern, or the beginning of a name, up to an underscore, followed by an asterisk.
fn nearest(text: &str, known: &[String]) -> Option<String> {
    let beginnings =
        known.iter().flat_map(|name| name.match_indices('_').map(move |(at, _)| format!("{}*", &name[..=at])));
    let candidates: Vec<String> = if text.contains('*') { beginnings.collect() } else { known.to_vec() };
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(text, &candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(2))
        .min()
        .map(|(_, candidate)| candidate)
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
