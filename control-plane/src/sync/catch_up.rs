//! Sends a snapshot or the missed changes to a sidecar, page by page, until its stream can continue with the live changes.
//!
//! Pages are consecutive ranges of the change feed, so the revision up to which a sidecar has everything only grows. A snapshot
//! begins at the floor of the feed (changes up to it may be deleted), and ends at the revision at which its settings were read.
//! Later changes follow as missed changes. The stream subscribes to live changes only when it has sent almost everything, so a long
//! catch-up does not overflow its queue. After it has subscribed, it sends pages up to the revision at which its queue begins, so
//! the sidecar misses no change.

use super::{
    context::{changes_deleted, database_unavailable, invalid_key},
    encode::PageKind,
    feed::Subscription,
    follower::Follower,
    page_reader::{EncodedPage, PageRun, ReadKey, StreamGroup},
};
use crate::{
    domain::{agent::OwnerHash, change::FeedPosition, service::ServiceSettings},
    store::{Store, StoreError, feed, services},
};
use bytes::Bytes;
use countersign_identity::Revision;
use countersign_proto::{
    encoded::EncodedResponse,
    v1::{Delta, SnapshotPage, SnapshotProgress},
};
use futures_util::FutureExt as _;
use std::sync::Arc;
use tonic::Status;

/// What a sidecar has when it connects.
#[derive(Debug, Clone, Copy)]
pub(super) struct SidecarState {
    /// The revision of the sidecar's view; 0 if it has no view.
    pub(super) revision: Revision,
    /// The part of a snapshot that the sidecar has received.
    pub(super) partial_snapshot: Option<SnapshotProgress>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Start {
    Resume(SidecarState),
    NewSnapshot,
}

/// How a sidecar gets the current data.
enum ResumePlan {
    /// The service is deleted, and the sidecar is told so.
    Deletion,
    NewSnapshot,
    /// The sidecar has the part of the snapshot of `revision` up to `cursor`, and gets the rest.
    RestOfSnapshot {
        revision: Revision,
        cursor: Revision,
    },
    MissedChanges,
}

/// A page, with the floor and the newest revision of the change feed when it was read.
struct ReadPage {
    page: EncodedPage,
    /// The page contains all changes up to this revision.
    until: Revision,
    floor: Revision,
    read_at: Revision,
}

/// A snapshot while it is sent.
struct OutgoingSnapshot {
    /// The snapshot contains all changes up to this revision.
    revision: Revision,
    /// The highest floor that the change feed had when a page was read.
    floor: Revision,
    /// With the message in `next`, the sidecar has all changes up to this revision.
    cursor: Revision,
    /// The next message. We hold it back until we know whether it is the last, because the last message says so.
    next: Bytes,
}

impl Follower {
    /// Sends everything that the sidecar lacks, and subscribes to the later changes.
    pub(super) async fn catch_up(&mut self, start: Start) -> Result<Subscription, Status> {
        match start {
            Start::Resume(state) => self.resume(state).await?,
            Start::NewSnapshot => self.send_new_snapshot().await?,
        }
        loop {
            while self.sent_revision < self.known_revision {
                self.send_missed_page().await?;
            }
            let includes_unbound = self.includes_unbound;
            let feed = &self.context.parts.feed;
            let subscription = feed.subscribe(self.key.service, includes_unbound, self.stream.status());
            while self.sent_revision < subscription.start {
                self.send_missed_page().await?;
            }
            // If the service has begun to accept unbound tokens meanwhile, the queue lacks changes that concern them: subscribe again.
            if self.includes_unbound == includes_unbound {
                subscription.mark_caught_up();
                return Ok(subscription);
            }
        }
    }

    async fn resume(&mut self, state: SidecarState) -> Result<(), Status> {
        self.sidecar_revision = state.revision;
        let (plan, settings) = self.plan_resume(state).await?;
        match plan {
            ResumePlan::Deletion => self.send_deletion(state.revision).await,
            ResumePlan::NewSnapshot => self.send_new_snapshot().await,
            ResumePlan::RestOfSnapshot { revision, cursor } => {
                // Send the settings again, because those of the control plane may have changed since the first page.
                let next = self.format.settings(PageKind::Snapshot, &settings);
                self.send_snapshot(OutgoingSnapshot { revision, floor: Revision::default(), cursor, next }).await
            }
            ResumePlan::MissedChanges => {
                self.sent_revision = state.revision;
                self.stream.status().resumes_at(state.revision);
                let settings = self.format.settings(PageKind::Changes, &settings);
                self.send_delta(settings, state.revision).await
            }
        }
    }

