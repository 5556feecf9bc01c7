//! One try: a request to a target, and what came of it.

use crate::address_guard::{Guard, Refused};
use crate::domain::webhook::{
    delivery::{Answer, AttemptFailure, EXCERPT},
    secret::WebhookSecret,
    url::TargetUrl,
};
use countersign_identity::{EventId, Timestamp};
use reqwest::{Certificate, Client, ClientBuilder, Response, StatusCode, header, redirect::Policy};
use std::{error::Error, time::Duration};

/// For a connection with its TLS.
const CONNECT: Duration = Duration::from_secs(5);

/// How long a connection is kept for the next event.
const IDLE: Duration = Duration::from_secs(30);

/// Connections that are kept for one host.
const MOST_IDLE: usize = 16;

/// Of an answer so many bytes are read: a body that ends by then leaves the connection to the next event.
const MOST_READ: usize = 16 * 1024;

/// Once the status is known, the body is waited for no longer than this.
const BODY: Duration = Duration::from_secs(2);

/// Why nothing can be sent at all.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// The operator's authorities are none.
    #[error("holds no certificate in PEM")]
    Authorities,
    /// The certificates of the platform cannot be used.
    #[error("TLS: {0}")]
    Tls(String),
}

/// Sends events.
pub struct Post {
    encrypted: Client,
    plain: Client,
    guard: Guard,
}

/// What is sent.
pub struct Letter<'a> {
    /// What it is about: the same on every try.
    pub event: EventId,
    /// When it is sent.
    pub now: Timestamp,
    /// What it says, to the byte.
    pub body: &'a str,
    /// What signs it.
    pub secrets: &'a [WebhookSecret],
}

/// What came of it.
#[derive(Debug)]
pub struct Posted {
    /// What was answered, if anything.
    pub answer: Option<Answer>,
    /// Why it is not delivered; `None` if it is.
    pub failure: Option<AttemptFailure>,
    /// How long the receiver wants to be left alone.
    pub retry_after: Option<Duration>,
}

impl Post {
    /// Believes the authorities of the platform and those in this PEM. A try ends within `patience`.
    pub fn new(guard: Guard, authorities: Option<&[u8]>, patience: Duration) -> Result<Self, PostError> {
        let mut certificates = Vec::new();
        if let Some(pem) = authorities {
            certificates = Certificate::from_pem_bundle(pem).map_err(|_| PostError::Authorities)?;
            if certificates.is_empty() {
                return Err(PostError::Authorities);
            }
        }
        let build = |builder: ClientBuilder| builder.build().map_err(|error| PostError::Tls(error.to_string()));
        let client = |plain| client(patience).dns_resolver(guard.resolver(plain));
        let encrypted = build(client(false).https_only(true).tls_certs_merge(certificates))?;
        Ok(Self { encrypted, plain: build(client(true))?, guard })
    }

    /// Sends once.
    pub async fn send(&self, url: &TargetUrl, letter: Letter<'_>) -> Posted {
        if self.guard.check_literal(url).is_err() {
            return Posted { answer: None, failure: Some(AttemptFailure::AddressRefused), retry_after: None };
        }
        let Letter { event, now, body, secrets } = letter;
        let signatures: Vec<_> = secrets.iter().map(|secret| secret.sign(event, now, body)).collect();
        let client = if url.is_plain() { &self.plain } else { &self.encrypted };
        let request = client
            .post(url.as_url().clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header("webhook-id", event.to_string())
            .header("webhook-timestamp", now.seconds())
            .header("webhook-signature", signatures.join(" "))
            .body(body.to_owned());
        match request.send().await {
            Ok(response) => read(response, now).await,
            Err(error) => Posted { answer: None, failure: Some(why(&error)), retry_after: None },
        }
    }
}

fn client(patience: Duration) -> ClientBuilder {
    // One request a connection at a time: what hangs holds up itself only. A proxy would choose the address for us.
    Client::builder()
        .http1_only()
        .no_proxy()
        .referer(false)
        .redirect(Policy::none())
        .connect_timeout(CONNECT)
        .timeout(patience)
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(MOST_IDLE)
        .user_agent(concat!("countersign/", env!("CARGO_PKG_VERSION")))
}

/// The status decides; of the body some is kept, for whoever looks for what was wrong.
async fn read(mut response: Response, now: Timestamp) -> Posted {
    let status = response.status();
    let retry_after = retry_after(&response, now);
    let mut bytes = Vec::new();
    let whole = async {
        while let Ok(Some(chunk)) = response.chunk().await {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MOST_READ {
                return;
            }
        }
    };
    let _read_so_far = tokio::time::timeout(BODY, whole).await;
    bytes.truncate(EXCERPT);
    // PostgreSQL keeps no text with a NUL.
    let excerpt = String::from_utf8_lossy(&bytes).replace('\0', "\u{fffd}");
    let failure = AttemptFailure::of_status(status.as_u16());
    Posted { answer: Some(Answer { status: status.as_u16(), excerpt }), failure, retry_after }
}

/// RFC 9110, 10.2.3: seconds, or a date. Whoever takes the event asks for nothing.
fn retry_after(response: &Response, now: Timestamp) -> Option<Duration> {
    let status = response.status();
    if !status.is_server_error() && status != StatusCode::TOO_MANY_REQUESTS {
        return None;
    }
    let text = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(Timestamp::from_seconds(i64::try_from(date.as_secs()).ok()?).since(now))
}

/// What went wrong, by the innermost cause that says so.
fn why(error: &reqwest::Error) -> AttemptFailure {
    let mut cause: &dyn Error = error;
    loop {
        match cause.downcast_ref::<Refused>() {
            Some(Refused::Unknown) => return AttemptFailure::Dns,
            Some(Refused::Private | Refused::Plain) => return AttemptFailure::AddressRefused,
            None => {}
        }
        if cause.is::<rustls::Error>() {
            return AttemptFailure::Tls;
        }
        // An error of a connection passes over what is inside of it when it names its source: there TLS says what is wrong.
        let within = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        match within.map(|within| within as &dyn Error).or_else(|| cause.source()) {
            Some(inner) => cause = inner,
            None if error.is_timeout() => return AttemptFailure::Timeout,
            None => return AttemptFailure::Connection,
        }
    }
}
