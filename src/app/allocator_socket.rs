//! Binds the socket on which processes report about their memory allocators.

use anyhow::{Context, Result, bail};
use nix::unistd::Group;

use crate::allocator::Listener;
use crate::config::Allocator;

/// Binds `allocator.socket`, if it is set. Must be called within a runtime.
///
/// # Errors
/// When the group is unknown, or the socket cannot be bound.
pub(super) async fn bind(config: &Allocator) -> Result<Option<Listener>> {
    let Some(path) = &config.socket else { return Ok(None) };
    let group = config.socket_group.as_deref().map(group).transpose()?;
    let listener = Listener::bind(path, config.socket_mode, group).await.with_context(|| {
        format!(
            "cannot listen on {}; choose another path with --allocator.socket, in a folder that exists",
            path.display()
        )
    })?;
    tracing::info!(socket = %listener.path().display(), "processes can report about their allocators");
    Ok(Some(listener))
}

/// The number of a group.
fn group(name: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    match Group::from_name(name).with_context(|| format!("cannot look up the group {name}"))? {
        Some(group) => Ok(group.gid.as_raw()),
        None => bail!("there is no group {name}; choose another with --allocator.socket-group"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_a_number_or_a_known_name() {
        assert_eq!(group("42").unwrap(), 42);
        assert_eq!(group("root").unwrap(), 0);
        assert!(group("no-such-group").unwrap_err().to_string().contains("--allocator.socket-group"));
    }

    #[tokio::test]
    async fn without_a_path_there_is_no_socket() {
        assert!(bind(&Allocator::default()).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn an_error_names_the_path_and_the_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        std::fs::write(&path, "").unwrap();
        let config = Allocator { socket: Some(path.clone()), socket_mode: 0o666, socket_group: None };
        let error = format!("{:#}", bind(&config).await.unwrap_err());
        assert!(error.contains(path.to_str().unwrap()) && error.contains("--allocator.socket"), "{error}");
        assert!(error.contains("remove it"), "{error}");
    }
}