    /// Determines how a sidecar gets the current data. Also returns the settings of the service.
    async fn plan_resume(&mut self, state: SidecarState) -> Result<(ResumePlan, ServiceSettings), Status> {
        let (store, group) = (self.context.parts.store.clone(), self.group());
        let read = async move { read_plan(&store, group, state).await };
        let (plan, position, settings) = self.context.reads.read(group.owner, read).await?;
        (self.known_revision, self.known_floor) = (position.revision, position.floor);
        self.includes_unbound = settings.accepts_unbound;
        Ok((plan, settings))
    }

    async fn send_new_snapshot(&mut self) -> Result<(), Status> {
        let header = self.context.pages.header(self.group(), self.known_revision, self.known_floor).await?;
        if header.is_deleted {
            return self.send_deletion(self.sidecar_revision.max(self.sent_revision)).await;
        }
        self.includes_unbound = header.includes_unbound;
        let (revision, floor, next) = (header.position.revision, header.position.floor, header.body.clone());
        self.send_snapshot(OutgoingSnapshot { revision, floor, cursor: floor, next }).await
    }

    /// Sends a snapshot from its cursor on. While we read its pages, the floor can rise, and pages then lack changes up to it. So
    /// the snapshot gets the highest floor of its pages: the sidecar refuses tokens with a lower `rev`, and changes up to the floor
    /// do not matter to other tokens.
    async fn send_snapshot(&mut self, mut snapshot: OutgoingSnapshot) -> Result<(), Status> {
        self.stream.status().sends(snapshot.revision);
        while snapshot.cursor < snapshot.revision {
            let ReadPage { page, until, floor, read_at } = self.next_page(PageKind::Snapshot, snapshot.cursor).await?;
            if floor > snapshot.revision {
                return Err(changes_deleted());
            }
            snapshot.floor = snapshot.floor.max(floor);
            self.known_revision = self.known_revision.max(read_at);
            for body in page.bodies {
                self.send_snapshot_message(&snapshot, false).await?;
                snapshot.next = body;
            }
            snapshot.cursor = until;
        }
        self.send_snapshot_message(&snapshot, true).await?;
        self.known_revision = self.known_revision.max(snapshot.revision);
        self.set_sent_revision(snapshot.revision);
        Ok(())
    }

    async fn send_snapshot_message(&self, snapshot: &OutgoingSnapshot, last: bool) -> Result<(), Status> {
        let OutgoingSnapshot { revision, floor, cursor, next } = snapshot;
        let head = SnapshotPage {
            revision: revision.number(),
            floor: floor.number(),
            cursor: cursor.number(),
            last,
            ..SnapshotPage::default()
        };
        self.send(EncodedResponse::snapshot(&head, next.clone())).await
    }

    /// Sends the changes of the next page. If the service begins to accept unbound tokens, sends a snapshot instead, because the sidecar
    /// lacks the earlier changes that concern such tokens.
    async fn send_missed_page(&mut self) -> Result<(), Status> {
        let ReadPage { page, until, floor, read_at } = self.next_page(PageKind::Changes, self.sent_revision).await?;
        if floor > self.sent_revision {
            return Err(changes_deleted());
        }
        self.known_revision = self.known_revision.max(read_at);
        if page.accepts_unbound == Some(true) && !self.includes_unbound {
            return self.send_new_snapshot().await;
        }
        let last = page.bodies.len().saturating_sub(1);
        for (index, body) in page.bodies.into_iter().enumerate() {
            // Only the last message has the new revision, because before it, the sidecar lacks some of the changes.
            let revision = if index == last { until } else { self.sent_revision };
            self.send_delta(body, revision).await?;
        }
        self.set_sent_revision(until);
        self.includes_unbound = page.accepts_unbound.unwrap_or(self.includes_unbound);
        if page.is_deleted { Err(invalid_key()) } else { Ok(()) }
    }

