//! The output of `--print-config`, and the reference in `docs/configuration.md`. Both come from the table of keys, and
//! the printed configuration can be read back as a file.

use std::fmt::Write as _;

use super::command::EXTRAS;
use super::environment::CONFIG_FILE;
use super::keys::{Key, SECTIONS, keys};
use super::layers::Layer;
use super::setting::Kind;

/// The effective configuration as a commented TOML file: each key with its help, its default and its origin.
pub(super) fn toml(effective: &Layer) -> String {
    let mut out = String::from("# The configuration of vram-exporter.\n");
    for (section, title) in SECTIONS {
        // Writing into a String cannot fail.
        let _ = writeln!(out, "\n# {title}\n[{section}]");
        for key in keys().filter(|key| key.parts().0 == *section) {
            out.push('\n');
            for line in wrap(&key.full_help(), 110) {
                let _ = writeln!(out, "# {line}");
            }
            let (value, origin) = effective.get(key.name);
            let _ = writeln!(out, "# Default: {}. Set by: {origin}.", key.default.unwrap_or("not set"));
            let _ = writeln!(out, "{}", assignment(key, value));
        }
    }
    out
}

fn assignment(key: &Key, value: Option<&str>) -> String {
    let leaf = key.parts().1;
    let Some(value) = value else { return format!("# {leaf} =") };
    let is_default = || key.default_setting().is_some_and(|default| default.toml == value);
    match (&key.kind, key.default) {
        // A default is printed as in the table: 60s rather than 1m.
        (Kind::Duration(..), Some(text)) if is_default() => format!("{leaf} = \"{text}\""),
        _ => format!("{leaf} = {value}"),
    }
}

/// The configuration reference, in Markdown.
pub fn reference() -> String {
    let mut out = String::from(
        "# Configuration\n\n\
         <!-- Generated from the table in src/config/keys.rs; `UPDATE_GOLDEN=1 cargo test --test it config` updates it. -->\n\n\
         Every key can be set in four places. Later places win:\n\n\
         1. the default,\n\
         2. the configuration file, TOML or YAML by its extension, at most 1 MiB: `rate = 100` under `[memory]`,\n\
         3. the environment: `VRAM_EXPORTER_MEMORY_RATE=100`,\n\
         4. the command line: `--memory.rate=100`.\n\n\
         Durations have a unit: `10ms`, `1m30s`, `2h`. Give several addresses as a list in a file, a repeated flag,\n\
         or comma-separated text. Empty text unsets a key without a default. YAML anchors and aliases\n\
         are not allowed.\n\n\
         An unknown key, flag or `VRAM_EXPORTER_` variable, a value of the wrong type and an impossible value are errors:\n\
         the exporter reports all of them and exits with code 64. The variables that Kubernetes sets for a Service whose\n\
         name begins with `vram-exporter`, those of the Python client and `VRAM_EXPORTER_GPU_MEMORY_LIMIT` are ignored.\n\n\
         `--check-config` checks a configuration without running it, with the files and folders that it names. What the exporter\n\
         starts without (a folder for incidents that is absent, a field of dcgm.collectors-file that is not served) is a warning on\n\
         standard error. `--print-config` prints the effective one with\n\
         the origin of each value; its output is a valid configuration file.\n",
    );
    for (section, title) in SECTIONS {
        let _ = writeln!(out, "\n## {title}: `{section}`\n");
        out.push_str("| key | default | value | meaning |\n|---|---|---|---|\n");
        for key in keys().filter(|key| key.parts().0 == *section) {
            let default = key.default.map_or("not set".to_owned(), |text| format!("`{text}`"));
            let (allowed, help) = (key.kind.described().1, key.help);
            let names = format!("`{}`<br>`{}`", key.name, key.variable());
            let _ = writeln!(out, "| {names} | {default} | {allowed} | {help} |");
        }
    }
    out.push_str("\n## Other flags\n\n| flag | meaning |\n|---|---|\n");
    for (name, value, help) in EXTRAS {
        let value = match (*name, value) {
            ("demo", Some(value)) => format!("[={value}]"),
            (_, Some(value)) => format!("={value}"),
            (_, None) => String::new(),
        };
        let help = help.replace(&format!("[env: {CONFIG_FILE}]"), &format!("Also `{CONFIG_FILE}`."));
        let _ = writeln!(out, "| `--{name}{value}` | {help} |");
    }
    let _ = writeln!(out, "\n## The defaults as a file\n\n```toml\n{}```", toml(&Layer::defaults()));
    out
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}
