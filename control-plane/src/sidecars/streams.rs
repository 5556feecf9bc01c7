//! The state of a sync stream, and how far the data reaches with which its sidecar decides.

use crate::domain::sidecar::{
    LastConfirmation, Sidecar, SidecarIdentity, SidecarInstance, SidecarKey, SidecarProgress,
};
use countersign_identity::{ApiKeyId, Revision, ServiceId, Timestamp};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The longest release that is kept, in bytes.
const MAX_RELEASE: usize = 64;

/// What a sidecar says when it opens a stream.
pub struct NewStream {
    /// The process.
    pub instance: SidecarInstance,
    /// The API key.
    pub key: ApiKeyId,
    /// The service of the API key.
    pub service: ServiceId,
    /// The address of the connection.
    pub address: String,
    /// The release of the sidecar.
    pub release: String,
    /// The revision of the sidecar's view; 0 if it has none.
    pub revision: Revision,
    /// The revision with which the sidecar, and a process that starts from its copy, decide.
    pub applied: Revision,
    /// The place of the API key in the settings of the sidecar.
    pub key_index: u32,
    /// The number of the stream in the process of the sidecar, for this place.
    pub number: i64,
    /// An earlier process of which the sidecar says that it has ended, and whose copy the sidecar owns.
    pub previous: Option<SidecarInstance>,
    /// The age of the last confirmation at which the sidecar refuses all requests.
    pub max_staleness: Duration,
}

/// A stream.
pub struct StreamStatus {
    /// What the sidecar says of itself.
    pub(super) identity: SidecarIdentity,
    /// The number of the stream in the process of the sidecar.
    pub(super) number: i64,
    pub(super) connected_at: Timestamp,
    pub(super) max_staleness: Duration,
    state: Mutex<State>,
}

/// What a stream has sent, and what its sidecar has reported.
struct State {
    phase: Phase,
    recording: Recording,
    /// The revision with which the sidecar decides at the latest when it has connected.
    applied_before: Revision,
    /// An earlier process that is forgotten when the sidecar reports data.
    previous: Option<SidecarInstance>,
    /// The newest revision that the sidecar has reported.
    reported: Revision,
    reported_at: Option<Timestamp>,
    /// The newest revision of a message that was sent. When the sidecar has reported it, it has applied everything that was sent.
    sent: Revision,
    /// All changes up to this revision are in messages that were sent.
    covered: Revision,
    /// The newest revision of the changes in the queue of the stream.
    queued: Revision,
    /// Whether the stream may lack changes that are not in its queue.
    is_behind: bool,
    /// How many more reports the sidecar may send: one for each message that it was sent.
    reports_left: u32,
    confirmed_at: Option<Timestamp>,
    /// Whether a confirmation is being prepared.
    expects_confirmation: bool,
    /// The progress in the database.
    written: Option<SidecarProgress>,
}

/// Whether the database has the sidecar with this stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recording {
    /// It has not. The sidecar gets no confirmation.
    Missing,
    /// A transaction is writing it.
    Running,
    /// It has an open stream of this control plane, which is an earlier one. This stream is still to be recorded.
    Accepted,
    /// It has.
    Done,
    /// It has a later stream of the sidecar. The sidecar gets no confirmation any more.
    Replaced,
}

/// What the sidecar does with the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It decides with the data of this stream.
    InUse,
    /// The stream has ended.
    Ended,
    /// It decides no more.
    Left,
}

/// The sidecar reports data that it was not sent, or reports more often than it was sent data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotSent;

impl State {
    fn progress(&self) -> SidecarProgress {
        let has_all = self.reported >= self.sent;
        SidecarProgress {
            applied: if has_all { self.reported.max(self.covered) } else { self.reported },
            required: if self.is_behind { SidecarProgress::NOT_KNOWN } else { self.queued.max(self.sent) },
            applied_at: self.reported_at,
        }
    }
}

