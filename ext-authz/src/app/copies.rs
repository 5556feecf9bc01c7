//! Sets up the copies of views on disk: for each API key, a task that writes its view, and a future that opens the last copy.

use crate::{
    config::{CopySettings, SyncSettings},
    copy::{CopyDirectory, CopyKey, CopyWriter, LockError, WriterState, view_without_contact},
    metrics::Metrics,
    sync::{Authorization, CopyProgress, FutureView, Instance},
    view::{ApiKeyIndex, Views},
};
use countersign_process::Clock;
use std::{path::Path, sync::Arc, time::Duration};

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
pub struct CopyContext<'a> {
    pub views: &'a Arc<Views>,
    pub metrics: &'a Arc<Metrics>,
    pub clock: &'a Arc<dyn Clock>,
    /// The instance for the first API key, from which the instances for the other keys are made.
    pub instance: Instance,
    /// `copy::copy_interval`, except in tests.
    pub interval: fn(Duration) -> Duration,
}

/// Locks and prepares the directory for copies. Returns an item for each API key, in their order. Errors are only logged, because a
/// sidecar works without copies, too.
pub fn create_copies(
    settings: &CopySettings,
    sync: &SyncSettings,
    authorizations: &[Authorization],
    context: &CopyContext<'_>,
) -> Vec<CopyOfKey> {
    let without_copies = || authorizations.iter().map(|_| CopyOfKey::default()).collect();
    let Some(path) = &settings.directory else { return without_copies() };
    let keys: Option<Vec<_>> = authorizations.iter().map(CopyKey::of).collect();
    let Some(keys) = keys else {
        tracing::error!("copy.directory: no copies of views are read or written: their keys cannot be derived");
        return without_copies();
    };
    let directory = match CopyDirectory::lock(path, &**context.clock) {
        Ok(directory) => directory,
        Err(error) => {
            context.metrics.copies.write_failed();
            tracing::error!(path = %path.display(), %error, "copy.directory: no copies of views are read or written");
            return match error {
                // The control plane learns from the other process how old its copies are, so our reports need not wait for them.
                LockError::Held => without_copies(),
                LockError::Io(_) => keys.iter().map(|key| without_lock(path, key)).collect(),
            };
        }
    };
    if let Err(error) = directory.prepare(&keys) {
        context.metrics.copies.write_failed();
        let path = path.display();
        tracing::error!(%path, %error, "copy.directory: cannot prepare the directory for copies of views");
    }
    let of_key = |(index, (key, authorization))| {
        copy_of_key(ApiKeyIndex(index), key, authorization, &directory, sync.staleness_limit(), context)
    };
    keys.into_iter().zip(authorizations).enumerate().map(of_key).collect()
}

fn copy_of_key(
    index: ApiKeyIndex,
    key: CopyKey,
    authorization: &Authorization,
    directory: &CopyDirectory,
    staleness_limit: Option<Duration>,
    context: &CopyContext<'_>,
) -> CopyOfKey {
    let CopyContext { views, metrics, clock, instance, interval } = context;
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
        staleness_limit,
        Arc::clone(views),
        Arc::clone(metrics),
        Arc::clone(clock),
    ));
    CopyOfKey { at_start: Some(at_start), writer: Some(writer), progress: Some(progress), previous }
}

/// The copy of a key in a directory that cannot be locked. If there is an old file, of unknown revision, this process cannot
/// replace it, and a later process may start from it, so this process reports no revision.
fn without_lock(directory: &Path, key: &CopyKey) -> CopyOfKey {
    let has_file = CopyDirectory::may_have_file(directory, key);
    CopyOfKey { progress: has_file.then(|| Arc::new(CopyProgress::new(true))), ..CopyOfKey::default() }
}
