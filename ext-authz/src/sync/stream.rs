//! The state of one sync stream: the view (the local data of the service), to which messages are applied, and the
//! unanswered pings.
//!
//! Invariant: this module does no I/O and does not read the clock. Messages and times are arguments.

use super::decode::{self, AgentNaming, MessageError, ParsedPage, SnapshotHeader};
use crate::view::{Confirmation, Snapshot, View};
use countersign_identity::{Revision, ServiceId};
use countersign_proto::{
    PROTOCOL_VERSION,
    v1::{self, follow_response::Message},
};
use std::{collections::VecDeque, sync::Arc, time::Duration};

/// The maximum number of unanswered pings: if that number of pings is unanswered when the next ping is due, the stream
/// has failed.
const MAX_UNANSWERED_PINGS: usize = 3;

/// The state of one sync stream.
#[derive(Debug)]
pub struct StreamState {
    view: Option<Arc<View>>,
    /// The service of the API key, from its first snapshot.
    service: Option<ServiceId>,
    /// The maximum staleness in the sidecar's settings.
    max_staleness: Option<Duration>,
    partial_snapshot: Option<Snapshot>,
    /// The number of each unanswered ping, and the time since boot at which the ping was sent.
    unanswered_pings: VecDeque<(u64, Duration)>,
    last_ping: u64,
    confirmed: bool,
}

/// The effect of a sync message on the view of the service's data.
#[derive(Debug)]
pub enum ViewUpdate {
    /// The message results in a new view of the service's data, and does not confirm that the data is current.
    View(Arc<View>),
    /// A pong confirmed that the view of the service's data is current; the `Duration` is the time since boot at which
    /// the pong's ping was sent.
    Confirmed(Arc<View>, Duration),
    /// The message did not change the view of the service's data.
    NoChange,
}

/// Too many pings are unanswered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the control plane does not answer pings")]
pub struct PingTimeout;

impl StreamState {
    /// Creates the state of a new stream that resumes at the revision of `view`.
    pub fn resume(view: Option<Arc<View>>, max_staleness: Option<Duration>) -> Self {
        let service = view.as_ref().map(|view| view.service());
        Self {
            view,
            service,
            max_staleness,
            partial_snapshot: None,
            unanswered_pings: VecDeque::new(),
            last_ping: 0,
            confirmed: false,
        }
    }

    /// Creates the first message of the stream, with the revision of the local data (the view), or 0 if there is no
    /// local data.
    pub fn hello(&self) -> v1::FollowRequest {
        let revision = self.view.as_ref().map_or(0, |view| view.revision().number());
        let hello = v1::Hello { revision, protocol_version: PROTOCOL_VERSION };
        v1::FollowRequest { message: Some(v1::follow_request::Message::Hello(hello)) }
    }

    /// Creates the next ping. `now` is the current time since boot.
    pub fn ping(&mut self, now: Duration) -> Result<v1::FollowRequest, PingTimeout> {
        // The server answers pings only after the last page of a snapshot, so more pings may be unanswered until that
        // page arrives.
        let limit = if self.partial_snapshot.is_some() { MAX_UNANSWERED_PINGS * 10 } else { MAX_UNANSWERED_PINGS };
        if self.unanswered_pings.len() >= limit {
            return Err(PingTimeout);
        }
        self.last_ping += 1;
        self.unanswered_pings.push_back((self.last_ping, now));
        let ping = v1::Ping { number: self.last_ping };
        Ok(v1::FollowRequest { message: Some(v1::follow_request::Message::Ping(ping)) })
    }

    /// The current view of the service's data.
    pub fn view(&self) -> Option<Arc<View>> {
        self.view.clone()
    }

    /// Whether a pong on this stream confirmed that the view of the service's data is current. The reconnect backoff is
    /// reset only after a stream on which a pong confirmed the view.
    pub const fn was_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Applies a message. Returns an error and changes nothing if the message is invalid.
    pub fn apply(&mut self, message: v1::FollowResponse) -> Result<ViewUpdate, MessageError> {
        let v1::FollowResponse { message } = message;
        match message.ok_or(MessageError::Missing("message"))? {
            Message::Snapshot(page) => {
                let of_started = self.partial_snapshot.as_ref().map(|partial| AgentNaming::of(&partial.settings));
                let naming = page.info.as_ref().map(AgentNaming::of_message).or(of_started);
                // Without a header and a started snapshot, `apply_page` refuses the page.
                self.apply_page(decode::parse_page(page, naming.unwrap_or(AgentNaming::Hash))?)
            }
            Message::Delta(delta) => self.apply_delta(delta),
            Message::Pong(pong) => self.apply_pong(pong),
        }
    }

