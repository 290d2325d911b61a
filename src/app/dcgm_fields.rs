//! What a list of the fields of dcgm-exporter would not serve, and why.

use std::borrow::Cow;

use anyhow::Result;

use crate::config::Config;
use crate::dcgm::Collectors;

/// How many names of fields are logged.
const NAMED: usize = 50;

/// Logs how many fields are served, and what is not served and why.
pub(super) fn log(config: &Config, list: &Collectors) {
    for warning in warnings_about(config, list) {
        tracing::warn!("{warning}");
    }
    tracing::info!(fields = list.len(), "serving the families of dcgm-exporter");
}

/// What a list would not serve; empty without a list of the user's own.
///
/// # Errors
/// When the collectors file is refused.
pub(super) fn warnings(config: &Config) -> Result<Vec<String>> {
    let list = config.dcgm.collectors_file.as_deref().map(Collectors::from_file).transpose()?;
    Ok(list.map(|list| warnings_about(config, &list)).unwrap_or_default())
}

fn warnings_about(config: &Config, list: &Collectors) -> Vec<String> {
    let mut warnings = Vec::new();
    // The user did not write the default list, so its fields need no warning.
    let listed = list.switched().filter(|_| config.dcgm.collectors_file.is_some());
    let switched_off = listed.filter(|(_, switch)| !(switch.is_on)(config));
    let switched_off = switched_off.map(|(name, switch)| (name, Cow::Owned(format!("it needs {}=true", switch.key))));
    let unserved: Vec<_> = list.unserved().map(|(name, why)| (name, Cow::Borrowed(why))).chain(switched_off).collect();
    if !unserved.is_empty() {
        let fields = joined(unserved.iter().map(|(name, why)| format!("{name} ({why})")));
        warnings.push(format!(
            "dcgm.collectors-file: these fields are not served; remove their lines, set the named keys, or see \
             docs/from-dcgm.md: {fields}"
        ));
    }
    if !list.repeated().is_empty() {
        let lines = list.repeated().iter();
        let lines =
            joined(lines.map(|again| format!("{} (line {}, first in {})", again.name, again.line, again.first)));
        warnings.push(format!(
            "dcgm.collectors-file: these lines repeat a field and are ignored, the first line of a field counts; remove \
             them: {lines}"
        ));
    }
    if list.is_empty() {
        warnings.push(
            "dcgm.collectors-file: it lists no family that is served, so /metrics of dcgm.listen-address is empty"
                .to_owned(),
        );
    }
    warnings
}

/// The first names, and how many more there are.
fn joined(names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let mut text = names.take(NAMED).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(", and {more} more"));
    }
    text
}
