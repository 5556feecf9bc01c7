//! Connects the sync client of an API key and the writer of its copy: no revision is reported while an older copy is on disk.
//!
//! The client says which revision it has to report, and the writer says which revision is on disk. Invariant: a process that starts
//! from the copy decides with no older data than `on_disk` says.

use countersign_identity::Revision;
use tokio::sync::watch;

/// The progress of the copy of one API key. The client of the stream and the writer share it.
#[derive(Debug)]
pub struct CopyProgress(watch::Sender<Progress>);

#[derive(Debug, Clone, Copy)]
struct Progress {
    /// The newest revision that the client has to report, so it must get on disk.
    wanted: Revision,
    /// The revision of the copy on disk, or a lower one; `None` if there is certainly no copy.
    on_disk: Option<Revision>,
    /// How often the client has published older data than before.
    times_replaced: u64,
}

/// A write that has begun. At its end, `times_replaced` shows whether the client has published older data meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BegunWrite {
    times_replaced: u64,
}

impl CopyProgress {
    /// The progress at the start. `has_file` is false if there is certainly no copy. If there may be one, it counts as revision 0.
    pub fn new(has_file: bool) -> Self {
        let on_disk = has_file.then_some(Revision::default());
        Self(watch::Sender::new(Progress { wanted: Revision::default(), on_disk, times_replaced: 0 }))
    }

    /// Asks the writer for a copy with this revision, because the client has to report it.
    pub fn want(&self, revision: Revision) {
        self.0.send_if_modified(|progress| {
            let is_newer = revision > progress.wanted;
            progress.wanted = progress.wanted.max(revision);
            is_newer
        });
    }

    /// Records that the client decides with the copy on disk, which has this revision.
    pub fn opened(&self, revision: Revision) {
        self.0.send_modify(|progress| progress.on_disk = Some(revision));
    }

    /// Records that the client has published older data than before. The copy on disk may contain changes that this data does not
    /// have, so its revision counts as 0.
    pub fn older_data_published(&self) {
        self.0.send_modify(|progress| {
            progress.wanted = Revision::default();
            progress.on_disk = progress.on_disk.map(|_| Revision::default());
            progress.times_replaced += 1;
        });
    }

    /// Call before a write, and read the view only afterwards. If there was no copy, it counts as revision 0 from now on, so the
    /// client reports nothing until the write ends. What it reported before is in the view that the writer then reads.
    pub fn begin_write(&self) -> BegunWrite {
        self.0.send_modify(|progress| {
            progress.on_disk.get_or_insert_default();
        });
        BegunWrite { times_replaced: self.0.borrow().times_replaced }
    }

    /// Ends a write: the only copy on disk has this revision, unless `restart` was called since the write began.
    pub fn written(&self, write: BegunWrite, revision: Revision) {
        self.0.send_modify(|progress| {
            let is_same_data = write.times_replaced == progress.times_replaced;
            progress.on_disk = Some(if is_same_data { revision } else { Revision::default() });
        });
    }

    /// Ends a write that failed. `has_file`: an earlier copy may still be there.
    pub fn write_failed(&self, has_file: bool) {
        if !has_file {
            self.removed();
        }
    }

    /// Records that there is certainly no copy on disk.
    pub fn removed(&self) {
        self.0.send_modify(|progress| progress.on_disk = None);
    }

    /// The revision of the copy on disk, or a lower one; `None` if there is certainly no copy.
    pub fn on_disk(&self) -> Option<Revision> {
        self.0.borrow().on_disk
    }

    /// Whether the client waits for a newer copy before it can report a revision.
    pub fn is_awaited(&self) -> bool {
        self.0.borrow().is_awaited()
    }

    /// Returns when the client waits for a newer copy.
    pub async fn wait_until_awaited(&self) {
        let mut changes = self.changes();
        while !self.is_awaited() {
            changes.next().await;
        }
    }

    pub fn changes(&self) -> CopyChanges {
        CopyChanges(self.0.subscribe())
    }
}

impl Progress {
    fn is_awaited(self) -> bool {
        self.on_disk.is_some_and(|on_disk| on_disk < self.wanted)
    }
}

/// Waits for changes of a [`CopyProgress`].
#[derive(Debug)]
pub struct CopyChanges(watch::Receiver<Progress>);

impl CopyChanges {
    /// Waits for the next change. Nothing is lost if the future is dropped.
    pub async fn next(&mut self) {
        // The caller has the sender, too, so the channel does not close.
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn revision(number: i64) -> Revision {
        Revision::new(number)
    }

    #[test]
    fn writer_hurries_only_if_an_older_copy_is_on_disk() {
        let progress = CopyProgress::new(false);
        progress.want(revision(7));
        assert!(!progress.is_awaited(), "without a copy, nothing older can be used");
        let write = progress.begin_write();
        assert!(progress.is_awaited());
        progress.written(write, revision(6));
        assert!(progress.is_awaited());
        let write = progress.begin_write();
        progress.written(write, revision(8));
        assert_eq!((progress.is_awaited(), progress.on_disk()), (false, Some(revision(8))));
        progress.want(revision(5));
        assert!(!progress.is_awaited(), "a lower revision is not wanted");
    }

    #[test]
    fn failed_write_leaves_what_is_on_disk() {
        let progress = CopyProgress::new(true);
        assert_eq!(progress.on_disk(), Some(revision(0)), "the earlier copy has an unknown revision");
        progress.begin_write();
        progress.write_failed(true);
        assert_eq!(progress.on_disk(), Some(revision(0)));
        progress.opened(revision(4));
        progress.begin_write();
        progress.write_failed(true);
        assert_eq!(progress.on_disk(), Some(revision(4)));
        progress.begin_write();
        progress.write_failed(false);
        assert_eq!(progress.on_disk(), None);
    }

    #[test]
    fn copy_of_replaced_data_does_not_count() {
        let progress = CopyProgress::new(false);
        let write = progress.begin_write();
        progress.written(write, revision(50));
        let write = progress.begin_write();
        progress.older_data_published();
        assert_eq!(progress.on_disk(), Some(revision(0)));
        progress.written(write, revision(50));
        assert_eq!(progress.on_disk(), Some(revision(0)), "the write began before the data was replaced");
        progress.want(revision(30));
        let write = progress.begin_write();
        progress.written(write, revision(30));
        assert!(!progress.is_awaited());
    }
}