    fn apply_page(&mut self, page: ParsedPage) -> Result<ViewUpdate, MessageError> {
        let ParsedPage { revision, floor, header, agents, revocations, last } = page;
        let is_same_snapshot = |partial: &mut Snapshot| partial.revision == revision && partial.floor == floor;
        let partial = if header.is_none() { self.partial_snapshot.take_if(is_same_snapshot) } else { None };
        let mut snapshot = match (header, partial, &self.partial_snapshot) {
            (None, Some(partial), _) => partial,
            (Some(header), None, None) => self.start_snapshot(revision, floor, header)?,
            (None, None, Some(_)) => return Err(MessageError::OutOfOrder("a page belongs to another snapshot")),
            (None, None, None) => {
                return Err(MessageError::OutOfOrder("the first page of a snapshot is missing"));
            }
            (Some(_), ..) => {
                return Err(MessageError::OutOfOrder("a snapshot begins before the previous one is complete"));
            }
        };
        snapshot.agents.extend(agents);
        snapshot.revocations.extend(revocations);
        if !last {
            self.partial_snapshot = Some(snapshot);
            return Ok(ViewUpdate::NoChange);
        }
        Ok(ViewUpdate::View(self.set_view(View::from_snapshot(snapshot, self.view.as_deref()))))
    }

    fn start_snapshot(
        &self,
        revision: Revision,
        floor: Revision,
        header: SnapshotHeader,
    ) -> Result<Snapshot, MessageError> {
        let SnapshotHeader { mut settings, keys, roles } = header;
        self.check_service(settings.service)?;
        self.limit_staleness(&mut settings.max_staleness);
        Ok(Snapshot { revision, floor, settings, keys, roles, agents: vec![], revocations: vec![] })
    }

    fn apply_delta(&mut self, delta: v1::Delta) -> Result<ViewUpdate, MessageError> {
        if self.partial_snapshot.is_some() {
            return Err(MessageError::OutOfOrder("a delta arrived before the snapshot is complete"));
        }
        let view = self.view.as_ref().ok_or(MessageError::OutOfOrder("a delta arrived before the first snapshot"))?;
        let mut delta = decode::parse_delta(delta, AgentNaming::of(view.settings()))?;
        if delta.revision < view.revision() {
            return Err(MessageError::OutOfOrder("the revision of a delta is lower than that of the view"));
        }
        if let Some(settings) = &mut delta.settings {
            self.check_service(settings.service)?;
            if settings.agent_hash_key != view.settings().agent_hash_key {
                return Err(MessageError::AgentHashKeyChanged);
            }
            self.limit_staleness(&mut settings.max_staleness);
        }
        let next = view.apply(delta);
        Ok(ViewUpdate::View(self.set_view(next)))
    }

    /// Applies a pong, which confirms that the view is current. If there is no view, or a snapshot is incomplete, the
    /// pong only shows that the server is alive.
    fn apply_pong(&mut self, pong: v1::Pong) -> Result<ViewUpdate, MessageError> {
        let v1::Pong { number, revision, floor } = pong;
        let position = self.unanswered_pings.iter().position(|(sent_number, _)| *sent_number == number);
        let position = position.ok_or(MessageError::OutOfOrder("a pong answers a ping that was not sent"))?;
        let ping_sent_at = self.unanswered_pings.drain(..=position).next_back().map(|(_, at)| at);
        let (Some(ping_sent_at), Some(view), None) = (ping_sent_at, &self.view, &self.partial_snapshot) else {
            return Ok(ViewUpdate::NoChange);
        };
        let (revision, floor) = (Revision::new(revision), Revision::new(floor));
        self.confirmed = true;
        let next = view.confirm(Confirmation { revision, floor, ping_sent_at });
        Ok(ViewUpdate::Confirmed(self.set_view(next), ping_sent_at))
    }

    fn set_view(&mut self, next: View) -> Arc<View> {
        let next = Arc::new(next);
        self.service = Some(next.service());
        self.view = Some(Arc::clone(&next));
        next
    }

    fn check_service(&self, service: ServiceId) -> Result<(), MessageError> {
        match self.service {
            Some(current) if current != service => {
                Err(MessageError::OutOfOrder("the message is about a service that does not own the API key"))
            }
            _ => Ok(()),
        }
    }

    fn limit_staleness(&self, max_staleness: &mut Duration) {
        if let Some(limit) = self.max_staleness {
            *max_staleness = limit.min(*max_staleness);
        }
    }
}

#[cfg(test)]
mod tests;
