//! The state of one sync stream: its view, to which it applies messages, and its unanswered pings.
//!
//! A snapshot is a whole view in pages, and a delta contains later changes. A pong answers a ping after all changes were sent, so
//! it confirms that the view was current when the ping was sent. Hello is the first message of the sidecar. Invariant: this module
//! does no I/O and does not read the clock. Messages and times are arguments.

use super::{
    decode::{self, MessageError, PageHeader, ParsedPage},
    instance::ProcessIdentity,
};
use crate::view::{Confirmation, PartialView, ServerClock, ServiceSettings, SnapshotHeader, View};
use countersign_identity::{Revision, ServiceId, Timestamp};
use countersign_proto::v1::{self, follow_response::Message};
use std::{collections::VecDeque, sync::Arc, time::Duration};

/// The stream has failed if this many pings are unanswered when the next one is due. Every message of the server counts as an
/// answer, because the server may have many changes to send before it answers a ping.
const MAX_UNANSWERED_PINGS: usize = 3;

/// The same limit before the first pong and while a snapshot is incomplete: the server may wait for its database before each page,
/// and another stream would wait again from the start. HTTP/2 pings show earlier that a server is gone.
const MAX_UNANSWERED_PINGS_OF_PAGES: usize = 30;

/// The maximum number of unanswered pings, even if other messages arrive meanwhile.
const MAX_STORED_PINGS: usize = 1024;

/// A pong that takes longer tells the time of the control plane too imprecisely.
const MAX_CLOCK_ROUND_TRIP: Duration = Duration::from_secs(1);

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact that no other one implies")]
pub struct StreamState {
    view: Option<Arc<View>>,
    /// The stream has sent all changes up to this revision, or resumes at it.
    received: Revision,
    data_revision: Revision,
    /// The service of the API key, from its first snapshot.
    service: Option<ServiceId>,
    /// The maximum staleness in the sidecar's settings.
    max_staleness: Option<Duration>,
    /// The snapshot whose pages this stream receives.
    partial_snapshot: Option<PartialSnapshot>,
    /// The incomplete snapshot of an earlier stream, until this stream continues it or receives other data.
    earlier_snapshot: Option<PartialSnapshot>,
    /// The number of each unanswered ping, and when it was sent, since boot.
    unanswered_pings: VecDeque<(u64, Duration)>,
    last_ping: u64,
    /// The number of pings since the last message.
    pings_since_message: usize,
    /// The number of the last answered ping; 0 while the server sends what the sidecar has missed, before the first pong.
    last_answered_ping: u64,
    /// Whether the next ping must be sent at once.
    wants_ping: bool,
    /// Whether a pong was ignored because it told the time too imprecisely. This happens once, while no time is known.
    had_late_pong: bool,
    confirmed: bool,
    /// Whether another address sent the view, so that this stream must not replace it by older or other data.
    is_view_of_other_address: bool,
}

/// A snapshot whose last page has not arrived.
#[derive(Debug)]
struct PartialSnapshot {
    view: PartialView,
    /// The received pages contain all changes up to this revision.
    cursor: Revision,
}

/// The effect of a message on the view.
#[derive(Debug)]
pub enum ViewUpdate {
    /// The view has new data. The message does not confirm that it is current.
    View(Arc<View>),
    /// A pong confirmed that the view was current when its ping was sent, at this time since boot.
    Confirmed(Arc<View>, Duration),
    NoChange,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the control plane does not answer pings")]
pub struct PingTimeout;

impl StreamState {
    /// Creates the state of a new stream that resumes at the revision of `view`.
    pub fn resume(view: Option<Arc<View>>, max_staleness: Option<Duration>) -> Self {
        let service = view.as_ref().map(|view| view.service());
        let received = view.as_ref().map_or_else(Revision::default, |view| view.revision());
        Self {
            view,
            received,
            data_revision: received,
            service,
            max_staleness,
            partial_snapshot: None,
            earlier_snapshot: None,
            unanswered_pings: VecDeque::new(),
            last_ping: 0,
            pings_since_message: 0,
            last_answered_ping: 0,
            wants_ping: false,
            had_late_pong: false,
            confirmed: false,
            is_view_of_other_address: false,
        }
    }

    /// From now on, refuses older data and the data of another deployment, because another address sent the view.
    pub const fn keep_view_of_other_address(&mut self) {
        self.is_view_of_other_address = true;
    }

    /// Creates the state of the next stream, which resumes at the revision of the view, or continues an incomplete snapshot.
    #[must_use]
    pub fn into_next_stream(self) -> Self {
        let Self { view, max_staleness, partial_snapshot, earlier_snapshot, .. } = self;
        Self { earlier_snapshot: partial_snapshot.or(earlier_snapshot), ..Self::resume(view, max_staleness) }
    }