    /// Sends a delta with an encoded body.
    pub(super) async fn send_delta(&mut self, body: Bytes, revision: Revision) -> Result<(), Status> {
        self.stream.status().sends(revision);
        self.send(EncodedResponse::delta(&Delta { revision: revision.number(), ..Delta::default() }, body)).await
    }

    /// Returns the page above a revision. The follower keeps no pages for later, so that a slow sidecar occupies little memory. If the
    /// cache has dropped the page, it is read again. Also checks the API key when this is due.
    async fn next_page(&mut self, kind: PageKind, since: Revision) -> Result<ReadPage, Status> {
        if self.key_check.tick().now_or_never().is_some() {
            self.check_key_or_send_deletion().await?;
        }
        let is_usable = |run: &Arc<PageRun>| {
            let ReadKey { kind: run_kind, includes_unbound, .. } = run.key;
            run_kind == kind && includes_unbound == self.includes_unbound && run.page_above(since).is_some()
        };
        let key = ReadKey { group: self.group(), since, kind, includes_unbound: self.includes_unbound };
        let run = if let Some(run) = self.run.upgrade().filter(is_usable) {
            run
        } else {
            let run = self.context.pages.get(key).await?;
            self.use_run(&run);
            run
        };
        let page = run.page_above(since).ok_or_else(changes_deleted)?;
        let encoded = page.encoded(kind, &self.format);
        Ok(ReadPage { page: encoded, until: page.until, floor: run.floor, read_at: run.read_at })
    }

    /// Remembers the pages of a read for as long as the cache has them, and begins to read the next ones.
    fn use_run(&mut self, run: &Arc<PageRun>) {
        self.run = Arc::downgrade(run);
        if !run.is_complete() {
            self.context.pages.prefetch(ReadKey { since: run.until(), ..run.key });
        }
    }

    pub(super) fn group(&self) -> StreamGroup {
        StreamGroup { service: self.key.service, owner: OwnerHash::of(&self.key.owner) }
    }

    pub(super) async fn is_deleted(&self) -> Result<bool, Status> {
        let find = async { services::find_live(self.context.parts.store.read().await?.conn(), self.key.service).await };
        Ok(find.await.map_err(|error: StoreError| database_unavailable(&error))?.is_none())
    }
}

/// Decides how a sidecar gets the current data, and reads the position of the change feed and the settings of the service. A
/// sidecar cannot resume if its revision is no longer in the feed. Nor can it resume if the service accepts unbound tokens and its
/// settings have changed since that revision: the service may have begun to accept them, and the sidecar lacks the earlier changes
/// that concern such tokens.
async fn read_plan(
    store: &Store,
    StreamGroup { service, owner: _ }: StreamGroup,
    SidecarState { revision, partial_snapshot }: SidecarState,
) -> Result<(ResumePlan, FeedPosition, ServiceSettings), StoreError> {
    let mut read = store.read().await?;
    let conn = read.conn();
    let position = feed::position(conn).await?;
    let Some(live) = services::find_live(conn, service).await? else {
        return Ok((ResumePlan::Deletion, position, ServiceSettings::default()));
    };
    let includes_unbound = live.accepts_unbound;
    let mut can_resume_at = async |revision| {
        Ok::<_, StoreError>(
            feed::can_resume_at(conn, position, revision).await?
                && !(includes_unbound && feed::settings_changed_since(conn, service, revision).await?),
        )
    };
    if let Some(SnapshotProgress { revision, cursor }) = partial_snapshot {
        let (revision, cursor) = (Revision::new(revision), Revision::new(cursor));
        if cursor <= revision && can_resume_at(revision).await? {
            return Ok((ResumePlan::RestOfSnapshot { revision, cursor }, position, live.settings()));
        }
    }
    let can_resume = can_resume_at(revision).await?;
    let plan = if can_resume { ResumePlan::MissedChanges } else { ResumePlan::NewSnapshot };
    Ok((plan, position, live.settings()))
}
