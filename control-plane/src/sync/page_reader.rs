//! Reads pages for the streams of one service. A page has the current state of everything that changed for the service in a range of
//! revisions. Snapshots and missed changes consist of pages.
//!
//! A page depends on its [`ReadKey`] only, never on the stream that requested it, so all streams of a service can share it.
//! Invariants: a page contains all changes of its range above the floor of its [`PageRun`] (others may be deleted). The content of
//! a page is never older than its revisions. Data that changed in the ranges of two pages is in both: a sidecar may disconnect
//! after the first, and resume from there.

use super::{
    change_batch::{self, Changes},
    encode::{PageKind, StreamFormat},
};
use crate::{
    domain::{
        agent::OwnerHash,
        change::{Change, FeedPosition, RevisionRange},
    },
    store::{
        Conn, Store, StoreError,
        changed_data::{self, ChangedData, ChangedRange, ReadLimit},
        feed::{self, RecipientFilter},
        services,
    },
};
use bytes::Bytes;
use countersign_identity::{Revision, ServiceId};
use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

/// Estimated encoded size of the change of an agent without roles, in bytes.
const AGENT_SIZE: usize = 64;

/// Estimated encoded size of a role of an agent, in bytes.
const GRANT_SIZE: usize = 48;

/// A read adds no further page when its pages have this estimated encoded size. Without this limit, a read could have many large
/// pages, because an agent with many roles can be in each of them.
const MAX_RUN_SIZE: usize = 2 * 1024 * 1024;

/// The streams of one service, which receive the same data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamGroup {
    pub service: ServiceId,
    pub owner: OwnerHash,
}

/// Everything that the content of pages depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReadKey {
    pub group: StreamGroup,
    /// The pages contain changes above this revision.
    pub since: Revision,
    pub kind: PageKind,
    /// Whether changes that concern unbound tokens (for no service) are included.
    pub includes_unbound: bool,
}

/// The data with which a snapshot begins.
#[derive(Debug)]
pub struct SnapshotHeader {
    /// The newest revision and the revision floor when the data was read.
    pub position: FeedPosition,
    /// Whether the snapshot includes changes that concern unbound tokens.
    pub includes_unbound: bool,
    pub is_deleted: bool,
    /// The encoded settings, role definitions and signing keys.
    pub body: Bytes,
}

/// Consecutive pages from one read.
#[derive(Debug)]
pub struct PageRun {
    /// The newest revision when the pages were read.
    pub read_at: Revision,
    /// The revision floor when the pages were read: changes up to this revision may be missing.
    pub floor: Revision,
    pub key: ReadKey,
    /// The pages. The first begins where the read began, and each other begins where the previous one ends.
    pages: Vec<Page>,
}

/// The changes of a range of revisions. The first stream that sends them encodes them, while the next pages are read.
#[derive(Debug)]
pub struct Page {
    /// Exclusive lower bound of the range.
    pub since: Revision,
    /// Inclusive upper bound of the range.
    pub until: Revision,
    /// An upper bound of the memory that the page uses, in bytes, before and after it is encoded.
    size: usize,
    content: Mutex<PageContent>,
}

#[derive(Debug)]
enum PageContent {
    Read(Changes),
    Encoded(EncodedPage),
}

/// The encoded changes of a page.
#[derive(Debug, Clone)]
pub struct EncodedPage {
    /// The changes, in parts of bounded size.
    pub bodies: Vec<Bytes>,
    /// Whether the service accepts unbound tokens now; `None` if its settings have not changed.
    pub accepts_unbound: Option<bool>,
    pub is_deleted: bool,
}

impl PageRun {
    /// The pages cover all revisions up to this one.
    pub fn until(&self) -> Revision {
        self.pages.last().map_or(Revision::default(), |page| page.until)
    }

    /// Whether the pages contain all changes up to the newest revision when they were read.
    pub fn is_complete(&self) -> bool {
        self.until() >= self.read_at
    }

    /// The page that begins at a revision. `None` if there is none, or if it covers no later revision.
    pub fn page_above(&self, since: Revision) -> Option<&Page> {
        let index = self.pages.binary_search_by_key(&since, |page| page.since).ok()?;
        self.pages.get(index).filter(|page| page.until > since)
    }

    /// An upper bound of the memory that the pages use, in bytes.
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.pages.iter().map(|page| page.size).sum::<usize>()
    }
}

