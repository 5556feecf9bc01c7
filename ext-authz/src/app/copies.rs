//! Creates the copies of views on disk from the settings.

use super::credentials::Authorization;
use crate::{
    config::{CopySettings, SyncSettings},
    copy::{CopyAtStart, CopyDirectory, CopyKey, CopyWriter, WriterState},
    metrics::Metrics,
    sync::StartFromCopy,
    view::{ApiKeyIndex, Views},
};
use countersign_process::{Clock, Readiness, SystemRng};
use std::{sync::Arc, time::Duration};

/// The copies of all API keys.
#[derive(Default)]
pub struct Copies {
    /// The copies with which the sync streams start, in the order of the API keys.
    pub at_start: Vec<StartFromCopy>,
    /// The tasks that write copies.
    pub writers: Vec<CopyWriter>,
}

/// What copies need from the other modules.
pub struct CopyContext<'a> {
    pub views: &'a Arc<Views>,
    pub metrics: &'a Arc<Metrics>,
    pub readiness: &'a Readiness,
    pub clock: &'a Arc<dyn Clock>,
}

impl Copies {
    /// Prepares the directory of copies. Without a directory in the settings, there are no copies.
    pub fn new(
        settings: &CopySettings,
        sync: &SyncSettings,
        authorizations: &[Authorization],
        context: &CopyContext<'_>,
    ) -> Self {
        let Some(path) = &settings.directory else { return Self::default() };
        let directory = CopyDirectory::new(path);
        let keys: Option<Vec<_>> = authorizations.iter().map(copy_key).collect();
        let Some(keys) = keys else {
            tracing::error!("no copies of views: their keys cannot be derived");
            return Self::default();
        };
        if let Err(error) = directory.prepare(&keys) {
            context.metrics.copies().write_failed();
            let path = path.display();
            tracing::error!(%path, %error, "copy.directory: cannot prepare the directory for copies of views");
        }
        let staleness_limit = sync.staleness_limit();
        let CopyContext { views, metrics, readiness, clock } = context;
        let at_start = |(index, key): (usize, CopyKey)| {
            let copy = CopyAtStart {
                index: ApiKeyIndex(index),
                key,
                directory: directory.clone(),
                staleness_limit,
                views: Arc::clone(views),
                metrics: Arc::clone(metrics),
                clock: Arc::clone(clock),
            };
            let readiness = Readiness::clone(readiness);
            StartFromCopy { view: Box::pin(copy.view_without_contact()), readiness }
        };
        let writer = |(index, authorization): (usize, &Authorization)| {
            let authorization = Arc::clone(authorization);
            CopyWriter {
                index: ApiKeyIndex(index),
                key: Box::new(move || copy_key(&authorization)),
                directory: directory.clone(),
                interval: Duration::from_secs(settings.interval_seconds.into()),
                views: Arc::clone(views),
                metrics: Arc::clone(metrics),
                clock: Arc::clone(clock),
                rng: Arc::new(SystemRng),
                state: WriterState::default(),
            }
        };
        Self {
            at_start: keys.into_iter().enumerate().map(at_start).collect(),
            writers: authorizations.iter().enumerate().map(writer).collect(),
        }
    }
}

/// The key of the copy of the API key with which the next stream is opened.
fn copy_key(authorization: &Authorization) -> Option<CopyKey> {
    let value = authorization.load();
    CopyKey::derive(value.as_bytes().strip_prefix(b"Bearer ")?).ok()
}
