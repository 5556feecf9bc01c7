//! What happens on a connection, recorded without locks and without reading a clock.
//!
//! A request only changes a few atomic numbers. The task of the connection reads them at intervals of [`WATCH_INTERVAL`]
//! and computes how long the connection has been idle or stalled.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    time::Duration,
};
use tokio::sync::Notify;

/// The interval at which the task of a connection reads the activity of its connection.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(2);

/// The activity of one connection.
#[derive(Debug, Default)]
pub struct Activity {
    /// Whether a complete request head has arrived on the connection.
    has_requested: AtomicBool,
    /// Whether the connection uses HTTP/1.1, as its first request shows.
    is_http1: AtomicBool,
    /// Whether a part of the head of a further HTTP/1.1 request has arrived.
    head_started: AtomicBool,
    /// Requests whose responses are not completely handed to the connection.
    in_flight: AtomicU32,
    /// Requests whose body has not completely arrived.
    receiving: AtomicU32,
    /// Of the requests in flight, those whose response has begun.
    responding: AtomicU32,
    /// Of these, responses that wait for more data of this server, such as sync streams without a change.
    awaiting_data: AtomicU32,
    /// Whether a request or a response made progress since the last call of [`Activity::observe`].
    progressed: AtomicBool,
    /// Whether the last write to the connection is blocked because the client does not read.
    write_blocked: AtomicBool,
    /// Whether the server closes the connection after the current responses.
    closing: AtomicBool,
    /// Calls of [`Activity::observe`] since the last progress.
    quiet_intervals: AtomicU32,
    /// Notified when the server must close the connection gracefully.
    graceful_close: Notify,
    /// Notified when another connection takes the place of this one.
    eviction: Notify,
    /// Whether the connection may end gracefully when another one takes its place.
    yields: AtomicBool,
}

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// The connection waits for the first request of the client.
    FirstRequest,
    /// The connection waits for the next request of the client.
    NextRequest,
    /// The connection waits for the rest of the head of a further HTTP/1.1 request.
    RestOfHead,
    /// The connection waits until the client sends the rest of a request, or reads a response.
    Client,
    /// All responses in progress wait for data of this server.
    Server,
}

/// How much is lost if a connection is closed for another one. The first variant loses more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evictable {
    /// A request is in progress, but the client does not send its body or does not read the response.
    WaitsForClient,
    /// No request is in progress.
    Idle,
}

impl Activity {
    /// Records that a request head arrived. Returns whether it is the first of the connection.
    pub fn begin_request(&self, is_http1: bool) -> bool {
        self.in_flight.fetch_add(1, Relaxed);
        self.progressed.store(true, Relaxed);
        if is_http1 {
            self.head_started.store(false, Relaxed);
        }
        // The load avoids a write to memory that other threads read, which is needed only once per connection.
        let is_first = !self.has_requested.load(Relaxed) && !self.has_requested.swap(true, Relaxed);
        if is_first {
            self.is_http1.store(is_http1, Relaxed);
        }
        is_first
    }

    /// Records that bytes have arrived. Between two requests of HTTP/1.1, they begin a head. In HTTP/2, they can also be the
    /// answer to a keep-alive ping, and a head that never ends has no such answer after it.
    pub fn record_read(&self) {
        // Further bytes of the head are no progress: the whole head has one timeout.
        if self.is_http1.load(Relaxed) && self.in_flight.load(Relaxed) == 0 && !self.head_started.swap(true, Relaxed) {
            self.progressed.store(true, Relaxed);
        }
    }

    /// Records that a request without a response was aborted.
    pub fn end_request(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
        self.progressed.store(true, Relaxed);
    }

    /// Records that the body of a request begins to arrive.
    pub fn begin_body(&self) {
        self.receiving.fetch_add(1, Relaxed);
    }

    /// Records that the body of a request has arrived, or that it is not read to its end.
    pub fn end_body(&self) {
        self.receiving.fetch_sub(1, Relaxed);
        self.progressed.store(true, Relaxed);
    }

    /// Records that the response to a request begins.
    pub fn begin_response(&self) {
        self.responding.fetch_add(1, Relaxed);
        self.progressed.store(true, Relaxed);
    }

    /// Records that a response was completely handed to the connection, or that it was aborted.
    pub fn end_response(&self) {
        self.responding.fetch_sub(1, Relaxed);
        self.end_request();
    }

    /// Records that a response begins or ends to wait for data of this server.
    pub fn set_awaiting_data(&self, awaiting: bool) {
        if awaiting {
            self.awaiting_data.fetch_add(1, Relaxed);
        } else {
            self.awaiting_data.fetch_sub(1, Relaxed);
        }
    }

    /// Records whether the client lets the server write.
    pub fn set_write_blocked(&self, blocked: bool) {
        // Other writes are no progress: the answers to HTTP/2 pings would hide that the client takes no response.
        if self.write_blocked.load(Relaxed) != blocked {
            self.write_blocked.store(blocked, Relaxed);
            self.progressed.store(true, Relaxed);
        }
    }

    /// Records that the connection took a part of a response.
    pub fn record_progress(&self) {
        self.progressed.store(true, Relaxed);
    }

    /// Records that the server closes the connection after the current responses.
    pub fn set_closing(&self) {
        self.closing.store(true, Relaxed);
    }

    /// Whether the server closes the connection after the current responses.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }

    /// Returns what the connection waits for, and for how many intervals it has waited without any progress. Must be
    /// called once per interval.
    pub fn observe(&self) -> (Waiting, u32) {
        if self.progressed.swap(false, Relaxed) {
            self.quiet_intervals.store(0, Relaxed);
        } else {
            self.quiet_intervals.fetch_add(1, Relaxed);
        }
        (self.waiting(), self.quiet_intervals.load(Relaxed))
    }

