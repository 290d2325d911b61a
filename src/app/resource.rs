//! What is known about the exporter and its machine, for the receiver of pushes over OTLP: from the environment and from files.

use std::path::Path;

use crate::otlp;

/// The files that hold the machine's id, the first that exists.
const MACHINE_ID: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
/// Files that exist in a container only.
const CONTAINER: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];

/// The value of an environment variable; `None` if it is not set or empty.
///
/// # Errors
/// When the value is not UTF-8.
pub(super) fn variable(name: &'static str) -> Result<Option<String>, otlp::Error> {
    let value = std::env::var_os(name).map(std::ffi::OsString::into_string).transpose();
    let value = value.map_err(|_| otlp::Error::Variable(name))?;
    Ok(value.filter(|value| !value.is_empty()))
}

/// The attributes of the resource. An unknown value is left out.
pub(super) fn attributes(host: Option<String>, node: Option<String>) -> Vec<(&'static str, String)> {
    let contained = node.is_some()
        || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
        || CONTAINER.iter().any(|path| Path::new(path).exists());
    // In a container, the file is that of the image, if there is one.
    let id = || MACHINE_ID.iter().find_map(|path| std::fs::read_to_string(path).ok());
    let id = (!contained).then(id).flatten().map(|id| id.trim().to_owned());
    let known = [
        ("service.name", Some(env!("CARGO_PKG_NAME").to_owned())),
        ("service.version", Some(env!("CARGO_PKG_VERSION").to_owned())),
        ("service.instance.id", host.clone()),
        ("host.name", host),
        ("host.id", id),
        ("os.type", Some("linux".to_owned())),
        ("k8s.node.name", node),
    ];
    known.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
