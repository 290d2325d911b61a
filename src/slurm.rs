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

use anyhow::{Error, anyhow};
use folder::{MOST_JOBS, Reading};

use crate::blocking_read::BlockingRead;
use crate::faults::{Faults, Reason, Source};
use crate::snapshot::{JOBS_EVERY, JobAllocations, Snapshot};

/// How long a reading may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Follows the allocations in a folder with one file for each job (docs/deploy/slurm.md) for ever.
pub async fn follow(folder: PathBuf, snapshot: Arc<Snapshot>, faults: Arc<Faults>) {
    let mut follower = Follower {
        folder,
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
            Err(cause) => {
                let folder = self.folder.display();
                let unread = format!("the allocations of Slurm's jobs in {folder} cannot be read");
                self.raise(Reason::Unreadable, &Error::new(cause).context(unread));
            }
        }
    }

    fn publish(&mut self, reading: Reading, at: Instant) {
        for file in reading.rejected.difference(&self.rejected) {
            let file = file.display();
            let why = anyhow!("{file} is not a list of devices, so nothing is allocated to this job");
            self.raise(Reason::Malformed, &why);
        }
        if reading.too_many && !self.too_many {
            let folder = self.folder.display();
            let why = anyhow!("{folder} has more than {MOST_JOBS} files: the others are not read");
            self.raise(Reason::Malformed, &why);
        }
        (self.rejected, self.too_many) = (reading.rejected, reading.too_many);
        let known = self.snapshot.jobs.load();
        let is_known = *known.allocated == reading.allocated;
        let allocated = if is_known { known.allocated.clone() } else { Arc::new(reading.allocated) };
        self.snapshot.jobs.store(Arc::new(JobAllocations { at: Some(at), allocated }));
    }

    fn raise(&self, reason: Reason, error: &Error) {
        self.faults.raise(Source::Slurm, reason, None, &**error);
    }
}