    /// Creates the first message of the stream, with the revision of the view, or 0 without a view, and with the cursor of an
    /// incomplete snapshot.
    pub fn hello(&self, identity: ProcessIdentity, number: i64) -> v1::FollowRequest {
        let partial_snapshot = self.earlier_snapshot.as_ref().map(|snapshot| v1::SnapshotProgress {
            revision: snapshot.view.revision().number(),
            cursor: snapshot.cursor.number(),
        });
        let hello = identity.hello(number, self.received, partial_snapshot);
        v1::FollowRequest { message: Some(v1::follow_request::Message::Hello(hello)) }
    }

    /// Creates the next ping. `now` is the current time since boot.
    pub fn ping(&mut self, now: Duration) -> Result<v1::FollowRequest, PingTimeout> {
        let awaits_pages = self.last_answered_ping == 0 || self.partial_snapshot.is_some();
        let limit = if awaits_pages { MAX_UNANSWERED_PINGS_OF_PAGES } else { MAX_UNANSWERED_PINGS };
        if self.pings_since_message >= limit || self.unanswered_pings.len() >= MAX_STORED_PINGS {
            return Err(PingTimeout);
        }
        self.pings_since_message += 1;
        self.wants_ping = false;
        self.last_ping += 1;
        self.unanswered_pings.push_back((self.last_ping, now));
        let ping = v1::Ping { number: self.last_ping };
        Ok(v1::FollowRequest { message: Some(v1::follow_request::Message::Ping(ping)) })
    }

    /// Whether a ping must be sent now: a snapshot is complete, or a pong came too late to know the time of the control plane.
    pub const fn wants_ping(&self) -> bool {
        self.wants_ping
    }

    pub fn view(&self) -> Option<Arc<View>> {
        self.view.clone()
    }

    /// The revision of the newest message with data, or of Hello. A pong contains no data.
    pub const fn data_revision(&self) -> Revision {
        self.data_revision
    }

    /// Whether a pong on this stream showed that the view was current. Only such a stream resets the waits between attempts.
    pub const fn was_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Applies a message that arrived at `now`, the time since boot. An invalid message changes nothing.
    pub fn apply(&mut self, message: v1::FollowResponse, now: Duration) -> Result<ViewUpdate, MessageError> {
        let v1::FollowResponse { message } = message;
        let message = message.ok_or(MessageError::Missing("message"))?;
        let update = match message {
            Message::Snapshot(page) => self.apply_page(decode::parse_page(page)?)?,
            Message::Delta(delta) => self.apply_delta(delta)?,
            Message::Pong(pong) => self.apply_pong(pong, now)?,
        };
        self.pings_since_message = 0;
        Ok(update)
    }

    fn apply_page(&mut self, page: ParsedPage) -> Result<ViewUpdate, MessageError> {
        let ParsedPage { revision, floor, cursor, header, agents, revocations, last } = page;
        let mut snapshot = match header {
            None => self.take_partial_snapshot(revision)?,
            Some(_) if self.partial_snapshot.is_some() => {
                return Err(MessageError::OutOfOrder("a snapshot begins before the previous one is complete"));
            }
            Some(PageHeader::New(header)) => self.start_snapshot(revision, floor, header)?,
            Some(PageHeader::Continued(settings)) => self.continue_snapshot(revision, settings)?,
        };
        self.earlier_snapshot = None;
        snapshot.view.add(floor, agents, revocations);
        snapshot.cursor = cursor.max(snapshot.cursor);
        if last {
            let view = snapshot.view.complete(self.view.as_deref());
            // The pong to a ping within a snapshot comes late, and tells the time imprecisely. So another ping is sent now.
            self.wants_ping = true;
            self.received = revision;
            self.data_revision = revision;
            return Ok(ViewUpdate::View(self.set_view(view)));
        }
        self.partial_snapshot = Some(snapshot);
        Ok(ViewUpdate::NoChange)
    }

    fn take_partial_snapshot(&mut self, revision: Revision) -> Result<PartialSnapshot, MessageError> {
        match self.partial_snapshot.take_if(|partial| partial.view.revision() == revision) {
            Some(partial) => Ok(partial),
            None if self.partial_snapshot.is_some() => {
                Err(MessageError::OutOfOrder("a page belongs to another snapshot"))
            }
            None => Err(MessageError::OutOfOrder("the first page of a snapshot is missing")),
        }
    }

    fn start_snapshot(
        &self,
        revision: Revision,
        floor: Revision,
        header: SnapshotHeader,
    ) -> Result<PartialSnapshot, MessageError> {
        self.check_settings(revision, &header.settings)?;
        Ok(PartialSnapshot { view: PartialView::new(revision, floor, header), cursor: Revision::default() })
    }

