//! The API server: lists this node's pods, watches them, and publishes the names of their
//! containers and the budgets that they declare.
//!
//! Invariants: the only request is `GET /api/v1/pods` for this node. A name is published exactly as the server sent it,
//! or not at all, and is kept while the server does not respond. A list is applied in full or not at all; whenever an
//! event may have been lost, all pods are listed again. Everything that is read, kept or waited for is bounded.

mod body;
pub(crate) mod budget_index;
mod budgets;
mod client;
pub(crate) mod container_index;
mod declared;
mod endpoint;
mod error;
mod follower;
pub(crate) mod list_watch;
mod pause;
pub(crate) mod pod;
mod settings;
mod token;

pub use follower::follow;
pub use settings::{LIST_AGAIN, Server, Settings};
