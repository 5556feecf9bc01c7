//! Sends the messages of one stream, and decides when a revision may be reported (`Applied`).
//!
//! Invariants: a revision is reported only when its data is published and no older copy is on disk, because a process that starts
//! from an older copy would decide without it. Each reported revision was in a message. Reports leave room in the queue for pings.

use super::{
    connection::StreamError,
    copy_progress::{CopyChanges, CopyProgress},
};
use countersign_identity::Revision;
use countersign_proto::v1::{self, FollowRequest, follow_request::Message};
use std::{collections::VecDeque, future, sync::Arc};
use tokio::sync::mpsc;

/// The capacity of the queue of outgoing messages: the Hello (the first message of a stream), pings and reports.
const QUEUE_LEN: usize = 16;

/// A report waits until this many places are free, and takes one. The others are for pings: without a free place, the stream ends.
const FREE_BEFORE_REPORT: usize = QUEUE_LEN / 2;

/// How many published revisions can wait for their report. If there are more, the newest replaces the second newest.
const MAX_UNREPORTED: usize = 64;

pub struct Requests {
    queue: mpsc::Sender<FollowRequest>,
    /// The newest revision that was reported.
    reported: Revision,
    /// The published revisions that are not reported, in ascending order. The copy on disk may contain only some of them.
    unreported: VecDeque<Revision>,
    copy: Option<(Arc<CopyProgress>, CopyChanges)>,
}

impl Requests {
    /// Also returns the queue from which tonic sends. `copy` is `None` if the settings name no directory for copies.
    pub fn new(copy: Option<Arc<CopyProgress>>) -> (Self, mpsc::Receiver<FollowRequest>) {
        let (queue, receiver) = mpsc::channel(QUEUE_LEN);
        let copy = copy.map(|progress| {
            let changes = progress.changes();
            (progress, changes)
        });
        (Self { queue, reported: Revision::default(), unreported: VecDeque::new(), copy }, receiver)
    }

    /// Sends Hello or a ping at once. Fails if the queue is full.
    pub fn send_now(&self, request: FollowRequest) -> Result<(), StreamError> {
        self.queue.try_send(request).map_err(|_| StreamError::Closed)
    }

    /// Records that the data of a message was published, so its revision must be reported.
    pub fn record_published(&mut self, revision: Revision) {
        if revision <= self.unreported.back().copied().unwrap_or(self.reported) {
            return;
        }
        if self.unreported.len() >= MAX_UNREPORTED {
            self.unreported.pop_back();
        }
        self.unreported.push_back(revision);
        if let Some((copy, _)) = &self.copy {
            copy.want(revision);
        }
    }

    /// Sends the next report when it is due and the queue has room. Nothing is lost if the future is dropped.
    pub async fn report(&mut self) {
        loop {
            if self.due().is_some() {
                // If the queue is closed, the responses tell why.
                let Ok(mut places) = self.queue.reserve_many(FREE_BEFORE_REPORT).await else {
                    return future::pending().await;
                };
                // While we waited, a newer copy may have been written, so a newer revision may be due.
                if let (Some(revision), Some(place)) = (self.due(), places.next()) {
                    let applied = v1::Applied { revision: revision.number() };
                    place.send(FollowRequest { message: Some(Message::Applied(applied)) });
                    self.reported = revision;
                    self.unreported.retain(|unreported| *unreported > revision);
                    return;
                }
            }
            match &mut self.copy {
                Some((_, changes)) if !self.unreported.is_empty() => changes.next().await,
                Some(_) | None => future::pending().await,
            }
        }
    }

    /// The newest revision that can be reported now.
    fn due(&self) -> Option<Revision> {
        let on_disk = self.on_disk();
        let is_reportable = |revision: &&Revision| on_disk.is_none_or(|on_disk| **revision <= on_disk);
        self.unreported.iter().rev().find(is_reportable).copied()
    }

    /// The revision of the copy on disk, or a lower one; `None` if there is certainly no copy.
    pub fn on_disk(&self) -> Option<Revision> {
        self.copy.as_ref().and_then(|(copy, _)| copy.on_disk())
    }

    /// Tells the control plane that this sidecar no longer decides, and ends the requests.
    pub async fn leave(self) {
        let leaving = FollowRequest { message: Some(Message::Leaving(v1::Leaving {})) };
        // If the queue is closed, the stream has ended, and the control plane cannot be told.
        let _open = self.queue.send(leaving).await;
    }
}

#[cfg(test)]
mod tests;