    fn continue_snapshot(
        &mut self,
        revision: Revision,
        settings: ServiceSettings,
    ) -> Result<PartialSnapshot, MessageError> {
        self.check_settings(revision, &settings)?;
        let not_offered = MessageError::OutOfOrder("the pages continue a snapshot that Hello did not offer");
        let Some(earlier) = self.earlier_snapshot.as_ref().filter(|it| it.view.revision() == revision) else {
            return Err(not_offered);
        };
        check_service(earlier.view.settings().service, settings.service)?;
        if settings.agent_hash_key != earlier.view.settings().agent_hash_key {
            return Err(MessageError::AgentHashKeyChanged);
        }
        let mut snapshot = self.earlier_snapshot.take().ok_or(not_offered)?;
        snapshot.view.set_settings(settings);
        Ok(snapshot)
    }

    fn apply_delta(&mut self, delta: v1::Delta) -> Result<ViewUpdate, MessageError> {
        if self.partial_snapshot.is_some() {
            return Err(MessageError::OutOfOrder("a delta arrived before the snapshot is complete"));
        }
        let view = self.view.as_ref().ok_or(MessageError::OutOfOrder("a delta arrived before the first snapshot"))?;
        let delta = decode::parse_delta(delta)?;
        let revision = delta.revision;
        if revision < self.received {
            return Err(MessageError::OutOfOrder("the revision of a delta is lower than an earlier revision"));
        }
        if let Some(settings) = &delta.settings {
            self.check_settings(delta.revision, settings)?;
            if settings.agent_hash_key != view.settings().agent_hash_key {
                return Err(MessageError::AgentHashKeyChanged);
            }
        }
        let next = view.apply(delta);
        self.earlier_snapshot = None;
        self.received = revision;
        self.data_revision = revision;
        Ok(ViewUpdate::View(self.set_view(next)))
    }

    /// Applies a pong, which confirms that the view is current. Without a view, or while a snapshot is incomplete, the pong only
    /// shows that the server is alive.
    fn apply_pong(&mut self, pong: v1::Pong, now: Duration) -> Result<ViewUpdate, MessageError> {
        let v1::Pong { number, revision, floor, time_micros } = pong;
        let position = self.unanswered_pings.iter().position(|(sent_number, _)| *sent_number == number);
        let position = position.ok_or(MessageError::OutOfOrder("a pong answers a ping that was not sent"))?;
        let ping_sent_at = self.unanswered_pings.drain(..=position).next_back().map(|(_, at)| at);
        self.last_answered_ping = number;
        // While the earlier snapshot is there, this stream has not sent any data, so the view may lack changes.
        let is_incomplete = self.partial_snapshot.is_some() || self.earlier_snapshot.is_some();
        let (Some(ping_sent_at), Some(view), false) = (ping_sent_at, &self.view, is_incomplete) else {
            return Ok(ViewUpdate::NoChange);
        };
        let (revision, floor) = (Revision::new(revision), Revision::new(floor));
        self.confirmed = true;
        let is_late = now.saturating_sub(ping_sent_at) > MAX_CLOCK_ROUND_TRIP;
        let clock = view.server_clock();
        if time_micros > 0 && is_late && clock.is_none() && !self.had_late_pong {
            // The next pong is usually in time. If not, its time is better than none.
            (self.had_late_pong, self.wants_ping) = (true, true);
            return Ok(ViewUpdate::NoChange);
        }
        let offered = ServerClock::new(Timestamp::from_micros(time_micros), ping_sent_at);
        // If the pong took long, the clock that we have is more precise than its time, unless the pong proves that clock wrong.
        let keeps_clock = is_late && clock.is_some_and(|clock| clock.agrees_with(offered, now));
        let server_clock = (time_micros > 0 && !keeps_clock).then_some(offered);
        let next = view.confirm(Confirmation { revision, floor, ping_sent_at, server_clock });
        self.received = self.received.max(revision);
        Ok(ViewUpdate::Confirmed(self.set_view(next), ping_sent_at))
    }

    fn set_view(&mut self, next: View) -> Arc<View> {
        let next = Arc::new(next.with_staleness_limit(self.max_staleness));
        self.service = Some(next.service());
        self.view = Some(Arc::clone(&next));
        next
    }

    /// Requires that data is about the service of the API key. If another address sent the view, the data must also be of the same
    /// deployment, and not older.
    fn check_settings(&self, revision: Revision, settings: &ServiceSettings) -> Result<(), MessageError> {
        self.service.map_or(Ok(()), |service| check_service(service, settings.service))?;
        let Some(view) = self.view.as_ref().filter(|_| self.is_view_of_other_address) else { return Ok(()) };
        if settings.issuer != view.settings().issuer || settings.agent_hash_key != view.settings().agent_hash_key {
            return Err(MessageError::OtherDeployment);
        }
        if revision < view.revision() { Err(MessageError::OlderThanView) } else { Ok(()) }
    }
}

fn check_service(expected: ServiceId, actual: ServiceId) -> Result<(), MessageError> {
    if expected == actual {
        Ok(())
    } else {
        Err(MessageError::OutOfOrder("the message is about a service that does not own the API key"))
    }
}

#[cfg(test)]
mod tests;
