//! Checks the places in the file system that a running exporter needs: folders to write to, and the files of the cluster.
//!
//! Invariant: nothing is written. A place that is absent is a warning, because it may appear later; something else in the place
//! of a folder is an error.

use std::fs::metadata;
use std::path::Path;

use anyhow::{Result, bail};
use nix::unistd::{AccessFlags, access};

use crate::config::{Config, ListenAddress};
use crate::text::printable;

/// The places that do not work at present, one line each.
pub(super) fn check(config: &Config) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    let recorder = &config.recorder;
    for (key, path) in [("recorder.path", &recorder.path), ("recorder.reports-path", &recorder.reports_path)] {
        warnings
            .extend(path.as_deref().map(|path| folder(key, path, "nothing is kept on disk")).transpose()?.flatten());
    }
    let listening = [
        ("web.listen-address", &config.web.listen_addresses),
        ("web.health-address", &config.web.health_addresses),
        ("dcgm.listen-address", &config.dcgm.listen_addresses),
    ];
    let listening = listening.iter().flat_map(|(key, addresses)| addresses.iter().map(move |address| (*key, address)));
    let sockets = listening.filter_map(|(key, address)| match address {
        ListenAddress::Unix(path) => Some((key, path.as_path())),
        ListenAddress::Tcp(_) => None,
    });
    let allocators = config.allocator.socket.as_deref().map(|path| ("allocator.socket", path));
    for (key, socket) in sockets.chain(allocators) {
        let parent = socket.parent().unwrap_or(Path::new("/"));
        warnings.extend(folder(key, parent, "the exporter cannot listen there and does not start")?);
    }
    let cluster = &config.kubernetes;
    if let Some(path) = cluster.pod_resources.as_deref() {
        let absent = metadata(path).err().map(|error| not_usable("kubernetes.pod-resources", path, &error.to_string()));
        warnings.extend(absent.map(|text| format!("{text}: it is tried again until it is there")));
    }
    if let Some(path) = config.slurm.allocations.as_deref() {
        let absent = metadata(path).err().map(|error| not_usable("slurm.allocations", path, &error.to_string()));
        warnings.extend(absent.map(|text| format!("{text}: no job has GPUs until it is there")));
    }
    for (key, path) in [("kubernetes.token-file", &cluster.token_file), ("kubernetes.ca-file", &cluster.ca_file)] {
        // Not opened: opening a pipe waits for a writer.
        let unread = path.as_deref().and_then(|path| Some((path, access(path, AccessFlags::R_OK).err()?)));
        warnings.extend(unread.map(|(path, error)| {
            format!("{}: it is tried again until it is readable", not_usable(key, path, error.desc()))
        }));
    }
    Ok(warnings)
}

/// Checks a folder that the exporter writes to. `consequence` is what its absence costs.
fn folder(key: &str, path: &Path, consequence: &str) -> Result<Option<String>> {
    let warning = |why: &str| Ok(Some(format!("{}: {consequence}", not_usable(key, path, why))));
    match metadata(path) {
        Err(error) => warning(&error.to_string()),
        Ok(found) if !found.is_dir() => {
            let path = printable(&path.to_string_lossy());
            bail!("{key}: {path} is not a folder; name an existing folder that the exporter may write to")
        }
        Ok(_) => match access(path, AccessFlags::W_OK | AccessFlags::X_OK) {
            Err(error) => warning(&format!("this user may not write to it ({})", error.desc())),
            Ok(()) => Ok(None),
        },
    }
}

fn not_usable(key: &str, path: &Path, why: &str) -> String {
    format!("{key}: {} cannot be used at present: {why}", printable(&path.to_string_lossy()))
}
