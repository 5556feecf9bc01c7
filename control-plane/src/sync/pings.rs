//! Receives the pings of a sidecar, at a limited rate, and its reports.

use crate::sidecars::{NotSent, StreamStatus};
use countersign_identity::Revision;
use countersign_proto::v1::{Applied, FollowRequest, Leaving, Ping, follow_request::Message};
use std::{future, sync::Arc, time::Duration};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::{Status, Streaming};

/// How many pings a sidecar may send at once.
const MAX_BURST: u32 = 20;

/// How often we read a ping from a sidecar that has just sent [`MAX_BURST`] pings. Our sidecars ping at most once per second.
const PING_INTERVAL: Duration = Duration::from_millis(500);

/// A sidecar is silent if it has sent nothing for more than this number of checks, which are 30 seconds apart by default. It should
/// ping at least once per minute (`sync.ping_seconds`).
const MAX_SILENT_CHECKS: u32 = 6;

/// The requests of a sidecar after its Hello.
pub(super) struct PingReceiver {
    requests: Streaming<FollowRequest>,
    /// Records the reports of the sidecar.
    stream: Arc<StreamStatus>,
    /// How many pings may still be read at once. Each tick of `refill` adds one.
    allowance: u32,
    refill: Interval,
    /// The last ping that arrived while the stream caught up. It has no answer yet.
    unanswered: Option<u64>,
    has_ended: bool,
    /// How often we have checked for silence since the last request.
    silent_checks: u32,
}

impl PingReceiver {
    pub(super) fn new(requests: Streaming<FollowRequest>, stream: Arc<StreamStatus>) -> Self {
        let mut refill = interval(PING_INTERVAL);
        refill.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { requests, stream, allowance: MAX_BURST, refill, unanswered: None, has_ended: false, silent_checks: 0 }
    }

    /// Fails if the sidecar has sent nothing for too long. The follower calls this whenever it checks the API key.
    pub(super) fn check_silence(&mut self) -> Result<(), Status> {
        self.silent_checks = self.silent_checks.saturating_add(1);
        if self.silent_checks > MAX_SILENT_CHECKS {
            return Err(Status::unavailable("the client has sent no ping for too long; reconnect to resume"));
        }
        Ok(())
    }

    /// The number of the next ping; `None` if the sidecar has ended its requests. No ping is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> Result<Option<u64>, Status> {
        match self.unanswered.take() {
            Some(number) => Ok(Some(number)),
            None => self.receive().await,
        }
    }

    /// Receives pings while the stream catches up, and returns when a request fails. Keeps only the last ping, because its answer
    /// also answers the earlier ones.
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
                request = self.requests.message(), if self.allowance > 0 => {
                    self.silent_checks = 0;
                    if let Some(number) = self.handle(request?.as_ref())? {
                        return Ok(Some(number));
                    }
                }
                _ = self.refill.tick(), if self.allowance < MAX_BURST => self.allowance += 1,
            }
        }
        Ok(None)
    }

    /// Handles a request, or the end of the requests. Returns the number if it is a ping.
    fn handle(&mut self, request: Option<&FollowRequest>) -> Result<Option<u64>, Status> {
        match request {
            Some(FollowRequest { message: Some(Message::Ping(Ping { number })) }) => {
                self.allowance -= 1;
                return Ok(Some(*number));
            }
            // Reports need no allowance: `report` limits their number.
            Some(FollowRequest { message: Some(Message::Applied(Applied { revision })) }) => {
                self.stream.report(Revision::new(*revision)).map_err(|NotSent| not_sent())?;
            }
            Some(FollowRequest { message: Some(Message::Leaving(Leaving {})) }) => self.stream.leave(),
            Some(FollowRequest { message: Some(Message::Hello(_)) | None }) => {
                return Err(Status::invalid_argument("only Ping, Applied and Leaving may follow Hello"));
            }
            None => self.has_ended = true,
        }
        Ok(None)
    }
}

fn not_sent() -> Status {
    Status::invalid_argument("Applied must follow a message of the server, and its revision must not be higher")
}
