//! What a guard reports while it watches its files.

use tokio::task::JoinError;

use crate::{Error, Summary};

/// What happened to the files of a guard. The set is fixed, so that an exporter can start a counter for each at 0.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// The files were accepted and are in effect: at startup, and after each change.
    Accepted(&'a Summary),
    /// A changed file was refused; the last accepted settings stay in effect. A refusal that persists is reported once.
    Refused(&'a Error),
    /// The thread that reads the files panicked. [`Guard::watch`](crate::Guard::watch) carries on.
    Panicked(&'a JoinError),
}
