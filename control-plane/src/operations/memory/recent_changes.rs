//! Tells whether data that was read from the database is still the content of the database.
//!
//! Every request that uses data in memory calls [`RecentChanges::current`] first. This reads from the change feed, after the
//! request arrived, what any process has changed; concurrent requests share the read. So a request never uses data that was
//! outdated when the request arrived, on any number of replicas. Without the database, no data in memory is used.

use crate::{
    domain::change::{Change, FeedPosition, RevisionRange},
    store::{
        SHARED_READ_TIMEOUT, SharedRead, Store, StoreError, feed,
        recent_changes::{self, UnpublishedScores},
    },
};
use countersign_identity::{AgentId, Revision};
use std::{
    collections::HashMap,
    mem,
    sync::{Arc, PoisonError, RwLock},
};

/// If a read finds this many changes or more, everything in memory counts as changed.
const MAX_CHANGES_PER_READ: i64 = 4096;

/// When a generation of [`ChangeIndex`] has this many subjects or more, the next read begins a new generation.
const MAX_SUBJECTS_PER_GENERATION: usize = 1 << 15;

/// The number of a history: a series of changes that this process has followed without a gap. A new history begins when we do not know
/// all changes since the last read. Data that we read in an earlier history never applies again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HistoryNumber(u64);

/// When data in memory was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadAt {
    /// The history, as it was before the read began.
    pub history: HistoryNumber,
    /// The revision of the database in the snapshot that was read.
    pub revision: Revision,
}

#[derive(Default)]
pub struct RecentChanges {
    read: SharedRead<Arc<CurrentState>>,
    index: RwLock<ChangeIndex>,
}

/// The state of the database at a read: the position of the change feed, and the new trust scores that the feed does not have yet.
#[derive(Debug)]
pub struct CurrentState {
    position: FeedPosition,
    unpublished: UnpublishedScores,
}

impl CurrentState {
    /// The revision floor. Changes up to it may be deleted from the feed, so tokens with a lower `rev` are invalid.
    pub const fn floor(&self) -> Revision {
        self.position.floor
    }

    /// Whether the agent's trust score may have changed without a change in the change feed.
    pub fn trust_may_differ(&self, agent: AgentId) -> bool {
        self.unpublished.may_include(agent)
    }
}

impl RecentChanges {
    /// The state at a read that begins after this call.
    pub async fn current(&self, store: &Store) -> Result<Arc<CurrentState>, StoreError> {
        self.read.run(self.read_state(store)).await
    }

    /// The history to store with data that the caller reads after this call.
    pub fn history(&self) -> HistoryNumber {
        self.index.read().unwrap_or_else(PoisonError::into_inner).history
    }

    /// Whether `subjects` are the same in the state `current` as at `read_at`.
    pub fn are_unchanged(&self, current: &CurrentState, read_at: ReadAt, subjects: &[Change]) -> bool {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        // The read of `current` has advanced the index to its revision at least. If the index is behind this revision now, a later
        // read found that the database has lost commits, and we know nothing about the state `current`.
        index.reached >= current.position.revision && index.are_unchanged(read_at, subjects)
    }

    /// Reads the state, and adds the new changes to the index. Only the shared read calls this, so there is one call at a time.
    async fn read_state(&self, store: &Store) -> Result<Arc<CurrentState>, StoreError> {
        let reached = self.index.read().unwrap_or_else(PoisonError::into_inner).reached;
        // Most reads find no new change. They need only this one statement.
        let (position, unpublished) = store.read_one_for(SHARED_READ_TIMEOUT, recent_changes::find_state).await?;
        if position.revision == reached {
            return Ok(Arc::new(CurrentState { position, unpublished }));
        }
        let mut read = store.read_for(SHARED_READ_TIMEOUT).await?;
        let (position, unpublished) = recent_changes::find_state(read.conn()).await?;
        // If the database has lost commits, `reached` is above the newest revision, or is no revision of the feed any more. It is below
        // the floor if changes were deleted before we read them. In each case, a new history begins.
        let continues = (position.floor..=position.revision).contains(&reached)
            && feed::can_resume_at(read.conn(), position, reached).await?;
        let changes = if continues {
            let range = RevisionRange { since: reached, until: position.revision };
            recent_changes::list_changes(read.conn(), range, MAX_CHANGES_PER_READ).await?
        } else {
            None
        };
        self.index.write().unwrap_or_else(PoisonError::into_inner).advance(position.revision, changes);
        Ok(Arc::new(CurrentState { position, unpublished }))
    }
}

/// The revision of the last change of each subject, in two generations. When the newer generation is full, we drop the older one.
#[derive(Debug, Default)]
struct ChangeIndex {
    history: HistoryNumber,
    newer: HashMap<Change, Revision>,
    older: HashMap<Change, Revision>,
    /// The index contains all changes above this revision, up to `reached`.
    complete_from: Revision,
    /// The generation `newer` contains the changes above this revision.
    newer_from: Revision,
    /// The revision up to which we have read the changes.
    reached: Revision,
}

