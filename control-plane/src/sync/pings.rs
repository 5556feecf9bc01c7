//! Receives the pings of a sidecar, at a limited rate, and its reports.

use crate::sidecars::{NotSent, StreamHandle};
use countersign_identity::Revision;
use countersign_proto::v1::{Applied, FollowRequest, Leaving, follow_request::Message};
use std::{future, time::Duration};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::{Status, Streaming};

/// Pings that a sidecar can send at once.
const MAX_BURST: u32 = 20;

/// After a burst, one ping per interval is read. The other pings of the sidecar wait, first in its own memory. A sidecar pings at
/// most once per second.
const PING_INTERVAL: Duration = Duration::from_millis(500);

/// The requests of a sidecar after its Hello.
pub(super) struct PingReceiver {
    requests: Streaming<FollowRequest>,
    /// Receives the reports of the sidecar.
    stream: StreamHandle,
    /// How many pings may be read at once.
    allowance: u32,
    refill: Interval,
    /// The last ping that was received while changes were read, and has no answer.
    unanswered: Option<u64>,
    has_ended: bool,
}

impl PingReceiver {
    pub(super) fn new(requests: Streaming<FollowRequest>, stream: StreamHandle) -> Self {
        let mut refill = interval(PING_INTERVAL);
        refill.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { requests, stream, allowance: MAX_BURST, refill, unanswered: None, has_ended: false }
    }

    /// The number of the next ping; `None` if the sidecar has ended its requests. No ping is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> Result<Option<u64>, Status> {
        match self.unanswered.take() {
            Some(number) => Ok(Some(number)),
            None => self.receive().await,
        }
    }

    /// Receives pings while changes are read, until the requests fail. The answer to the last ping also answers the earlier
    /// ones, so only the last ping is kept.
    pub(super) async fn collect(&mut self) -> Status {
        loop {
            match self.receive().await {
                Ok(Some(number)) => self.unanswered = Some(number),
                Ok(None) => future::pending().await,
                Err(status) => return status,
            }
        }
    }

    async fn receive(&mut self) -> Result<Option<u64>, Status> {
        while !self.has_ended {
            tokio::select! {
                request = self.requests.message(), if self.allowance > 0 => match request? {
                    Some(FollowRequest { message: Some(Message::Ping(ping)) }) => {
                        self.allowance -= 1;
                        return Ok(Some(ping.number));
                    }
                    // The number of reports has a limit of its own.
                    Some(FollowRequest { message: Some(Message::Applied(Applied { revision })) }) => {
                        self.stream.report(Revision::new(revision)).map_err(|NotSent| not_sent())?;
                    }
                    Some(FollowRequest { message: Some(Message::Leaving(Leaving {})) }) => self.stream.leave(),
                    Some(FollowRequest { message: Some(Message::Hello(_)) | None }) => {
                        return Err(Status::invalid_argument("only Ping, Applied and Leaving may follow Hello"));
                    }
                    None => self.has_ended = true,
                },
                _ = self.refill.tick(), if self.allowance < MAX_BURST => self.allowance += 1,
            }
        }
        Ok(None)
    }
}

fn not_sent() -> Status {
    Status::invalid_argument("Applied must follow a message of the server, and its revision must not be higher")
}
