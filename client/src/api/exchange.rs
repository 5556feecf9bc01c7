//! A request and its response as a trace shows them: without bodies, headers and credentials.

use super::redact::url_with_port;
use reqwest::{Client, Method, Request, Response};
use std::time::{Duration, Instant};

/// Receives every exchange after it ended.
pub type Observer = fn(&Exchange);

/// A request and its result. It contains no secret.
#[derive(Debug)]
pub struct Exchange {
    /// The HTTP method.
    pub method: Method,
    /// The URL, without user, password, query and fragment.
    pub url: String,
    /// The status of the response; `None` if there was no response.
    pub status: Option<u16>,
    /// The response header `X-Request-Id`.
    pub request_id: Option<String>,
    /// The time until the head of the response arrived.
    pub elapsed: Duration,
}

impl Exchange {
    /// Sends a request and reports it to the observer.
    #[expect(clippy::disallowed_methods, reason = "an elapsed time for a trace, on which no decision depends")]
    pub async fn execute(
        http: &Client,
        request: Request,
        observer: Option<Observer>,
    ) -> Result<Response, reqwest::Error> {
        let (method, url, start) = (request.method().clone(), url_with_port(request.url()), Instant::now());
        let result = http.execute(request).await;
        if let Some(observe) = observer {
            let header = |response: &Response| response.headers().get("x-request-id")?.to_str().ok().map(str::to_owned);
            observe(&Self {
                method,
                url,
                status: result.as_ref().ok().map(|response| response.status().as_u16()),
                request_id: result.as_ref().ok().and_then(header),
                elapsed: start.elapsed(),
            });
        }
        result
    }
}
