//! The files of the recorder: incidents (`store`) and reports (`report_file`), each written by a thread with a bounded
//! queue in front of it.
//!
//! Invariant: a full or slow disk delays nothing. Only what was to be written can be lost because of it, and each loss
//! is counted as a fault.

pub(super) mod report_file;
pub(super) mod retention;
pub(super) mod store;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use anyhow::{Error, anyhow};

use crate::faults::{Faults, Reason, Source};

/// Something that is written.
pub(super) trait Writable: Send + Sync + 'static {
    /// The name of the thread.
    const THREAD: &'static str;
    /// The configuration key that names the folder.
    const KEY: &'static str;
    /// The number of items that may wait for the disk.
    const WAITING: usize;

    /// What it is, for an error.
    fn title(&self) -> String;
}

/// The thread and its queue.
#[derive(Debug)]
pub(super) struct DiskWriter<T> {
    queue: SyncSender<Arc<T>>,
    faults: Arc<Faults>,
    thread: JoinHandle<()>,
}

/// Counts that what earlier runs wrote to a folder cannot be read. Returns nothing of it. `title` says what it is.
pub(super) fn unread<E>(title: &'static str, folder: &Path, cause: io::Error, faults: &Faults) -> Vec<E> {
    let unread = format!("the {title} of earlier runs in {} could not be read", folder.display());
    faults.raise(Source::Recorder, Reason::Unreadable, None, &*Error::new(cause).context(unread));
    Vec::new()
}

impl<T: Writable> DiskWriter<T> {
    /// Starts the thread, on which `write` writes each item. `folder` is named in errors.
    ///
    /// # Errors
    /// When the system cannot create a thread.
    pub(super) fn start(
        folder: PathBuf,
        faults: Arc<Faults>,
        mut write: impl FnMut(&T) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (queue, waiting) = sync_channel::<Arc<T>>(T::WAITING);
        let counted = faults.clone();
        let work = move || {
            while let Ok(item) = waiting.recv() {
                if let Err(cause) = write(&item) {
                    let (title, folder, key) = (item.title(), folder.display(), T::KEY);
                    let lost = format!("the {title} could not be written to {folder}; check {key} and its free space");
                    counted.raise(Source::Recorder, Reason::Unwritable, None, &*Error::new(cause).context(lost));
                }
            }
        };
        let thread = std::thread::Builder::new().name(T::THREAD.into()).spawn(work)?;
        Ok(Self { queue, faults, thread })
    }

    /// Passes an item to the thread. Never waits: if too many are waiting, this one is lost.
    pub(super) fn write(&self, item: &Arc<T>) {
        if let Err(TrySendError::Full(item) | TrySendError::Disconnected(item)) = self.queue.try_send(item.clone()) {
            let (title, waiting) = (item.title(), T::WAITING);
            let lost = anyhow!("the {title} was not written: {waiting} others are waiting for the disk");
            self.faults.raise(Source::Recorder, Reason::Overloaded, None, &*lost);
        }
    }

    /// Waits until everything has been written.
    pub(super) fn close(self) {
        drop(self.queue);
        if self.thread.join().is_err() {
            tracing::error!(thread = T::THREAD, "a writer panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    struct Item;

    impl Writable for Item {
        const THREAD: &'static str = "item-writer";
        const KEY: &'static str = "a.key";
        const WAITING: usize = 2;

        fn title(&self) -> String {
            "item".into()
        }
    }

    #[test]
    fn a_disk_that_does_not_answer_costs_counted_items() {
        let faults = Arc::new(Faults::default());
        let ((release, released), (begun, begins)) = (channel::<()>(), channel());
        let write = move |_: &Item| {
            let _ = begun.send(());
            let _ = released.recv();
            Ok(())
        };
        let writer = DiskWriter::start("/".into(), faults.clone(), write).unwrap();
        writer.write(&Arc::new(Item));
        begins.recv().unwrap();
        (0..5).for_each(|_| writer.write(&Arc::new(Item)));
        assert_eq!(faults.count(Source::Recorder, Reason::Overloaded), 3, "one is being written, and two wait");
        drop(release);
        writer.close();
        assert_eq!(faults.counts().map(|(_, _, count)| count).sum::<u64>(), 3);
    }
}
