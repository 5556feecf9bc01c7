//! Sets up the copies of views on disk: for each API key, a task that writes its view, and a future that opens the last copy.

use crate::{
    config::{CopySettings, SyncSettings},
    copy::{CopyDirectory, CopyKey, CopyWriter, LockError, WriterState, view_without_contact},
    metrics::Metrics,
    sync::{Authorization, CopyProgress, FutureView, Instance},
    view::{ApiKeyIndex, Views},
};
use countersign_process::Clock;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// The parts that use the copy of one API key. All are `None` without copies. If the directory cannot be locked, only `progress` is
/// set.
#[derive(Default)]
pub struct CopyOfKey {
    /// Opens the view on disk, with which the sidecar decides if the control plane does not answer.
    pub at_start: Option<FutureView>,
    pub writer: Option<CopyWriter>,
    /// Knows the revision of the copy. The sync client reports no newer revision, because a later process may start from the copy.
    pub progress: Option<Arc<CopyProgress>>,
    /// The earlier process that wrote the copy; `None` if there is no copy, or if that process may still run.
    pub previous: Option<Instance>,
}

/// What the copies of all API keys need from other modules.
pub struct CopyContext {
    pub views: Arc<Views>,
    pub metrics: Arc<Metrics>,
    pub clock: Arc<dyn Clock>,
    /// The instance for the first API key, from which the instances for the other keys are made.
    pub instance: Instance,
    /// `copy::copy_interval`, except in tests.
    pub interval: fn(Duration) -> Duration,
}

/// The directory for the copies of all API keys, those that are added later included.
pub struct Copies {
    place: CopyPlace,
    staleness_limit: Option<Duration>,
    context: CopyContext,
}

enum CopyPlace {
    /// There are no copies.
    None,
    Locked(CopyDirectory),
    /// The directory cannot be locked, so it is neither read nor written.
    NotLocked(PathBuf),
}

impl Copies {
    /// Locks and prepares the directory for the copies of these API keys. Errors are only logged, because a sidecar works without
    /// copies, too.
    pub fn open(
        settings: &CopySettings,
        sync: &SyncSettings,
        authorizations: &[Authorization],
        context: CopyContext,
    ) -> Self {
        let place = settings.directory.as_deref().map_or(CopyPlace::None, |path| open(path, authorizations, &context));
        Self { place, staleness_limit: sync.staleness_limit(), context }
    }

    /// The parts that use the copy of an API key.
    pub fn of_key(&self, index: ApiKeyIndex, authorization: &Authorization) -> CopyOfKey {
        match (&self.place, CopyKey::of(authorization)) {
            (CopyPlace::Locked(directory), Some(key)) => self.in_directory(index, key, authorization, directory),
            (CopyPlace::NotLocked(directory), Some(key)) => without_lock(directory, &key),
            (CopyPlace::None, _) | (_, None) => CopyOfKey::default(),
        }
    }

    fn in_directory(
        &self,
        index: ApiKeyIndex,
        key: CopyKey,
        authorization: &Authorization,
        directory: &CopyDirectory,
    ) -> CopyOfKey {
        let CopyContext { views, metrics, clock, instance, interval } = &self.context;
        let previous = directory.ended_writer_of(&key);
        let progress = Arc::new(CopyProgress::new(directory.has_file(&key)));
        let writer = CopyWriter {
            index,
            authorization: Arc::clone(authorization),
            directory: directory.clone(),
            interval: *interval,
            instance: instance.of_key(index),
            progress: Arc::clone(&progress),
            views: Arc::clone(views),
            metrics: Arc::clone(metrics),
            clock: Arc::clone(clock),
            state: WriterState::default(),
        };
        let at_start = Box::pin(view_without_contact(
            index,
            key,
            directory.clone(),
            self.staleness_limit,
            Arc::clone(views),
            Arc::clone(metrics),
            Arc::clone(clock),
        ));
        CopyOfKey { at_start: Some(at_start), writer: Some(writer), progress: Some(progress), previous }
    }
}

fn open(path: &Path, authorizations: &[Authorization], context: &CopyContext) -> CopyPlace {
    let keys: Option<Vec<_>> = authorizations.iter().map(CopyKey::of).collect();
    let Some(keys) = keys else {
        tracing::error!("copy.directory: no copies of views are read or written: their keys cannot be derived");
        return CopyPlace::None;
    };
    let directory = match CopyDirectory::lock(path, &*context.clock) {
        Ok(directory) => directory,
        Err(error) => {
            context.metrics.copies.write_failed();
            tracing::error!(path = %path.display(), %error, "copy.directory: no copies of views are read or written");
            return match error {
                // The control plane learns from the other process how old its copies are, so our reports need not wait for them.
                LockError::Held => CopyPlace::None,
                LockError::Io(_) => CopyPlace::NotLocked(path.to_owned()),
            };
        }
    };
    if let Err(error) = directory.prepare(&keys) {
        context.metrics.copies.write_failed();
        let path = path.display();
        tracing::error!(%path, %error, "copy.directory: cannot prepare the directory for copies of views");
    }
    CopyPlace::Locked(directory)
}

/// The copy of a key in a directory that cannot be locked. If there is an old file, of unknown revision, this process cannot
/// replace it, and a later process may start from it, so this process reports no revision.
fn without_lock(directory: &Path, key: &CopyKey) -> CopyOfKey {
    let has_file = CopyDirectory::may_have_file(directory, key);
    CopyOfKey { progress: has_file.then(|| Arc::new(CopyProgress::new(true))), ..CopyOfKey::default() }
}
