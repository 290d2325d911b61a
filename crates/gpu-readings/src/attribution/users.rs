//! The names of users, from a passwd file or from the machine's own name service.
//!
//! Invariant: a lookup never waits. A name that is not known yet is absent, and is returned by a later call.

mod passwd;
mod service;

use std::path::PathBuf;
use std::time::Instant;

use passwd::Passwd;
pub use passwd::parse as parse_passwd;
use service::Service;

use crate::faults::Faults;

/// The source of the names.
#[derive(Debug)]
pub(super) enum Users {
    Passwd(Passwd),
    Service(Service),
}

impl Users {
    /// Uses the file if one is given, otherwise the name service.
    pub(super) fn new(passwd: Option<PathBuf>) -> Self {
        match passwd {
            Some(path) => Self::Passwd(Passwd::new(path)),
            None => Self::Service(Service::new(service::from_system)),
        }
    }

    /// The user's name; `None` if it is not known yet, or if the user has no name.
    pub(super) fn name(&mut self, uid: u32, faults: &Faults) -> Option<&str> {
        match self {
            Self::Passwd(passwd) => passwd.name(uid, Instant::now(), faults),
            Self::Service(service) => service.name(uid, Instant::now(), faults),
        }
    }
}
