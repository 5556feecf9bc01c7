//! What one stream has said so far, and the view that comes of it.
//!
//! A session knows nothing of connections: messages and instants go in, views come out.

use super::decode::{self, Head, MessageError, Page};
use crate::view::{Confirmation, Snapshot, View};
use countersign_identity::{AgentChanges, AgentId, Revision, ServiceId};
use countersign_proto::v1::{self, follow_response::Message};
use std::{collections::VecDeque, sync::Arc, time::Duration};

/// How many pings may be unanswered when the next is due.
const PATIENCE: usize = 3;

/// One stream.
#[derive(Debug)]
pub struct Session {
    view: Option<Arc<View>>,
    /// The service that this key's first snapshot named.
    service: Option<ServiceId>,
    /// A sidecar may be stricter than the control plane.
    max_staleness: Option<Duration>,
    pages: Option<Snapshot>,
    pings: VecDeque<(u64, Duration)>,
    last_ping: u64,
    confirmed: bool,
}

/// What a message brought.
#[derive(Debug)]
pub enum News {
    /// A view to be published.
    View(Arc<View>),
    /// A view that an answer to the ping of the given instant confirms.
    Confirmed(Arc<View>, Duration),
    /// Nothing yet.
    Nothing,
}

/// The server has not answered for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("pings were not answered")]
pub struct Silent;

impl Session {
    /// Begins a stream where the last one ended.
    pub fn resume(view: Option<Arc<View>>, max_staleness: Option<Duration>) -> Self {
        let service = view.as_ref().map(|view| view.service());
        Self { view, service, max_staleness, pages: None, pings: VecDeque::new(), last_ping: 0, confirmed: false }
    }

    /// What to begin the stream with: the revision at hand, or 0.
    pub fn hello(&self) -> v1::FollowRequest {
        let revision = self.view.as_ref().map_or(0, |view| view.revision().number());
        v1::FollowRequest { message: Some(v1::follow_request::Message::Hello(v1::Hello { revision })) }
    }

    /// The next ping, sent at the given instant since boot.
    pub fn ping(&mut self, now: Duration) -> Result<v1::FollowRequest, Silent> {
        // The pages of a snapshot are a sign of life, and pongs come behind them all.
        let patience = if self.pages.is_some() { PATIENCE * 10 } else { PATIENCE };
        if self.pings.len() >= patience {
            return Err(Silent);
        }
        self.last_ping += 1;
        self.pings.push_back((self.last_ping, now));
        let ping = v1::Ping { number: self.last_ping };
        Ok(v1::FollowRequest { message: Some(v1::follow_request::Message::Ping(ping)) })
    }

    /// The view as it stands.
    pub fn view(&self) -> Option<Arc<View>> {
        self.view.clone()
    }

    /// Whether a view was confirmed on this stream: then the control plane is well, and the next attempt
    /// need not wait long.
    pub const fn was_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Takes a message, or refuses it and changes nothing.
    pub fn take(&mut self, message: v1::FollowResponse) -> Result<News, MessageError> {
        let v1::FollowResponse { message } = message;
        match message.ok_or(MessageError::Missing("message"))? {
            Message::Snapshot(page) => self.page(decode::page(page)?),
            Message::Delta(delta) => self.delta(delta),
            Message::Pong(pong) => self.pong(pong),
        }
    }

    fn page(&mut self, page: Page) -> Result<News, MessageError> {
        let Page { revision, floor, head, agents, revoked, last } = page;
        let joins = |begun: &mut Snapshot| begun.revision == revision && begun.floor == floor;
        let begun = if head.is_none() { self.pages.take_if(joins) } else { None };
        let mut snapshot = match (head, begun, &self.pages) {
            (None, Some(begun), _) => begun,
            (Some(head), None, None) => self.begin(revision, floor, head)?,
            (None, None, Some(_)) => return Err(MessageError::OutOfPlace("a page of another snapshot")),
            (None, None, None) => {
                return Err(MessageError::OutOfPlace("a snapshot that does not begin with its first page"));
            }
            (Some(_), ..) => return Err(MessageError::OutOfPlace("a snapshot within a snapshot")),
        };
        snapshot.agents.extend(agents);
        snapshot.revoked.extend(revoked);
        if !last {
            self.pages = Some(snapshot);
            return Ok(News::Nothing);
        }
        Ok(News::View(self.keep(View::of(snapshot, self.view.as_deref()))))
    }

    fn begin(&self, revision: Revision, floor: Revision, head: Head) -> Result<Snapshot, MessageError> {
        let Head { mut terms, keys, roles } = head;
        self.check_service(terms.service)?;
        self.tighten(&mut terms.max_staleness);
        let agents: Vec<(AgentId, AgentChanges)> = vec![];
        Ok(Snapshot { revision, floor, terms, keys, roles, agents, revoked: vec![] })
    }

    fn delta(&mut self, delta: v1::Delta) -> Result<News, MessageError> {
        let mut delta = decode::delta(delta)?;
        if self.pages.is_some() {
            return Err(MessageError::OutOfPlace("a change within a snapshot"));
        }
        let view = self.view.as_ref().ok_or(MessageError::OutOfPlace("a change before the first snapshot"))?;
        if delta.revision < view.revision() {
            return Err(MessageError::OutOfPlace("a change from before what is known"));
        }
        if let Some(terms) = &mut delta.terms {
            self.check_service(terms.service)?;
            self.tighten(&mut terms.max_staleness);
        }
        let next = view.apply(delta);
        Ok(News::View(self.keep(next)))
    }

    /// A pong speaks of the view that was sent whole before it. While there is none, or half of one, it
    /// is a sign of life and no more.
    fn pong(&mut self, pong: v1::Pong) -> Result<News, MessageError> {
        let v1::Pong { number, revision, floor } = pong;
        let position = self.pings.iter().position(|(sent, _)| *sent == number);
        let position = position.ok_or(MessageError::OutOfPlace("an answer to a ping that was not sent"))?;
        let asked_at = self.pings.drain(..=position).next_back().map(|(_, at)| at);
        let (Some(asked_at), Some(view), None) = (asked_at, &self.view, &self.pages) else {
            return Ok(News::Nothing);
        };
        let (revision, floor) = (Revision::new(revision), Revision::new(floor));
        self.confirmed = true;
        let next = view.confirm(Confirmation { revision, floor, asked_at });
        Ok(News::Confirmed(self.keep(next), asked_at))
    }

    fn keep(&mut self, next: View) -> Arc<View> {
        let next = Arc::new(next);
        self.service = Some(next.service());
        self.view = Some(Arc::clone(&next));
        next
    }

    fn check_service(&self, service: ServiceId) -> Result<(), MessageError> {
        match self.service {
            Some(before) if before != service => Err(MessageError::OutOfPlace("another service than this key's")),
            _ => Ok(()),
        }
    }

    fn tighten(&self, max_staleness: &mut Duration) {
        if let Some(ours) = self.max_staleness {
            *max_staleness = ours.min(*max_staleness);
        }
    }
}

#[cfg(test)]
mod tests;
