//! The bodies of requests and responses, which record whether they wait for the client or for this server.

use super::{
    activity::Activity,
    messages::IncomingMessage,
    streams::{Wait, record_wait},
};
use axum::{
    BoxError,
    body::{Body, Bytes, HttpBody},
};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

/// The largest part of a response that is handed to the connection at once: the largest DATA frame that every HTTP/2 client
/// accepts. The connection holds what it was handed until the client takes it, and nobody can take it back.
const MAX_FRAME: usize = 16 * 1024;

/// A request in progress. Dropping it records its end.
pub(super) struct RequestState {
    pub(super) activity: Arc<Activity>,
    /// Whether the response has begun.
    pub(super) responding: bool,
}

impl Drop for RequestState {
    fn drop(&mut self) {
        if self.responding { self.activity.end_response() } else { self.activity.end_request() }
    }
}

/// The body of a request, which records when it has arrived.
pub(super) struct TrackedRequestBody {
    body: Incoming,
    /// `None` after the end of the body.
    activity: Option<Arc<Activity>>,
    /// `None` if the messages of the port have no limits.
    message: Option<IncomingMessage>,
}

impl TrackedRequestBody {
    pub(super) fn new(body: Incoming, activity: Arc<Activity>, message: Option<IncomingMessage>) -> Self {
        let activity = (!body.is_end_stream()).then_some(activity);
        if let Some(activity) = &activity {
            activity.begin_body();
        }
        Self { body, activity, message }
    }

    fn end(&mut self) {
        if let Some(activity) = self.activity.take() {
            activity.end_body();
            record_wait(Wait::Server);
        }
    }
}

impl HttpBody for TrackedRequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let frame = Pin::new(&mut this.body).poll_frame(context).map_err(BoxError::from);
        let is_last = this.body.is_end_stream();
        let frame = match &mut this.message {
            Some(message) => message.receive(frame, is_last),
            None => frame,
        };
        match &frame {
            Poll::Pending => record_wait(Wait::Client),
            Poll::Ready(Some(Ok(_))) if !is_last => record_wait(Wait::Progress),
            Poll::Ready(_) => self.end(),
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedRequestBody {
    fn drop(&mut self) {
        self.end();
    }
}

/// The body of a response, which records whether it waits for the server or for the client.
pub(super) struct TrackedResponseBody {
    body: Body,
    /// The rest of a frame of `body`.
    rest: Bytes,
    state: Option<RequestState>,
    awaiting_data: bool,
}

impl TrackedResponseBody {
    pub(super) fn new(body: Body, state: Option<RequestState>) -> Self {
        Self { body, rest: Bytes::new(), state, awaiting_data: false }
    }

    fn set_awaiting_data(&mut self, awaiting: bool) {
        if let Some(state) = &self.state
            && self.awaiting_data != awaiting
        {
            self.awaiting_data = awaiting;
            state.activity.set_awaiting_data(awaiting);
        }
    }

    /// The next [`MAX_FRAME`] bytes of a frame; the others remain in `rest`.
    fn first_part(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        frame.into_data().map_or_else(
            |trailers| trailers,
            |mut data| {
                if data.len() > MAX_FRAME {
                    self.rest = data.split_off(MAX_FRAME);
                }
                Frame::data(data)
            },
        )
    }
}

impl HttpBody for TrackedResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let rest = std::mem::take(&mut self.rest);
        let frame = if rest.is_empty() {
            Pin::new(&mut self.body).poll_frame(context)
        } else {
            Poll::Ready(Some(Ok(Frame::data(rest))))
        };
        self.set_awaiting_data(frame.is_pending());
        record_wait(if frame.is_pending() { Wait::Server } else { Wait::Progress });
        if let (true, Some(state)) = (frame.is_ready(), &self.state) {
            state.activity.record_progress();
        }
        frame.map_ok(|frame| self.first_part(frame))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower().saturating_add(rest));
        if let Some(upper) = body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

impl Drop for TrackedResponseBody {
    fn drop(&mut self) {
        self.set_awaiting_data(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[tokio::test]
    async fn large_responses_are_handed_over_in_parts() {
        let length = 2 * MAX_FRAME + 1;
        let mut body = TrackedResponseBody::new(Body::from(vec![7; length]), None);
        let mut left = length;
        for part in [MAX_FRAME, MAX_FRAME, 1] {
            assert_eq!(body.size_hint().exact(), Some(left as u64));
            assert!(!body.is_end_stream());
            let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.unwrap().unwrap();
            assert_eq!(frame.data_ref().map(Bytes::len), Some(part));
            left -= part;
        }
        assert!(body.is_end_stream());
        assert!(poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.is_none());
    }
}
