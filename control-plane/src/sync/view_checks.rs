//! Checksums of the data of services, which sidecars compare with that of their views.
//!
//! A checksum depends on the service and on whether unbound tokens are included, so the streams of a service share it. It is read at
//! most once per interval, in the turns of all reads. Invariant: a checksum is exact for every stream that has sent everything up to
//! its revision and nothing about the service above it. Data for which that cannot be known has no checksum.

use super::{
    change_batch::{Changes, Definitions, RevokedSubject},
    encode::{PageKind, StreamFormat},
    page_cache::PageSource,
    page_reader::{self, StreamGroup},
};
use crate::{
    domain::change::RevisionRange,
    store::{
        Store, StoreError,
        changed_data::{self, ReadLimit},
        changed_roles,
        feed::{self, RecipientFilter},
    },
};
use countersign_identity::{
    AgentHash, AgentHashKey, AgentId, ChecksumRevocation, ChecksumScope, ChecksumSettings, Revision, Timestamp,
    ViewChecksum, view_checksum::CHECKSUM_LEN,
};
use countersign_proto::v1::ViewCheck;
use moka::future::Cache;
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinHandle;
use tonic::Status;

/// A service with more changes above the floor has no checksum, so that a read is short.
const MAX_CHANGES: u32 = 20_000;

/// Data with more changed agents that are deleted has no checksum, because the message would be long.
const MAX_DELETED_AGENTS: usize = 1000;

/// Maximum size of all checksums in bytes.
const MAX_SIZE: u64 = 16 * 1024 * 1024;

/// A stream gets its first checksum after this number of checks of its API key: after five minutes. So the reads do not compete with
/// those of snapshots after a start of the control plane.
const MIN_KEY_CHECKS: u32 = 10;

/// Which data a checksum is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CheckedData {
    pub(super) group: StreamGroup,
    pub(super) includes_unbound: bool,
}

/// The checksum of the data of a service.
#[derive(Debug)]
pub(super) struct ServiceChecksum {
    /// Tells checksums of this process apart, also those of the same revision.
    pub(super) number: u64,
    /// The data contains all changes up to this revision, and no later ones.
    pub(super) revision: Revision,
    pub(super) data: CheckedData,
    scope: ChecksumScope,
    checksum: [u8; CHECKSUM_LEN],
}

impl ServiceChecksum {
    /// The message for a stream whose last data has this revision.
    pub(super) fn message(&self, data_revision: Revision) -> ViewCheck {
        let ChecksumScope { floor, time, without_roles } = &self.scope;
        ViewCheck {
            revision: data_revision.number(),
            floor: floor.number(),
            time_micros: time.micros(),
            agents_without_roles: without_roles.iter().map(|agent| agent.to_bytes().to_vec()).collect(),
            checksum: self.checksum.to_vec(),
        }
    }
}

/// A checksum, or nothing if the data has none.
type SharedChecksum = Arc<Option<ServiceChecksum>>;

/// Reads checksums, and keeps each for the interval.
#[derive(Clone)]
pub(super) struct ViewChecks {
    checksums: Cache<CheckedData, SharedChecksum>,
    source: Arc<PageSource>,
    last_number: Arc<AtomicU64>,
}

impl ViewChecks {
    pub(super) fn new(source: Arc<PageSource>, interval: Duration) -> Self {
        let weigher = |_: &CheckedData, checksum: &SharedChecksum| {
            let deleted = checksum.as_ref().as_ref().map_or(0, |checksum| checksum.scope.without_roles.len());
            let size = size_of::<ServiceChecksum>() + deleted * size_of::<AgentHash>() * 2;
            u32::try_from(size).unwrap_or(u32::MAX)
        };
        Self {
            checksums: Cache::builder().max_capacity(MAX_SIZE).weigher(weigher).time_to_live(interval).build(),
            source,
            last_number: Arc::default(),
        }
    }

    /// The checksum of the interval; `None` if it cannot be read now.
    async fn get(self, data: CheckedData) -> Option<SharedChecksum> {
        self.checksums.try_get_with(data, self.load(data)).await.ok()
    }

    async fn load(&self, data: CheckedData) -> Result<SharedChecksum, Status> {
        let PageSource { store, settings: _, agent_hash_secret: _, limit: _, turns, reads } = &*self.source;
        let (store, format, reads) = (store.clone(), self.source.format(data.group), reads.clone());
        let number = self.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        let read = async move {
            reads.inc();
            Ok(Arc::new(read(&store, (data, number), &format).await?))
        };
        turns.read(data.group, read).await
    }
}

