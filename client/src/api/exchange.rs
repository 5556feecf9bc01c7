//! What a trace contains of a request and its response: no bodies, no headers except `X-Request-Id`, and no secrets.

use super::redact::redacted_url_with_port;
use reqwest::{Client, Method, Request, Response};
use std::time::{Duration, Instant};

/// A function that is called after each exchange of a request and its response.
pub type Observer = fn(&Exchange);

/// A request and its result, without secrets.
#[derive(Debug)]
pub struct Exchange {
    /// The HTTP method.
    pub method: Method,
    /// The URL without user name, password, query and fragment.
    pub url: String,
    /// The HTTP status of the response; `None` if there was no response.
    pub status: Option<u16>,
    /// The response header `X-Request-Id`.
    pub request_id: Option<String>,
    /// The time until the headers of the response arrived.
    pub elapsed: Duration,
}

impl Exchange {
    /// Sends a request and calls the observer with the exchange.
    #[expect(clippy::disallowed_methods, reason = "the elapsed time is shown in a trace only")]
    pub async fn execute(
        http: &Client,
        request: Request,
        observer: Option<Observer>,
    ) -> Result<Response, reqwest::Error> {
        let method = request.method().clone();
        let url = redacted_url_with_port(request.url());
        let start = Instant::now();
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