impl StreamStatus {
    pub(super) fn new(new: NewStream, now: Timestamp) -> Self {
        let NewStream {
            instance,
            key,
            service,
            address,
            mut release,
            revision,
            applied,
            key_index,
            number,
            previous,
            max_staleness,
        } = new;
        release.retain(|character| !character.is_control());
        release.truncate(release.floor_char_boundary(MAX_RELEASE));
        Self {
            identity: SidecarIdentity {
                key: SidecarKey { instance, index: key_index },
                api_key: key,
                service,
                address,
                release,
            },
            number,
            connected_at: now,
            max_staleness,
            state: Mutex::new(State {
                phase: Phase::InUse,
                recording: Recording::Missing,
                applied_before: applied.min(revision),
                previous: previous.filter(|previous| *previous != instance),
                reported: Revision::default(),
                reported_at: None,
                sent: Revision::default(),
                covered: Revision::default(),
                queued: Revision::default(),
                is_behind: true,
                reports_left: 0,
                // An earlier stream may have confirmed the view just now.
                confirmed_at: (revision > Revision::default()).then_some(now),
                expects_confirmation: false,
                written: None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn phase(&self) -> Phase {
        self.state().phase
    }

    /// Ends the stream. Returns whether the database has it, unless it had ended.
    pub(super) fn end(&self, phase: Phase) -> Option<Recording> {
        let mut state = self.state();
        if state.phase != Phase::InUse {
            return None;
        }
        state.phase = phase;
        Some(state.recording)
    }

    /// A transaction begins to record the stream. Returns the progress to record; `None` if the stream has ended, and nothing depends
    /// on it.
    pub(super) fn begin_recording(&self) -> Option<SidecarProgress> {
        let mut state = self.state();
        match state.recording {
            Recording::Missing if state.phase == Phase::InUse => state.recording = Recording::Running,
            Recording::Accepted => {}
            Recording::Missing | Recording::Running | Recording::Done | Recording::Replaced => return None,
        }
        Some(state.progress())
    }

    /// Whether the sidecar may get a confirmation.
    pub(super) fn may_be_confirmed(&self) -> bool {
        matches!(self.recording(), Recording::Accepted | Recording::Done)
    }

    pub(super) fn recording(&self) -> Recording {
        self.state().recording
    }

    pub(super) fn set_recording(&self, recording: Recording) {
        self.state().recording = recording;
    }

    /// The sidecar resumes at the revision of its view.
    pub fn resumes_at(&self, revision: Revision) {
        let mut state = self.state();
        (state.reported, state.sent, state.covered) = (state.applied_before.min(revision), revision, revision);
        // It is not known since when the sidecar has this data, but not since later.
        state.reported_at = Some(self.connected_at);
    }

    /// Later changes do not come into the queue of the stream, until it catches up.
    pub fn falls_behind(&self) {
        self.state().is_behind = true;
    }

    /// All later changes come into the queue of the stream.
    pub fn catches_up(&self) {
        self.state().is_behind = false;
    }

    /// Changes up to a revision come into the queue of the stream.
    pub fn queues(&self, revision: Revision) {
        let mut state = self.state();
        state.queued = state.queued.max(revision);
    }

    /// A message with changes up to a revision is being sent.
    pub fn sends(&self, revision: Revision) {
        let mut state = self.state();
        state.sent = state.sent.max(revision);
        state.reports_left = state.reports_left.saturating_add(1);
    }

    /// All changes up to a revision are in messages that were sent.
    pub fn covers(&self, revision: Revision) {
        let mut state = self.state();
        state.covered = state.covered.max(revision);
    }

    /// A ping has arrived: what is read from now on may be confirmed.
    pub fn expects_confirmation(&self) {
        self.state().expects_confirmation = true;
    }

    /// Whether a later stream of the sidecar has replaced this one.
    pub fn is_replaced(&self) -> bool {
        self.recording() == Recording::Replaced
    }

    /// The sidecar gets a confirmation for a ping that was sent at this time or earlier.
    pub fn confirm(&self, ping_received_at: Timestamp) {
        let mut state = self.state();
        state.confirmed_at = state.confirmed_at.max(Some(ping_received_at));
    }

    pub(super) fn confirmed_at(&self) -> Option<Timestamp> {
        self.state().confirmed_at
    }

    /// Returns an earlier process that is to be forgotten.
    pub(super) fn report(&self, revision: Revision, now: Timestamp) -> Result<Option<SidecarInstance>, NotSent> {
        let mut state = self.state();
        state.reports_left = state.reports_left.checked_sub(1).ok_or(NotSent)?;
        if revision > state.sent {
            return Err(NotSent);
        }
        state.reported = state.reported.max(revision);
        state.reported_at = Some(now);
        Ok(state.previous.take())
    }

    /// The stream is in the database with this progress.
    pub(super) fn mark_written(&self, progress: SidecarProgress) {
        self.state().written = Some(progress);
    }

    /// The progress, if the database has another one. A stream that is not in the database has none there.
    pub(super) fn unwritten_progress(&self) -> Option<SidecarProgress> {
        let state = self.state();
        let progress = state.progress();
        state.written.filter(|written| !written.is_equivalent(progress)).map(|_| progress)
    }

    pub(super) fn progress(&self) -> SidecarProgress {
        self.state().progress()
    }

    /// The revision in force at the sidecar.
    pub(super) fn in_force(&self, distributed: Revision) -> Revision {
        self.progress().in_force(distributed)
    }

    /// Whether the stream is open, and its sidecar may lack a revision. `distributed`: all changes up to this revision are in the queues
    /// of the streams that they concern.
    pub(super) fn may_lack(&self, revision: Revision, distributed: Revision) -> bool {
        self.phase() == Phase::InUse && self.in_force(distributed) < revision
    }

    /// Adds what the stream knows of the sidecar. `is_of_row`: the row from which the sidecar was read is that of the stream, which is
    /// open there.
    pub(super) fn describe(&self, sidecar: &mut Sidecar, is_of_row: bool, distributed: Revision) {
        let in_force = self.in_force(distributed);
        if in_force > sidecar.in_force {
            (sidecar.in_force, sidecar.applied_at) = (in_force, self.progress().applied_at);
        }
        if is_of_row {
            let State { phase, confirmed_at, expects_confirmation, .. } = *self.state();
            let is_never_confirmed = confirmed_at.is_none() && !expects_confirmation;
            sidecar.confirmed = if is_never_confirmed { LastConfirmation::Never } else { LastConfirmation::Continuing };
            sidecar.last_known_confirmation = confirmed_at;
            sidecar.is_connected &= phase == Phase::InUse;
        }
    }
}

#[cfg(test)]
impl NewStream {
    /// A stream of a sidecar without a view.
    pub fn for_tests(instance: SidecarInstance) -> Self {
        Self {
            instance,
            key: ApiKeyId::from_bits(1),
            service: ServiceId::from_bits(1),
            address: "192.0.2.1:1000".to_owned(),
            release: "0.1.0".to_owned(),
            revision: Revision::default(),
            applied: Revision::default(),
            key_index: 0,
            number: 1,
            previous: None,
            max_staleness: Duration::from_mins(1),
        }
    }
}

#[cfg(test)]
impl StreamStatus {
    /// The state of a stream that no sidecar uses.
    pub fn for_tests() -> std::sync::Arc<Self> {
        let instance = SidecarInstance::from_bytes([1; 16]);
        std::sync::Arc::new(Self::new(NewStream::for_tests(instance), Timestamp::from_micros(0)))
    }
}

#[cfg(test)]
mod tests;
