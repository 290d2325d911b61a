//! The layer of environment variables. A variable with the exporter's prefix is a key, is set by another program for a
//! known reason, or is an error.

use std::ffi::OsString;
use std::path::PathBuf;

use super::key::PREFIX;
use super::keys::{Key, keys};
use super::layers::Layer;
use super::problem::{Problem, nearest, preview};

/// The variable that names the configuration file.
pub(super) const CONFIG_FILE: &str = "VRAM_EXPORTER_CONFIG_FILE";
/// The variables of the programs that are measured: those of the Python client, and the limit that a program declares.
/// `vram run` passes them on, and a container image may set them for every program.
const OF_PROGRAMS: [&str; 4] =
    ["VRAM_EXPORTER_ARM", "VRAM_EXPORTER_GPU_MEMORY_LIMIT", "VRAM_EXPORTER_INTERVAL", "VRAM_EXPORTER_SOCKET"];

/// The settings from the environment.
#[derive(Default)]
pub(super) struct Environment {
    pub(super) layer: Layer,
    /// [`CONFIG_FILE`]; absent if it is empty.
    pub(super) config_file: Option<PathBuf>,
}

/// Reads the variables with the exporter's prefix and leaves all others alone.
pub(super) fn read(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    problems: &mut Vec<Problem>,
) -> Environment {
    let mut environment = Environment::default();
    let mut variables: Vec<_> =
        variables.into_iter().filter(|(name, _)| name.as_encoded_bytes().starts_with(PREFIX.as_bytes())).collect();
    variables.sort_unstable();
    for (name, value) in variables {
        let name = name.to_string_lossy();
        if name == CONFIG_FILE {
            environment.config_file = Some(PathBuf::from(value)).filter(|path| !path.as_os_str().is_empty());
            continue;
        }
        let Some(key) = keys().find(|key| key.variable() == name) else {
            if !is_foreign(&name, &value.to_string_lossy()) {
                problems.push(unknown(&name));
            }
            continue;
        };
        let shown = key.kind.shown(&value.to_string_lossy());
        let read = match value.to_str() {
            Some(text) => key.read_text(text),
            None => Err("is not UTF-8 text".to_owned()),
        };
        environment.layer.take(key, read, &format!("environment variable {name}"), shown, problems);
    }
    environment
}

fn unknown(name: &str) -> Problem {
    // Compared without the prefix, which all of them have.
    let bare = |name: &str| name.trim_start_matches(PREFIX).to_owned();
    let names = keys().map(|key| bare(&key.variable())).chain([bare(CONFIG_FILE)]);
    let elsewhere = || Key::nearest(&bare(name).to_lowercase()).map(Key::variable);
    Problem::Unknown {
        origin: "environment".to_owned(),
        what: "variable",
        nearest: nearest(&bare(name), names).map(|near| format!("{PREFIX}{near}")).or_else(elsewhere),
        name: preview(name),
    }
}

/// Whether this variable has the exporter's prefix but is set by another program: Kubernetes sets such variables in
/// every container for a Service whose name begins with `vram-exporter` (documented under "Service environment
/// variables"), the programs that are measured have variables of their own, and tests set some too.
fn is_foreign(name: &str, value: &str) -> bool {
    // Begins with the last underscore of the prefix, so that a Service named exactly vram-exporter matches too.
    let rest = &name[PREFIX.len() - 1..];
    let service = rest.ends_with("_SERVICE_HOST") || rest.ends_with("_SERVICE_PORT") || rest.contains("_SERVICE_PORT_");
    let port_address = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let numbered = rest.match_indices("_PORT_").any(|(at, found)| {
        let (number, protocol) = rest[at + found.len()..].split_once('_').unwrap_or_default();
        number.parse::<u16>().is_ok() && ["TCP", "UDP", "SCTP"].iter().any(|name| protocol.starts_with(name))
    });
    let kubernetes = service || numbered || (rest.ends_with("_PORT") && port_address);
    rest.starts_with("_TEST_") || OF_PROGRAMS.contains(&name) || kubernetes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_links_are_foreign_and_keys_are_not() {
        for (name, value) in [
            ("VRAM_EXPORTER_SOCKET", "/run/vram-exporter/allocator.sock"),
            ("VRAM_EXPORTER_ARM", "1"),
            ("VRAM_EXPORTER_GPU_MEMORY_LIMIT", "20Gi"),
            ("VRAM_EXPORTER_PORT", "tcp://10.0.0.1:9836"),
            ("VRAM_EXPORTER_SERVICE_HOST", "10.0.0.1"),
            ("VRAM_EXPORTER_SERVICE_PORT", "9836"),
            ("VRAM_EXPORTER_SERVICE_PORT_METRICS", "9836"),
            ("VRAM_EXPORTER_PORT_9836_TCP", "tcp://10.0.0.1:9836"),
            ("VRAM_EXPORTER_PORT_9836_TCP_PROTO", "tcp"),
            ("VRAM_EXPORTER_PORT_9836_TCP_PORT", "9836"),
            ("VRAM_EXPORTER_PORT_9836_TCP_ADDR", "10.0.0.1"),
            ("VRAM_EXPORTER_CANARY_PORT", "tcp://10.0.0.2:9836"),
            ("VRAM_EXPORTER_CANARY_PORT_9836_TCP_ADDR", "10.0.0.2"),
            ("VRAM_EXPORTER_CANARY_SERVICE_HOST", "10.0.0.2"),
            ("VRAM_EXPORTER_TEST_SLOW", "1"),
        ] {
            assert!(is_foreign(name, value), "{name}");
        }
        for key in keys() {
            assert!(!is_foreign(&key.variable(), "tcp://x"), "{}", key.name);
        }
        for (name, value) in [
            ("VRAM_EXPORTER_MEMORY_RAT", "1"),
            ("VRAM_EXPORTER_", ""),
            ("VRAM_EXPORTER_LISTEN_PORT", "9836"),
            ("VRAM_EXPORTER_PORT", "9836"),
            ("VRAM_EXPORTER_PORT_X_TCP", "1"),
            ("VRAM_EXPORTER_PORT_9836", "1"),
        ] {
            assert!(!is_foreign(name, value), "{name}");
        }
    }
}
