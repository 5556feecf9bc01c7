//! The state of a sync stream, and up to which revision its sidecar has the data.

use super::Sidecars;
use crate::domain::sidecar::{CLOCK_MARGIN, Sidecar, SidecarIdentity, SidecarInstance, SidecarProgress};
use countersign_identity::{Revision, Timestamp};
use countersign_process::Clock;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::Notify;

/// We cut the release that a sidecar states to this number of bytes.
const MAX_RELEASE: usize = 64;

/// For how long we try to delete the row of the previous process, which we can do only when the last stream of that process has
/// ended. If the control plane of that stream was killed, another one ends the stream after 30 seconds.
const FORGET_TIMEOUT: Duration = Duration::from_mins(1);

/// What a sidecar says of itself when it opens a stream.
pub struct NewStream {
    /// The process.
    pub identity: SidecarIdentity,
    /// The number of the stream in the process of the sidecar.
    pub number: i64,
    /// Whether the sidecar has a view.
    pub has_view: bool,
    /// The earlier process of the sidecar whose copy on disk this process has taken over. The sidecar guarantees that it has ended.
    pub previous: Option<SidecarInstance>,
    /// When its last confirmation is this old, the sidecar refuses all requests.
    pub max_staleness: Duration,
}

/// An open stream. Dropping it states that the stream has ended.
pub struct OpenStream {
    sidecars: Sidecars,
    status: Arc<StreamStatus>,
}

/// The state of a stream, which its follower and the journal share.
pub struct StreamStatus {
    pub(super) identity: SidecarIdentity,
    /// The number of the stream in the process of the sidecar.
    pub(super) number: i64,
    pub(super) connected_at: Timestamp,
    pub(super) max_staleness: Duration,
    /// Notified when the database has the stream.
    pub(super) recorded: Notify,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

/// What a stream has sent, and what its sidecar has reported.
struct State {
    phase: Phase,
    /// The newest revision that the sidecar has reported.
    reported: Revision,
    reported_at: Option<Timestamp>,
    /// The newest revision of a message that we sent. When the sidecar reports it, it has applied everything that we sent.
    sent: Revision,
    /// Of all changes up to this revision, we have sent those that concern the sidecar.
    covered: Revision,
    /// The newest revision of the changes in the queue of the stream.
    queued: Revision,
    /// Whether the stream may lack changes that are not in its queue.
    is_behind: bool,
    /// How many more reports the sidecar may send: one for each message that we sent.
    reports_left: u32,
    /// The latest possible time of the sidecar's last confirmation, since boot. `None`: the sidecar was never confirmed.
    latest_confirmation: Option<Duration>,
    /// See [`NewStream::previous`].
    previous: Option<SidecarInstance>,
    /// Until when we try to delete the row of the previous process, since boot. `None` before the sidecar has reported data.
    forgets_until: Option<Duration>,
}

/// Whether the sidecar still uses the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The stream is open.
    InUse,
    /// The stream has ended, but the sidecar may decide with its data for a while.
    Ended,
    /// The sidecar has said that it no longer decides.
    Left,
}

/// The sidecar reports data that we did not send, or reports more often than we sent data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotSent;

impl Sidecars {
    /// Makes the state of a stream that a sidecar has opened.
    pub fn open(&self, new: NewStream) -> OpenStream {
        let status = Arc::new(StreamStatus::new(new, Arc::clone(&self.0.clock)));
        OpenStream { sidecars: self.clone(), status }
    }
}

impl OpenStream {
    pub fn status(&self) -> Arc<StreamStatus> {
        Arc::clone(&self.status)
    }

    /// Waits until the stream is recorded; do not confirm the sidecar before. Never returns if the process has a later stream here.
    pub async fn record(&self) {
        self.sidecars.streams().insert(self.status());
        while !self.may_be_confirmed() {
            self.sidecars.0.wakeup.notify_one();
            self.status.recorded.notified().await;
        }
    }

    /// Whether the sidecar may be confirmed: its pings may be answered.
    pub fn may_be_confirmed(&self) -> bool {
        self.sidecars.streams().may_be_confirmed(&self.status, &self.sidecars.name())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.status.end(Phase::Ended);
    }
}

impl State {
    fn progress(&self) -> SidecarProgress {
        // A sidecar that has applied all our messages lacks no change up to `covered`: other changes do not concern the sidecar.
        let has_all = self.reported >= self.sent;
        SidecarProgress {
            applied: if has_all { self.reported.max(self.covered) } else { self.reported },
            required: if self.is_behind { SidecarProgress::NOT_KNOWN } else { self.queued.max(self.sent) },
            applied_at: self.reported_at,
        }
    }
}

