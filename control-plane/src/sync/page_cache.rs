//! Encoded pages that the streams of a service share. Concurrent requests for the same pages cause one read.
//!
//! A page may be sent for some seconds after it was read: it contains all changes up to its end, and the stream then reads the
//! later ones.

use super::{
    context::{AgentHashSecret, SidecarSettings, database_unavailable, shutting_down},
    encode::StreamFormat,
    page_reader::{self, PageRun, ReadKey},
    read_turns::ReadTurns,
};
use crate::store::{Store, changed_data::ReadLimit};
use moka::future::Cache;
use prometheus::IntCounter;
use std::{sync::Arc, time::Duration};
use tonic::Status;

/// Maximum size of all encoded pages in bytes.
const MAX_SIZE: u64 = 64 * 1024 * 1024;

/// How long streams can share pages. Sidecars that restart together request their pages within this time.
const MAX_AGE: Duration = Duration::from_secs(5);

/// Reads pages, and keeps them for a short time.
#[derive(Clone)]
pub(super) struct PageCache {
    runs: Cache<ReadKey, Arc<PageRun>>,
    source: Arc<PageSource>,
}

/// What the reads of pages need.
pub(super) struct PageSource {
    pub(super) store: Store,
    pub(super) settings: SidecarSettings,
    pub(super) agent_hash_secret: AgentHashSecret,
    pub(super) limit: ReadLimit,
    pub(super) turns: ReadTurns,
    pub(super) reads: IntCounter,
}

impl PageCache {
    pub(super) fn new(source: PageSource) -> Self {
        let weigher = |_: &ReadKey, run: &Arc<PageRun>| u32::try_from(run.size()).unwrap_or(u32::MAX);
        let runs = Cache::builder().max_capacity(MAX_SIZE).weigher(weigher).time_to_live(MAX_AGE).build();
        Self { runs, source: Arc::new(source) }
    }

    /// Returns shared pages. Reads them if they are not shared yet, or if the shared ones are empty: there may be changes now.
    pub(super) async fn get(&self, key: ReadKey) -> Result<Arc<PageRun>, Status> {
        let run = self.runs.try_get_with(key, self.source.load(key)).await.map_err(|status| Status::clone(&status))?;
        if run.header.is_some() || run.pages.first().is_none_or(|page| page.until > page.since) {
            return Ok(run);
        }
        self.runs.invalidate(&key).await;
        self.runs.try_get_with(key, self.source.load(key)).await.map_err(|status| Status::clone(&status))
    }

    /// Begins to read pages that a stream needs soon, so that they are read while the stream sends the previous pages.
    pub(super) fn prefetch(&self, key: ReadKey) {
        let cache = self.clone();
        tokio::spawn(async move {
            // The stream reads the pages again if this read fails, and then reports the error.
            let _ignored = cache.runs.try_get_with(key, cache.source.load(key)).await;
        });
    }
}

impl PageSource {
    async fn load(&self, key: ReadKey) -> Result<Arc<PageRun>, Status> {
        let turn = self.turns.acquire(key.service).await.map_err(|_| shutting_down())?;
        self.reads.inc();
        let run = page_reader::read(&self.store, key, self.limit).await;
        drop(turn);
        let run = run.map_err(|error| database_unavailable(&error))?;
        let format = StreamFormat {
            service: key.service,
            settings: self.settings.clone(),
            agent_hash_key: key.names_by_hash.then(|| self.agent_hash_secret.key_of(key.service)),
        };
        Ok(Arc::new(run.encode(&format)))
    }
}