/// The checksums of one stream.
#[derive(Default)]
pub(super) struct StreamChecks {
    key_checks: u32,
    /// The task that gets a checksum.
    awaited: Option<JoinHandle<Option<SharedChecksum>>>,
    /// The number of the last checksum that was sent, or that could not be sent any more.
    pub(super) done: u64,
}

impl StreamChecks {
    /// The API key was checked. Begins to wait for the checksum of the interval.
    pub(super) fn key_checked(&mut self, checks: &ViewChecks, data: CheckedData) {
        self.key_checks = self.key_checks.saturating_add(1);
        if self.key_checks > MIN_KEY_CHECKS && self.awaited.is_none() {
            self.awaited = Some(tokio::spawn(checks.clone().get(data)));
        }
    }

    /// Whether the stream waits for a checksum.
    pub(super) const fn is_waiting(&self) -> bool {
        self.awaited.is_some()
    }

    /// Waits for the checksum. Nothing is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> Option<SharedChecksum> {
        let checksum = self.awaited.as_mut()?.await;
        self.awaited = None;
        // The task fails only at the end of the process.
        checksum.ok().flatten()
    }
}

/// Reads the data of a service, and computes its checksum. The content is that of one instant, so no change above the revision is in
/// it.
async fn read(
    store: &Store,
    (data, number): (CheckedData, u64),
    format: &StreamFormat,
) -> Result<Option<ServiceChecksum>, StoreError> {
    let CheckedData { group: StreamGroup { service, owner: _ }, includes_unbound } = data;
    let mut read = store.read().await?;
    let conn = read.conn();
    let position = feed::position(conn).await?;
    let header = page_reader::read_service(conn, service).await?;
    if header.is_deleted || (header.accepts_unbound() == Some(true)) != includes_unbound {
        return Ok(None);
    }
    // Sidecars of a service that no longer accepts unbound tokens still have changes that concern such tokens.
    if !includes_unbound && feed::settings_changed_since(conn, service, position.floor).await? {
        return Ok(None);
    }
    let range = RevisionRange { since: position.floor, until: position.revision };
    let filter = RecipientFilter { service, includes_unbound };
    let range_data = changed_data::read(conn, range, Some(filter), ReadLimit::entries(MAX_CHANGES)).await?;
    if range_data.until < position.revision {
        return Ok(None);
    }
    let changes = page_reader::read_content(conn, range_data.changes, PageKind::Snapshot).await?;
    let holders: Vec<_> = changes.agents.iter().filter(|(_, it)| it.roles.is_some()).map(|(agent, _)| *agent).collect();
    let deleted = changed_roles::find_deleted_agents(conn, &holders).await?;
    drop(read);
    if deleted.len() > MAX_DELETED_AGENTS {
        return Ok(None);
    }
    // A grant that was deleted some time after its end had ended at the time of an earlier revision.
    let time = store.now().max(Timestamp::from_micros(position.revision.number()));
    let without_roles = hashes(&deleted, &format.agent_hash_key);
    let scope = ChecksumScope { floor: position.floor, time, without_roles };
    let checksum = checksum(&scope, format, (&header, &changes));
    Ok(Some(ServiceChecksum { number, revision: position.revision, data, scope, checksum }))
}

fn hashes(agents: &[AgentId], key: &AgentHashKey) -> HashSet<AgentHash> {
    agents.iter().map(|agent| key.hash(*agent)).collect()
}

fn checksum(
    scope: &ChecksumScope,
    format: &StreamFormat,
    (header, changes): (&Changes, &Changes),
) -> [u8; CHECKSUM_LEN] {
    let agent_hash_key = &format.agent_hash_key;
    let settings = ChecksumSettings {
        service: format.service,
        issuer: &format.settings.issuer,
        accepts_unbound: header.accepts_unbound() == Some(true),
        max_staleness_seconds: format.settings.max_staleness.as_secs().min(u32::MAX.into()),
        agent_hash_key,
    };
    let definitions = header.definitions.iter().flat_map(Definitions::roles);
    let mut checksum = ViewChecksum::new(scope, settings, definitions);
    for point in header.keys.iter().flatten() {
        checksum.add_key(point);
    }
    for (agent, changes) in &changes.agents {
        checksum.add_agent(agent_hash_key.hash(*agent), changes);
    }
    for (subject, revision) in &changes.revoked {
        let subject = match *subject {
            RevokedSubject::Token(token) => ChecksumRevocation::Token(token),
            RevokedSubject::Session(session) => ChecksumRevocation::Session(session),
        };
        checksum.add_revocation(subject, *revision);
    }
    checksum.to_bytes()
}
