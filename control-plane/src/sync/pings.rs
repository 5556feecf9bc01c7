//! Receives the pings of a sidecar, at a limited rate, and its reports.

use crate::sidecars::{NotSent, StreamStatus};
use countersign_identity::Revision;
use countersign_proto::v1::{Applied, FollowRequest, Leaving, Ping, follow_request::Message};
use std::{future, sync::Arc, time::Duration};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::{Status, Streaming};

/// Pings that a sidecar can send at once.
const MAX_BURST: u32 = 20;

/// After a burst, one ping per interval is read. The other pings of the sidecar wait, first in its own memory. A sidecar pings at
/// most once per second.
const PING_INTERVAL: Duration = Duration::from_millis(500);

/// A stream ends when its sidecar has sent nothing before this number of checks in a row. A sidecar pings at least once per minute
/// (`sync.ping_seconds`), and a check comes every 30 seconds.
const MAX_SILENT_CHECKS: u32 = 6;

/// Whether the sidecar still sends requests. It needs no timer of its own: the checks are those of the API key.
#[derive(Debug)]
struct Silence {
    /// Whether a request has arrived since the last check.
    has_heard: bool,
    silent_checks: u32,
}

impl Silence {
    /// The Hello has arrived.
    const fn new() -> Self {
        Self { has_heard: true, silent_checks: 0 }
    }

    /// Returns whether the sidecar has been silent for too long.
    const fn check(&mut self) -> bool {
        self.silent_checks = if self.has_heard { 0 } else { self.silent_checks.saturating_add(1) };
        self.has_heard = false;
        self.silent_checks >= MAX_SILENT_CHECKS
    }
}

/// The requests of a sidecar after its Hello.
pub(super) struct PingReceiver {
    requests: Streaming<FollowRequest>,
    /// Receives the reports of the sidecar.
    stream: Arc<StreamStatus>,
    /// How many pings may be read at once.
    allowance: u32,
    refill: Interval,
    /// The last ping that was received while changes were read, and has no answer.
    unanswered: Option<u64>,
    has_ended: bool,
    silence: Silence,
}

impl PingReceiver {
    pub(super) fn new(requests: Streaming<FollowRequest>, stream: Arc<StreamStatus>) -> Self {
        let mut refill = interval(PING_INTERVAL);
        refill.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            requests,
            stream,
            allowance: MAX_BURST,
            refill,
            unanswered: None,
            has_ended: false,
            silence: Silence::new(),
        }
    }

    /// Fails if the sidecar has sent nothing for too long. Is called at every check of the API key while live changes are sent.
    pub(super) fn check_silence(&mut self) -> Result<(), Status> {
        let is_too_long = self.silence.check();
        if is_too_long {
            Err(Status::unavailable("the client has sent no ping for too long; reconnect to resume"))
        } else {
            Ok(())
        }
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
                request = self.requests.message(), if self.allowance > 0 => {
                    self.silence.has_heard = true;
                    if let Some(number) = self.accept(request?.as_ref())? {
                        return Ok(Some(number));
                    }
                }
                _ = self.refill.tick(), if self.allowance < MAX_BURST => self.allowance += 1,
            }
        }
        Ok(None)
    }

    /// Records a request, or the end of the requests. Returns the number of a ping.
    fn accept(&mut self, request: Option<&FollowRequest>) -> Result<Option<u64>, Status> {
        match request {
            Some(FollowRequest { message: Some(Message::Ping(Ping { number })) }) => {
                self.allowance -= 1;
                return Ok(Some(*number));
            }
            // The number of reports has a limit of its own.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sidecar_is_silent_after_six_checks_without_a_request() {
        let mut silence = Silence::new();
        let checks = |silence: &mut Silence, count: u32| (0..count).filter(|_| silence.check()).count();
        assert_eq!(checks(&mut silence, MAX_SILENT_CHECKS), 0, "the Hello came before the first check");
        assert!(silence.check());
        silence.has_heard = true;
        for _ in 0..100 {
            assert_eq!(checks(&mut silence, MAX_SILENT_CHECKS), 0);
            silence.has_heard = true;
        }
    }
}
