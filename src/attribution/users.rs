//! The names of users, by a passwd file or by the machine's own name service.
//!
//! Invariant: asking never waits. A name that is not known yet is unknown, and is there at a later call.

pub(crate) mod passwd;
mod service;

use std::path::PathBuf;
use std::time::Instant;

use passwd::Passwd;
use service::Service;

use crate::faults::Faults;

/// Where the names come from.
#[derive(Debug)]
pub(super) enum Users {
    Passwd(Passwd),
    Service(Service),
}

impl Users {
    /// From the file where one is given, else from the name service.
    pub(super) fn new(passwd: Option<PathBuf>) -> Self {
        match passwd {
            Some(path) => Self::Passwd(Passwd::new(path)),
            None => Self::Service(Service::new(service::from_system)),
        }
    }

    /// The user's name as far as it is known; `None` for a user without a name too.
    pub(super) fn name(&mut self, uid: u32, faults: &Faults) -> Option<&str> {
        match self {
            Self::Passwd(passwd) => passwd.name(uid, Instant::now(), faults),
            Self::Service(service) => service.name(uid, Instant::now(), faults),
        }
    }
}
