//! Encoded pages that the streams of a service share. Concurrent requests for the same pages cause one read.
//!
//! Streams may send a page for some seconds after it was read: it contains all changes up to its end, and later changes follow.

use super::{
    context::{OwnerReads, SidecarSettings, changes_deleted},
    encode::StreamFormat,
    page_reader::{self, PageRun, ReadKey, SnapshotHeader, StreamGroup},
};
use crate::{
    domain::agent_hash_secret::AgentHashSecret,
    store::{Store, changed_data::ReadLimit},
};
use countersign_identity::Revision;
use moka::future::Cache;
use prometheus::IntCounter;
use std::{sync::Arc, time::Duration};
use tonic::Status;

/// Maximum size of all encoded pages in bytes.
const MAX_SIZE: u64 = 64 * 1024 * 1024;

/// Maximum size of all snapshot headers in bytes.
const MAX_HEADERS_SIZE: u64 = 16 * 1024 * 1024;

/// How many times we try to get data that is new enough. The cache may have old data, and the second try may join a read that
/// another stream began too early. A third read begins late enough.
const MAX_READS: usize = 3;

/// How long streams can share pages. Sidecars that restart together request their pages within this time.
const MAX_AGE: Duration = Duration::from_secs(5);

/// Reads pages, and keeps them for a short time.
#[derive(Clone)]
pub(super) struct PageCache {
    runs: Cache<ReadKey, Arc<PageRun>>,
    headers: Cache<StreamGroup, Arc<SnapshotHeader>>,
    source: Arc<PageSource>,
}

/// Reads pages from the database.
pub(super) struct PageSource {
    pub(super) store: Store,
    pub(super) settings: SidecarSettings,
    pub(super) agent_hash_secret: AgentHashSecret,
    pub(super) limit: ReadLimit,
    pub(super) reads: OwnerReads,
    pub(super) read_count: IntCounter,
}

impl PageCache {
    pub(super) fn new(source: Arc<PageSource>) -> Self {
        let weigher = |_: &ReadKey, run: &Arc<PageRun>| u32::try_from(run.size()).unwrap_or(u32::MAX);
        let runs = Cache::builder().max_capacity(MAX_SIZE).weigher(weigher).time_to_live(MAX_AGE).build();
        let weigher = |_: &StreamGroup, header: &Arc<SnapshotHeader>| {
            u32::try_from(size_of::<SnapshotHeader>() + header.body.len()).unwrap_or(u32::MAX)
        };
        let headers = Cache::builder().max_capacity(MAX_HEADERS_SIZE).weigher(weigher).time_to_live(MAX_AGE).build();
        Self { runs, headers, source }
    }

    /// Returns the header of a snapshot, read when the change feed had at least this revision and floor.
    pub(super) async fn header(
        &self,
        group: StreamGroup,
        revision: Revision,
        floor: Revision,
    ) -> Result<Arc<SnapshotHeader>, Status> {
        for _ in 0..MAX_READS {
            let header = shared(self.headers.try_get_with(group, self.source.load_header(group)).await)?;
            if header.position.revision >= revision && header.position.floor >= floor {
                return Ok(header);
            }
            self.headers.invalidate(&group).await;
        }
        Err(changes_deleted())
    }

    /// Returns the pages from `key.since` to a later revision, even if they contain no change. Call this only if the change feed
    /// has a later revision.
    pub(super) async fn get(&self, key: ReadKey) -> Result<Arc<PageRun>, Status> {
        for _ in 0..MAX_READS {
            let run = shared(self.runs.try_get_with(key, self.source.load(key)).await)?;
            if run.until() > key.since {
                return Ok(run);
            }
            self.runs.invalidate(&key).await;
        }
        Err(changes_deleted())
    }

    /// Begins to read pages that a stream needs soon, so that they are read while the stream sends the previous pages.
    pub(super) fn prefetch(&self, key: ReadKey) {
        let cache = self.clone();
        tokio::spawn(async move {
            // If this fails, the stream reads the pages itself and reports the error.
            let _ignored = cache.runs.try_get_with(key, cache.source.load(key)).await;
        });
    }
}

impl PageSource {
    async fn load(&self, key: ReadKey) -> Result<Arc<PageRun>, Status> {
        let (store, limit, count) = (self.store.clone(), self.limit, self.read_count.clone());
        let read = async move {
            count.inc();
            Ok(Arc::new(page_reader::read(&store, key, limit).await?))
        };
        self.reads.read(key.group.owner, read).await
    }

    async fn load_header(&self, group: StreamGroup) -> Result<Arc<SnapshotHeader>, Status> {
        let (store, count, format) = (self.store.clone(), self.read_count.clone(), self.format(group));
        let read = async move {
            count.inc();
            Ok(Arc::new(page_reader::read_header(&store, &format).await?))
        };
        self.reads.read(group.owner, read).await
    }

    fn format(&self, StreamGroup { service, owner: _ }: StreamGroup) -> StreamFormat {
        let agent_hash_key = self.agent_hash_secret.key_of(service);
        StreamFormat { service, settings: self.settings.clone(), agent_hash_key }
    }
}

/// Takes an error out of the [`Arc`] in which the cache shares it with all that wait for the same read.
fn shared<T>(result: Result<T, Arc<Status>>) -> Result<T, Status> {
    result.map_err(|status| Status::clone(&status))
}