impl StreamStatus {
    pub(super) fn new(new: NewStream, clock: Arc<dyn Clock>) -> Self {
        let NewStream { mut identity, number, has_view, previous, max_staleness } = new;
        let release = &mut identity.release;
        release.retain(|character| !character.is_control());
        release.truncate(release.floor_char_boundary(MAX_RELEASE));
        release.shrink_to_fit();
        // We assume the worst: on an earlier stream, the sidecar may have been confirmed just now.
        let latest_confirmation = (has_view || number > 1).then(|| clock.since_boot());
        let previous = previous.filter(|previous| *previous != identity.instance);
        Self {
            identity,
            number,
            connected_at: clock.now(),
            max_staleness,
            recorded: Notify::new(),
            clock,
            state: Mutex::new(State {
                phase: Phase::InUse,
                reported: Revision::default(),
                reported_at: None,
                sent: Revision::default(),
                covered: Revision::default(),
                queued: Revision::default(),
                is_behind: true,
                reports_left: 0,
                latest_confirmation,
                previous,
                forgets_until: None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn phase(&self) -> Phase {
        self.state().phase
    }

    fn end(&self, phase: Phase) {
        let mut state = self.state();
        if state.phase == Phase::InUse {
            state.phase = phase;
        }
    }

    /// Call when the sidecar says that it no longer decides.
    pub fn leave(&self) {
        self.end(Phase::Left);
    }

    /// Call when the sidecar resumes at the revision of its view. Only its first report shows that it decides with this view.
    pub fn resumes_at(&self, revision: Revision) {
        let mut state = self.state();
        (state.sent, state.covered) = (revision, revision);
    }

    /// Call when the change feed stops putting new changes into the queue of the stream.
    pub fn falls_behind(&self) {
        self.state().is_behind = true;
    }

    /// Call when the stream lacks only changes that are in its queue, and the change feed will put all new ones there.
    pub fn catches_up(&self) {
        self.state().is_behind = false;
    }

    /// Call before the change feed puts changes up to a revision into the queue of the stream.
    pub fn queues(&self, revision: Revision) {
        let mut state = self.state();
        state.queued = state.queued.max(revision);
    }

    /// Call before a message with changes up to a revision is sent.
    pub fn sends(&self, revision: Revision) {
        let mut state = self.state();
        state.sent = state.sent.max(revision);
        state.reports_left = state.reports_left.saturating_add(1);
    }

    /// Call when we have sent all changes up to a revision.
    pub fn covers(&self, revision: Revision) {
        let mut state = self.state();
        state.covered = state.covered.max(revision);
    }

    /// Call when a ping arrives. Our answer confirms the view as of the time when the ping was sent, so not later than now.
    pub fn will_confirm(&self) {
        let now = self.clock.since_boot();
        self.state().latest_confirmation = Some(now);
    }

    /// Call when the sidecar reports that it decides with all changes up to a revision. It never returns to older data.
    pub fn report(&self, revision: Revision) -> Result<(), NotSent> {
        let mut state = self.state();
        state.reports_left = state.reports_left.checked_sub(1).ok_or(NotSent)?;
        if revision > state.sent {
            return Err(NotSent);
        }
        state.reported = state.reported.max(revision);
        state.reported_at = Some(self.clock.now());
        state.forgets_until.get_or_insert_with(|| self.clock.since_boot() + FORGET_TIMEOUT);
        Ok(())
    }

    /// The previous process, if we must still delete its row.
    pub(super) fn process_to_forget(&self) -> Option<SidecarInstance> {
        let state = self.state();
        state.previous.filter(|_| state.forgets_until.is_some_and(|until| self.clock.since_boot() < until))
    }

    /// Call when the row of the previous process is gone.
    pub(super) fn clear_previous(&self) {
        self.state().previous = None;
    }

    /// Whether the sidecar of this ended stream refuses all requests by now, even for a control plane whose clock is behind. A
    /// sidecar that was never confirmed counts as confirmed at boot.
    pub(super) fn has_expired(&self) -> bool {
        let latest_confirmation = self.state().latest_confirmation.unwrap_or_default();
        let age = self.clock.since_boot().saturating_sub(latest_confirmation);
        age >= self.max_staleness + CLOCK_MARGIN * 2
    }

    /// The latest possible time of the sidecar's last confirmation, by the wall clock. `None`: the sidecar was never confirmed.
    pub(super) fn latest_confirmation(&self) -> Option<Timestamp> {
        let latest_confirmation = self.state().latest_confirmation?;
        Some(self.clock.now().saturating_sub(self.clock.since_boot().saturating_sub(latest_confirmation)))
    }

    pub(super) fn progress(&self) -> SidecarProgress {
        self.state().progress()
    }

    /// The revision in force at the sidecar. `distributed`: all changes up to this revision are in the queues of the streams that
    /// they concern.
    pub(super) fn in_force(&self, distributed: Revision) -> Revision {
        self.progress().in_force(distributed)
    }

    /// Whether the stream is open, and its sidecar may lack a revision. `distributed`: see [`Self::in_force`].
    pub(super) fn may_lack(&self, revision: Revision, distributed: Revision) -> bool {
        self.phase() == Phase::InUse && self.in_force(distributed) < revision
    }

    /// Replaces the values in `sidecar`, which come from its row, by the values of the stream.
    pub(super) fn describe(&self, sidecar: &mut Sidecar, distributed: Revision) {
        let latest_confirmation = self.latest_confirmation();
        // The row may still describe an earlier stream of the same process.
        (sidecar.identity, sidecar.connected_at) = (self.identity.clone(), self.connected_at);
        sidecar.is_connected = self.phase() == Phase::InUse;
        sidecar.in_force = self.in_force(distributed);
        sidecar.applied_at = self.progress().applied_at;
        sidecar.last_known_confirmation = latest_confirmation;
        sidecar.refuses_by = latest_confirmation.map(|time| time.saturating_add(sidecar.max_staleness));
    }
}

#[cfg(test)]
impl NewStream {
    /// A stream of a sidecar without a view.
    pub fn for_tests(instance: SidecarInstance) -> Self {
        let identity = SidecarIdentity {
            instance,
            api_key: countersign_identity::ApiKeyId::from_bits(1),
            service: countersign_identity::ServiceId::from_bits(1),
            address: "192.0.2.1:1000".to_owned(),
            release: "0.1.0".to_owned(),
        };
        Self { identity, number: 1, has_view: false, previous: None, max_staleness: Duration::from_mins(1) }
    }
}

#[cfg(test)]
impl StreamStatus {
    /// The state of a stream that no sidecar uses.
    pub fn for_tests() -> Arc<Self> {
        let instance = SidecarInstance::from_bytes([1; 16]);
        Arc::new(Self::new(NewStream::for_tests(instance), Arc::new(countersign_process::SystemClock)))
    }
}

#[cfg(test)]
mod tests;