impl ChangeIndex {
    /// Adds all changes from `reached` up to `revision`. `None`: we do not know all of them, so a new history begins.
    fn advance(&mut self, revision: Revision, changes: Option<Vec<(Change, Revision)>>) {
        let Some(changes) = changes else {
            let history = HistoryNumber(self.history.0 + 1);
            *self =
                Self { history, complete_from: revision, newer_from: revision, reached: revision, ..Self::default() };
            return;
        };
        if self.newer.len() >= MAX_SUBJECTS_PER_GENERATION {
            self.older = mem::take(&mut self.newer);
            (self.complete_from, self.newer_from) = (self.newer_from, self.reached);
        }
        self.newer.extend(changes);
        self.reached = revision;
    }

    fn are_unchanged(&self, ReadAt { history, revision: since }: ReadAt, subjects: &[Change]) -> bool {
        let changed_later = |subject: &Change| {
            let changed_at = self.newer.get(subject).or_else(|| self.older.get(subject));
            changed_at.is_some_and(|revision| *revision > since)
        };
        history == self.history
            && (self.complete_from..=self.reached).contains(&since)
            && !subjects.iter().any(changed_later)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_identity::{ServiceId, SessionId};

    fn revision(number: i64) -> Revision {
        Revision::new(number)
    }

    /// Whether data that was read at a revision of the newest history is unchanged.
    fn is_unchanged(index: &ChangeIndex, since: i64, subjects: &[Change]) -> bool {
        index.are_unchanged(ReadAt { history: index.history, revision: revision(since) }, subjects)
    }

    fn trust(agent: i64) -> Change {
        Change::Trust(AgentId::from_bits(agent.unsigned_abs().into()))
    }

    #[test]
    fn change_after_a_revision_is_known_and_an_earlier_one_does_not_matter() {
        let mut index = ChangeIndex::default();
        index.advance(revision(10), None);
        index.advance(
            revision(13),
            Some(vec![(trust(1), revision(11)), (trust(2), revision(12)), (trust(1), revision(13))]),
        );
        let (roles, session) =
            (Change::Roles(AgentId::from_bits(1), ServiceId::from_bits(1)), Change::Session(SessionId::from_bits(1)));
        assert!(!is_unchanged(&index, 12, &[roles, trust(1)]));
        assert!(is_unchanged(&index, 13, &[roles, trust(1)]));
        assert!(is_unchanged(&index, 12, &[roles, session, trust(2), trust(3)]));
        assert!(!is_unchanged(&index, 11, &[trust(2)]));
    }

    #[test]
    fn nothing_is_known_of_a_revision_outside_of_the_index() {
        let mut index = ChangeIndex::default();
        index.advance(revision(10), None);
        index.advance(revision(20), Some(Vec::new()));
        for (since, is_known) in [(9, false), (10, true), (20, true), (21, false)] {
            assert_eq!(is_unchanged(&index, since, &[trust(1)]), is_known, "{since}");
        }
        // The database was restored from a backup, or changes were deleted before they were read.
        let before = ReadAt { history: index.history, revision: revision(18) };
        assert!(index.are_unchanged(before, &[trust(1)]));
        index.advance(revision(15), None);
        for (since, is_known) in [(14, false), (15, true), (16, false), (20, false)] {
            assert_eq!(is_unchanged(&index, since, &[trust(1)]), is_known, "{since}");
        }
    }

    #[test]
    fn data_of_an_earlier_history_never_applies_again() {
        let mut index = ChangeIndex::default();
        index.advance(revision(20), None);
        let lost = ReadAt { history: index.history, revision: revision(20) };
        assert!(index.are_unchanged(lost, &[trust(1)]));
        index.advance(revision(15), None);
        index.advance(revision(25), Some(Vec::new()));
        assert!(!index.are_unchanged(lost, &[trust(1)]));
        assert!(is_unchanged(&index, 20, &[trust(1)]));
    }

    #[test]
    fn old_changes_are_forgotten_with_the_revisions_that_they_follow() {
        let mut index = ChangeIndex::default();
        let batch = i64::try_from(MAX_SUBJECTS_PER_GENERATION).unwrap();
        for number in 0..5 {
            let first = number * batch;
            let changes = (1..=batch).map(|offset| (trust(first + offset), revision(first + offset)));
            index.advance(revision(first + batch), Some(changes.collect()));
            assert!(index.newer.len() + index.older.len() <= 2 * MAX_SUBJECTS_PER_GENERATION);
        }
        // The last two batches are known.
        assert!(!is_unchanged(&index, 3 * batch, &[trust(3 * batch + 1)]));
        assert!(is_unchanged(&index, 3 * batch, &[trust(3 * batch)]));
        assert!(!is_unchanged(&index, 3 * batch - 1, &[trust(1)]));
    }
}