    /// Whether the connection waits only for its client, and for how many intervals: the order in which connections are
    /// closed when there are too many. `None` if this server works for the client.
    pub fn eviction_rank(&self) -> Option<(Evictable, u32)> {
        let quiet = self.quiet_intervals.load(Relaxed);
        let in_flight = self.in_flight.load(Relaxed);
        if in_flight == 0 {
            return Some((Evictable::Idle, quiet));
        }
        let before_response = in_flight.saturating_sub(self.responding.load(Relaxed));
        let waits_for_client = self.awaiting_data.load(Relaxed) == 0 && before_response <= self.receiving.load(Relaxed);
        waits_for_client.then_some((Evictable::WaitsForClient, quiet))
    }

    /// Tells the task of the connection to close it gracefully: with `Connection: close` or `GOAWAY`, after the current
    /// responses.
    pub fn request_graceful_close(&self) {
        self.graceful_close.notify_one();
    }

    /// Waits until the server must close the connection gracefully.
    pub async fn graceful_close_requested(&self) {
        self.graceful_close.notified().await;
    }

    /// Tells the task of the connection to close it, because another connection takes its place.
    pub fn evict(&self) {
        self.eviction.notify_one();
    }

    /// Tells the task of the connection to close it, as [`Self::evict`] does, but gracefully: a request is in progress.
    pub fn yield_place(&self) {
        self.yields.store(true, Relaxed);
        self.request_graceful_close();
        self.evict();
    }

    /// Whether the connection may end gracefully when another one takes its place.
    pub fn is_yielding(&self) -> bool {
        self.yields.load(Relaxed)
    }

    /// Waits until another connection takes the place of this one.
    pub async fn evicted(&self) {
        self.eviction.notified().await;
    }

    fn waiting(&self) -> Waiting {
        let in_flight = self.in_flight.load(Relaxed);
        if !self.has_requested.load(Relaxed) {
            // Also while a write is blocked: otherwise a client that reads a little at a time would never have to send a request.
            Waiting::FirstRequest
        } else if self.write_blocked.load(Relaxed) {
            Waiting::Client
        } else if in_flight == 0 {
            if self.head_started.load(Relaxed) { Waiting::RestOfHead } else { Waiting::NextRequest }
        } else if self.awaiting_data.load(Relaxed) >= in_flight {
            Waiting::Server
        } else {
            Waiting::Client
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_follows_requests_and_responses() {
        let activity = Activity::default();
        assert_eq!(activity.observe(), (Waiting::FirstRequest, 1));
        activity.set_write_blocked(true);
        assert_eq!(activity.observe(), (Waiting::FirstRequest, 0), "a client that does not read has no more time");
        activity.set_write_blocked(false);
        assert!(activity.begin_request(false));
        activity.begin_body();
        assert_eq!(activity.observe(), (Waiting::Client, 0));
        assert_eq!(activity.eviction_rank(), Some((Evictable::WaitsForClient, 0)), "the body has not arrived");
        activity.end_body();
        assert_eq!(activity.eviction_rank(), None, "the handler runs");
        assert!(!activity.begin_request(false), "only one request is the first");
        activity.begin_response();
        activity.set_awaiting_data(true);
        assert_eq!(activity.observe(), (Waiting::Client, 0), "one of the two requests has no response yet");
        activity.end_request();
        assert_eq!(activity.observe(), (Waiting::Server, 0));
        assert_eq!(activity.observe(), (Waiting::Server, 1));
        assert_eq!(activity.eviction_rank(), None, "the response waits for data of this server");
        activity.set_awaiting_data(false);
        assert_eq!(activity.eviction_rank(), Some((Evictable::WaitsForClient, 1)), "the client must take the data");
        activity.end_response();
        assert_eq!(activity.observe(), (Waiting::NextRequest, 0));
        assert_eq!(activity.observe(), (Waiting::NextRequest, 1));
        assert_eq!(activity.eviction_rank(), Some((Evictable::Idle, 1)));
        activity.set_write_blocked(true);
        assert_eq!(activity.observe(), (Waiting::Client, 0), "the client does not read");
        assert_eq!(activity.observe(), (Waiting::Client, 1));
        activity.set_write_blocked(false);
        assert_eq!(activity.observe(), (Waiting::NextRequest, 0));
    }

    #[test]
    fn head_of_a_further_request_has_one_timeout() {
        for is_http1 in [true, false] {
            let activity = Activity::default();
            activity.record_read();
            assert_eq!(activity.observe(), (Waiting::FirstRequest, 1), "the first head has a timeout of its own");
            activity.begin_request(is_http1);
            activity.record_read();
            activity.end_request();
            assert_eq!(activity.observe(), (Waiting::NextRequest, 0), "the bytes belong to the request in progress");
            assert_eq!(activity.observe(), (Waiting::NextRequest, 1));
            activity.record_read();
            if !is_http1 {
                assert_eq!(activity.observe(), (Waiting::NextRequest, 2), "an answer to a ping begins no request");
                continue;
            }
            assert_eq!(activity.observe(), (Waiting::RestOfHead, 0));
            activity.record_read();
            assert_eq!(activity.observe(), (Waiting::RestOfHead, 1), "a part of a head is no progress");
            activity.begin_request(is_http1);
            activity.end_request();
            assert_eq!(activity.observe(), (Waiting::NextRequest, 0));
        }
    }
}
