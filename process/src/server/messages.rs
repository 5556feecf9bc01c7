//! The memory for gRPC requests that have not arrived completely, on ports where a request is one message.
//!
//! A message that arrives in one piece reserves nothing. An unfinished message reserves as much memory as it announces, because the
//! decoder of tonic allocates this much at once. If there is not enough memory, the request is refused: nothing waits for memory.
//! Invariant: a request is over when its message has arrived, whether the client ends the HTTP/2 stream or not. So only unfinished
//! messages keep memory, and all of them have reserved it.

use super::memory::{ReservedMemory, SharedMemory, head_size};
use axum::{
    BoxError,
    body::Bytes,
    http::{HeaderMap, Uri},
};
use http_body::Frame;
use std::{net::IpAddr, sync::Arc, task::Poll};

/// The number of bytes before the content of a message: a flag, and the length of the content.
const PREFIX: usize = 5;

/// About how many bytes an unfinished request needs besides its head and its message: for its task, and the decoder's first buffer.
const BASE_COST: usize = 16 << 10;

/// The limits of the messages of a port.
pub struct MessageLimits {
    /// The memory that all unfinished requests share.
    pub memory: SharedMemory,
    /// The length of the largest message. The routes refuse a larger message as soon as its length has arrived.
    pub max_message: usize,
    /// The error that the routes get instead of a message for which there is no memory.
    pub refusal: fn() -> BoxError,
}

/// The message of a request, while it arrives.
pub(super) struct IncomingMessage {
    limits: Arc<MessageLimits>,
    /// `None` for a Unix socket.
    client: Option<IpAddr>,
    /// The bytes that the request head needs.
    head: usize,
    prefix: [u8; PREFIX],
    /// How many bytes have arrived, with the prefix.
    arrived: usize,
    reserved: Option<ReservedMemory>,
}

/// What a poll of the body of a request returns.
type PolledFrame = Poll<Option<Result<Frame<Bytes>, BoxError>>>;

impl IncomingMessage {
    /// `client` is `None` for a Unix socket.
    pub(super) fn new(limits: &Arc<MessageLimits>, client: Option<IpAddr>, uri: &Uri, headers: &HeaderMap) -> Self {
        let head = head_size(uri, headers);
        Self { limits: Arc::clone(limits), client, head, prefix: [0; PREFIX], arrived: 0, reserved: None }
    }

    /// Decides what a poll of the body returns to the routes: what arrived, or the end after a complete message, or the refusal if an
    /// unfinished message gets no memory. `is_last` says that the client has ended the stream with this frame.
    pub(super) fn receive(&mut self, polled: PolledFrame, is_last: bool) -> PolledFrame {
        match &polled {
            Poll::Ready(None | Some(Err(_))) => return polled,
            Poll::Pending | Poll::Ready(Some(Ok(_))) if self.is_complete() => return Poll::Ready(None),
            Poll::Ready(Some(Ok(_))) if is_last => return polled,
            Poll::Ready(Some(Ok(frame))) => self.count(frame),
            Poll::Pending => {}
        }
        if self.is_complete() || self.reserve() { polled } else { Poll::Ready(Some(Err((self.limits.refusal)()))) }
    }

    fn count(&mut self, frame: &Frame<Bytes>) {
        let Some(data) = frame.data_ref() else { return };
        let rest_of_prefix = self.prefix.iter_mut().skip(self.arrived);
        rest_of_prefix.zip(data).for_each(|(byte, arrived)| *byte = *arrived);
        self.arrived += data.len();
    }

    fn is_complete(&self) -> bool {
        self.announced_length().is_some_and(|length| self.arrived - PREFIX >= length)
    }

