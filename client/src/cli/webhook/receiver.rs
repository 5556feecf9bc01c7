//! Receives webhooks on loopback and verifies their signatures.
//!
//! Depends on [`loopback`](crate::cli::loopback). The server answers a request only after the command has printed it: an event that
//! was not printed is sent again.

use crate::cli::loopback::{BoundServer, RunningServer, method_not_allowed, read_body, text_response};
use countersign_client::{Verifier, WebhookError, clock, webhook::ID};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::HeaderMap,
};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// The largest body, in bytes. Events are far smaller than this maximum.
const MAX_BODY: usize = 256 * 1024;

/// A request that may be an event.
pub struct ReceivedRequest {
    /// The id of the event, from the header `webhook-id`.
    pub id: Option<String>,
    /// The body as JSON, or as a string if it is not JSON.
    pub body: Value,
    /// Why the request is invalid, or `None` if it is valid.
    pub problem: Option<WebhookError>,
    acknowledged: oneshot::Sender<()>,
}

pub struct Receiver {
    requests: mpsc::Receiver<ReceivedRequest>,
    server: RunningServer,
}

struct State {
    verifier: Verifier,
    requests: mpsc::Sender<ReceivedRequest>,
}

impl ReceivedRequest {
    /// Whether the signature is valid. The body of a signed request may be something else than an event.
    pub const fn is_signed(&self) -> bool {
        match self.problem {
            None | Some(WebhookError::NotAnEvent) => true,
            Some(
                WebhookError::Missing(_)
                | WebhookError::Repeated(_)
                | WebhookError::Unreadable(_)
                | WebhookError::UnknownVersion
                | WebhookError::WrongSignature
                | WebhookError::TooOld
                | WebhookError::TooNew,
            ) => false,
        }
    }

    /// Lets the server answer the request.
    pub fn acknowledge(self) {
        // If the connection has ended meanwhile, nobody waits for this.
        let _ignored = self.acknowledged.send(());
    }
}

impl Receiver {
    /// Starts to accept connections.
    pub fn start(server: BoundServer, verifier: Verifier) -> Self {
        let (sender, requests) = mpsc::channel(1);
        let state = Arc::new(State { verifier, requests: sender });
        let server = server.start(move |request| {
            let state = state.clone();
            async move { respond(request, &state).await }
        });
        Self { requests, server }
    }

    /// The next request that may be an event.
    pub async fn next(&mut self) -> Option<ReceivedRequest> {
        self.requests.recv().await
    }

    /// Stops the server after it has sent the responses to acknowledged requests.
    pub async fn close(self) {
        let Self { requests, server } = self;
        // Requests that still wait for an acknowledgement get 503, so the control plane sends them again.
        drop(requests);
        server.close().await;
    }
}

async fn respond(request: Request<Incoming>, state: &State) -> Response<Full<Bytes>> {
    if request.method() != Method::POST {
        return method_not_allowed("POST", "webhooks are sent by POST");
    }
    let (head, body) = request.into_parts();
    match read_body(body, MAX_BODY).await {
        Err(error) => text_response(error.status(), &error.to_string()),
        Ok(body) => receive(&head.headers, &body, state).await,
    }
}

/// Verifies a request, passes it to the consumer, and answers when the consumer has acknowledged it.
async fn receive(headers: &HeaderMap, body: &[u8], state: &State) -> Response<Full<Bytes>> {
    let result = state.verifier.verify(headers, body, clock::now()).and_then(|signed| signed.event());
    let (acknowledged, acknowledgement) = oneshot::channel();
    let request = ReceivedRequest {
        id: headers.get(ID).map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned()),
        body: serde_json::from_slice(body).unwrap_or_else(|_| String::from_utf8_lossy(body).into()),
        problem: result.err(),
        acknowledged,
    };
    let problem = request.problem;
    let signed = request.is_signed();
    if state.requests.send(request).await.is_err() || acknowledgement.await.is_err() {
        return text_response(StatusCode::SERVICE_UNAVAILABLE, "the receiver is shutting down");
    }
    match problem {
        None => text_response(StatusCode::OK, "received"),
        Some(problem) if signed => text_response(StatusCode::BAD_REQUEST, &problem.to_string()),
        Some(problem) => text_response(StatusCode::UNAUTHORIZED, &problem.to_string()),
    }
}
