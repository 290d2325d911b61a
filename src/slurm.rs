//! Follows the folder in which Slurm's prolog and epilog keep the devices of each job on this node: which device is
//! allocated to which job, used or not.
//!
//! Invariant: what is published is one complete reading of the folder, with the time at which it was read. A failure removes
//! nothing and does not renew that time: a reader of the snapshot judges the reading by its age.

mod folder;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use folder::{MOST_JOBS, Reading};

use crate::blocking_read::BlockingRead;
use crate::faults::{Faults, Reason, Source};
use crate::snapshot::{JOBS_EVERY, JobAllocations, Snapshot};

/// How long a reading may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What to follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The folder with one file for each job (docs/deploy/slurm.md).
    pub folder: PathBuf,
}

/// The folder, or a file in it, cannot be used.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the allocations of Slurm's jobs in {} cannot be read", folder.display())]
    Unreadable { folder: PathBuf, source: io::Error },
    #[error("{} is not a list of devices, so nothing is allocated to this job", file.display())]
    Malformed { file: PathBuf },
    #[error("{} has more than {MOST_JOBS} files: the others are not read", folder.display())]
    TooMany { folder: PathBuf },
}

/// Follows the allocations for ever.
pub async fn follow(settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>) {
    let mut follower = Follower {
        folder: settings.folder,
        reads: BlockingRead::default(),
        snapshot,
        faults,
        rejected: BTreeSet::new(),
        too_many: false,
    };
    loop {
        follower.round().await;
        tokio::time::sleep(JOBS_EVERY).await;
    }
}

struct Follower {
    folder: PathBuf,
    reads: BlockingRead<io::Result<Reading>>,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    /// The files that the last reading rejected. Each is reported once.
    rejected: BTreeSet<PathBuf>,
    /// Whether the last reading had too many files.
    too_many: bool,
}

impl Follower {
    async fn round(&mut self) {
        let folder = self.folder.clone();
        // The time before the reading: a job that ended while it was being read is not younger than this.
        let at = Instant::now();
        match self.reads.take(TIMEOUT, move || folder::read(&folder)).await.and_then(|reading| reading) {
            Ok(reading) => self.publish(reading, at),
            Err(source) => {
                self.raise(Reason::Unreadable, &Error::Unreadable { folder: self.folder.clone(), source });
            }
        }
    }

    fn publish(&mut self, reading: Reading, at: Instant) {
        for file in reading.rejected.difference(&self.rejected) {
            self.raise(Reason::Malformed, &Error::Malformed { file: file.clone() });
        }
        if reading.too_many && !self.too_many {
            self.raise(Reason::Malformed, &Error::TooMany { folder: self.folder.clone() });
        }
        (self.rejected, self.too_many) = (reading.rejected, reading.too_many);
        let known = self.snapshot.jobs.load();
        let is_known = *known.allocated == reading.allocated;
        let allocated = if is_known { known.allocated.clone() } else { Arc::new(reading.allocated) };
        self.snapshot.jobs.store(Arc::new(JobAllocations { at: Some(at), allocated }));
    }

    fn raise(&self, reason: Reason, error: &Error) {
        self.faults.raise(Source::Slurm, reason, None, error);
    }
}