impl Page {
    fn new(RevisionRange { since, until }: RevisionRange, changes: Changes) -> Self {
        // The encoded changes need at most twice the memory of the changes.
        let size = size_of::<Self>() + 2 * changes.size();
        Self { since, until, size, content: Mutex::new(PageContent::Read(changes)) }
    }

    /// The encoded changes. Pass the kind and the format of the streams for which the page was read. While one stream encodes the page,
    /// the others wait, but not for long, because its size is bounded.
    pub fn encoded(&self, kind: PageKind, format: &StreamFormat) -> EncodedPage {
        let mut content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        let page = match &*content {
            PageContent::Encoded(page) => return page.clone(),
            PageContent::Read(changes) => EncodedPage {
                bodies: format.bodies(kind, changes).collect(),
                accepts_unbound: changes.accepts_unbound(),
                is_deleted: changes.is_deleted,
            },
        };
        *content = PageContent::Encoded(page.clone());
        page
    }
}

/// Reads pages. The number of changes per read is limited, so that each read is short.
pub async fn read(store: &Store, key: ReadKey, limit: ReadLimit) -> Result<PageRun, StoreError> {
    let mut read = store.read().await?;
    let conn = read.conn();
    let position = feed::position(conn).await?;
    let filter = RecipientFilter { service: key.group.service, includes_unbound: key.includes_unbound };
    // Skip entries at or below the floor, which may be deleted already. The first page covers their revisions nevertheless.
    let range = RevisionRange { since: key.since.max(position.floor), until: position.revision };
    let changed = changed_data::read(conn, range, Some(filter), limit).await?;
    let mut pages = Vec::new();
    for (range, changes) in split(RevisionRange { since: key.since, ..range }, changed) {
        pages.push(Page::new(range, read_content(conn, changes, key.kind).await?));
    }
    Ok(PageRun { read_at: position.revision, floor: position.floor, key, pages })
}

/// Reads the data with which a snapshot begins.
pub async fn read_header(store: &Store, format: &StreamFormat) -> Result<SnapshotHeader, StoreError> {
    let mut read = store.read().await?;
    let conn = read.conn();
    let position = feed::position(conn).await?;
    let changes = match services::find_live(conn, format.service).await? {
        Some(service) => Changes {
            settings: Some(service.settings()),
            definitions: Some(change_batch::role_definitions(conn, service.id).await?),
            keys: Some(change_batch::live_public_keys(conn).await?),
            ..Changes::default()
        },
        None => Changes::of_deleted_service(),
    };
    drop(read);
    let (includes_unbound, body) = (changes.accepts_unbound() == Some(true), format.snapshot_header(&changes));
    Ok(SnapshotHeader { position, includes_unbound, is_deleted: changes.is_deleted, body })
}

/// Reads the content of a page: the current state of everything that changed.
async fn read_content(conn: &mut Conn, entries: Vec<ChangedData>, kind: PageKind) -> Result<Changes, StoreError> {
    let mut changes = Changes::default();
    for data in entries {
        match (kind, data.entry.change) {
            // The header of the snapshot contains this data already. Later changes of this data follow after the snapshot.
            (PageKind::Snapshot, Change::Definitions(_) | Change::ServiceSettings(_) | Change::Keys) => {}
            _ => changes.add(data, conn).await?,
        }
    }
    Ok(changes)
}

/// Splits changes into pages of bounded size; leaves out the rest when the pages reach [`MAX_RUN_SIZE`]. All changes of a revision
/// stay in one page. Data that changed several times counts once per page, because the page contains it once.
fn split(range: RevisionRange, changed: ChangedRange) -> Vec<(RevisionRange, Vec<ChangedData>)> {
    let (mut pages, mut page, mut data_of_page, mut size) = (Vec::new(), Vec::new(), HashSet::new(), 0);
    let (mut since, mut run_size) = (range.since, 0);
    for data in changed.changes {
        let revision = data.entry.revision;
        let last = page.last().map(|last: &ChangedData| last.entry.revision);
        if let Some(until) = last.filter(|last| size >= StreamFormat::MAX_BODY && *last < revision) {
            pages.push((RevisionRange { since, until }, std::mem::take(&mut page)));
            run_size += size;
            if run_size >= MAX_RUN_SIZE {
                return pages;
            }
            (since, size) = (until, 0);
            data_of_page.clear();
        }
        if data_of_page.insert(data.entry.change) {
            size += AGENT_SIZE + GRANT_SIZE * data.grants.len();
        }
        page.push(data);
    }
    pages.push((RevisionRange { since, until: changed.until }, page));
    pages
}