    /// The length of the message without its prefix; `None` until the prefix has arrived.
    fn announced_length(&self) -> Option<usize> {
        let [_flag, length @ ..] = self.prefix;
        (self.arrived >= PREFIX).then(|| usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX))
    }

    /// Reserves the memory of the whole request, as far as it is not reserved yet. Returns false if there is not enough.
    fn reserve(&mut self) -> bool {
        // The routes refuse a message that is too large and never keep it, so it needs no memory.
        let message = self.announced_length().filter(|length| *length <= self.limits.max_message);
        let needed = BASE_COST + self.head + message.unwrap_or_default();
        if let Some(reserved) = &mut self.reserved {
            return needed <= reserved.bytes() || reserved.grow(needed - reserved.bytes());
        }
        self.reserved = self.limits.memory.reserve(self.client, needed);
        self.reserved.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::IntCounter;

    const KIB: usize = 1 << 10;

    fn limits(capacity: usize) -> Arc<MessageLimits> {
        let refused = IntCounter::new("refused", "refused").unwrap();
        let memory = SharedMemory::new(capacity, capacity, refused);
        Arc::new(MessageLimits { memory, max_message: 1024 * KIB, refusal: || "refused".into() })
    }

    fn message(limits: &Arc<MessageLimits>) -> IncomingMessage {
        IncomingMessage::new(limits, None, &Uri::from_static("/service/method"), &HeaderMap::new())
    }

    fn data(bytes: &[u8]) -> PolledFrame {
        Poll::Ready(Some(Ok(Frame::data(Bytes::copy_from_slice(bytes)))))
    }

    /// What the routes see: the length of a frame, the end of the request, or nothing yet.
    fn seen(frame: PolledFrame) -> Poll<Option<Result<usize, String>>> {
        frame.map_ok(|frame| frame.into_data().unwrap().len()).map_err(|error| error.to_string())
    }

    fn prefix(length: usize) -> [u8; PREFIX] {
        let [a, b, c, d] = u32::try_from(length).unwrap().to_be_bytes();
        [0, a, b, c, d]
    }

    fn is_reserved(message: &IncomingMessage) -> bool {
        message.reserved.is_some()
    }

    #[test]
    fn message_that_arrives_at_once_reserves_nothing() {
        let limits = limits(0);
        let mut last = message(&limits);
        assert_eq!(seen(last.receive(data(&[0; 100]), true)), Poll::Ready(Some(Ok(100))));
        let mut complete = message(&limits);
        let bytes = [&prefix(2)[..], b"xy"].concat();
        assert_eq!(seen(complete.receive(data(&bytes), false)), Poll::Ready(Some(Ok(7))));
        assert_eq!(
            seen(complete.receive(Poll::Pending, false)),
            Poll::Ready(None),
            "the client does not end the stream"
        );
        assert_eq!(seen(complete.receive(data(&bytes), false)), Poll::Ready(None), "a second message");
        assert!(!is_reserved(&last) && !is_reserved(&complete));
        let mut unfinished = message(&limits);
        assert_eq!(seen(unfinished.receive(Poll::Pending, false)), Poll::Ready(Some(Err("refused".to_owned()))));
    }

    #[test]
    fn unfinished_messages_reserve_what_they_announce() {
        let limits = limits(80 * KIB);
        let mut first = message(&limits);
        assert!(first.receive(Poll::Pending, false).is_pending());
        for byte in prefix(32 * KIB) {
            assert_eq!(seen(first.receive(data(&[byte]), false)), Poll::Ready(Some(Ok(1))));
        }
        let reserved = first.reserved.as_ref().unwrap().bytes();
        assert!((48 * KIB..49 * KIB).contains(&reserved), "{reserved}");
        let mut second = message(&limits);
        let refused = Poll::Ready(Some(Err("refused".to_owned())));
        assert_eq!(seen(second.receive(data(&prefix(32 * KIB)), false)), refused);
        let mut too_large = message(&limits);
        assert_eq!(seen(too_large.receive(data(&prefix(2048 * KIB)), false)), Poll::Ready(Some(Ok(PREFIX))));
        drop((first, too_large));
        assert_eq!(seen(message(&limits).receive(data(&prefix(32 * KIB)), false)), Poll::Ready(Some(Ok(PREFIX))));
        assert!(limits.memory.reserve(None, 80 * KIB).is_some(), "all is free");
    }
}
