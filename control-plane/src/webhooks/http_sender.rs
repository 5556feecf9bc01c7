//! Sends a signed request to a target and classifies the outcome of the attempt.

use super::pooled_hosts::{IDLE_TIMEOUT, MAX_IDLE_PER_HOST, PooledHosts};
use crate::{
    address_guard::AddressGuard,
    domain::webhook::{
        TargetOwner,
        address::HostRejection,
        delivery::{AttemptFailure, EXCERPT_BYTES, ResponseExcerpt},
        secret::WebhookSecret,
        url::TargetUrl,
    },
};
use arc_swap::ArcSwap;
use countersign_identity::{EventId, Timestamp};
use reqwest::{
    Certificate, Client, ClientBuilder, Response, StatusCode,
    dns::{Addrs, Name, Resolve, Resolving},
    header,
    redirect::Policy,
};
use std::{error::Error, net::SocketAddr, sync::Arc, time::Duration};

/// Timeout of a connection, including its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of body bytes to read. A connection can be reused only if the whole body was read.
const MAX_BODY_READ: usize = 16 * 1024;

/// Timeout for the body of a response, from the arrival of the status.
const BODY_TIMEOUT: Duration = Duration::from_secs(2);

tokio::task_local! {
    /// The owner of the target to which this task sends. The lookup of the host needs it, but the HTTP client passes only the name.
    static LOOKUP_OWNER: TargetOwner;
}

pub struct HttpSender {
    https: ArcSwap<Clients>,
    plaintext: Clients,
    pooled_hosts: PooledHosts,
    guard: AddressGuard,
    timeout: Duration,
}

/// The clients for one scheme.
struct Clients {
    /// A client that keeps idle connections.
    pooling: Client,
    /// A client that closes each connection after its response.
    closing: Client,
}

pub struct OutgoingRequest<'a> {
    /// The event; the same in all attempts.
    pub event: EventId,
    /// Time of the attempt.
    pub now: Timestamp,
    /// The same time, since boot.
    pub started_at: Duration,
    pub owner: &'a TargetOwner,
    pub body: &'a str,
    pub secrets: &'a [WebhookSecret],
}

#[derive(Debug)]
pub struct SendOutcome {
    pub response: Option<ResponseExcerpt>,
    /// Why the attempt failed; `None` after success.
    pub failure: Option<AttemptFailure>,
    pub retry_after: Option<Duration>,
}

impl SendOutcome {
    pub const fn without_response(failure: AttemptFailure) -> Self {
        Self { response: None, failure: Some(failure), retry_after: None }
    }
}

impl HttpSender {
    /// Creates a sender that trusts the certificate authorities of the operating system and those in a PEM file. An attempt
    /// ends within `timeout`.
    pub fn new(guard: AddressGuard, authorities: Option<&[u8]>, timeout: Duration) -> Result<Self, String> {
        let https = ArcSwap::from_pointee(https_clients(&guard, authorities, timeout)?);
        // These clients never use TLS, so they need not read the authorities of the operating system.
        let resolver = || GuardedResolver { guard: guard.clone(), plaintext: true };
        let plaintext = build_clients(|| client_builder(resolver(), timeout).tls_certs_only([]))?;
        Ok(Self { https, plaintext, pooled_hosts: PooledHosts::new(), guard, timeout })
    }

    /// From the next attempt on, trusts these additional certificate authorities and no longer the previous ones. An invalid PEM
    /// file replaces nothing.
    pub fn replace_authorities(&self, authorities: &[u8]) -> Result<(), String> {
        self.https.store(Arc::new(https_clients(&self.guard, Some(authorities), self.timeout)?));
        Ok(())
    }

    pub async fn send(&self, url: &TargetUrl, request: OutgoingRequest<'_>) -> SendOutcome {
        // The client resolves names through the address guard, but connects to literal addresses without calling the guard.
        if self.guard.check_literal(url).is_err() {
            return SendOutcome::without_response(AttemptFailure::AddressRefused);
        }
        let OutgoingRequest { event, now, started_at, owner, body, secrets } = request;
        let signatures: Vec<_> = secrets.iter().map(|secret| secret.sign(event, now, body)).collect();
        let origin = url.as_url().origin().ascii_serialization();
        let keep_open = self.pooled_hosts.may_stay_open(origin, owner, started_at, started_at + self.timeout);
        let choose = |clients: &Clients| if keep_open { clients.pooling.clone() } else { clients.closing.clone() };
        let client = if url.is_plaintext() { choose(&self.plaintext) } else { choose(&self.https.load()) };
        let request = client
            .post(url.as_url().clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header("webhook-id", event.to_string())
            .header("webhook-timestamp", now.seconds())
            .header("webhook-signature", signatures.join(" "))
            .body(body.to_owned());
        match LOOKUP_OWNER.scope(owner.clone(), request.send()).await {
            Ok(response) => read_response(response, now).await,
            Err(error) => SendOutcome::without_response(failure_from_error(&error)),
        }
    }
}

/// Restricts connections to the addresses that the address guard allows.
struct GuardedResolver {
    guard: AddressGuard,
    /// Whether requests are sent without TLS, for which the guard allows other addresses.
    plaintext: bool,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (guard, plaintext) = (self.guard.clone(), self.plaintext);
        // The owner is read here, because the client may continue the connection in another task.
        let owner = LOOKUP_OWNER.try_with(TargetOwner::clone);
        Box::pin(async move {
            let allowed = guard.resolve(name.as_str(), &owner?, plaintext).await?;
            let addresses: Addrs = Box::new(allowed.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}

/// The clients for `https://` targets, which trust the authorities of the operating system and those in a PEM file.
fn https_clients(guard: &AddressGuard, authorities: Option<&[u8]>, timeout: Duration) -> Result<Clients, String> {
    let mut certificates = Vec::new();
    if let Some(pem) = authorities {
        let no_certificate = || "contains no PEM certificate".to_owned();
        certificates = Certificate::from_pem_bundle(pem).map_err(|_| no_certificate())?;
        if certificates.is_empty() {
            return Err(no_certificate());
        }
    }
    let resolver = || GuardedResolver { guard: guard.clone(), plaintext: false };
    build_clients(|| client_builder(resolver(), timeout).https_only(true).tls_certs_merge(certificates.clone()))
}

fn build_clients(builder: impl Fn() -> ClientBuilder) -> Result<Clients, String> {
    let build = |max_idle_per_host| {
        let builder = builder().pool_max_idle_per_host(max_idle_per_host);
        builder.build().map_err(|error| format!("TLS: {error}"))
    };
    Ok(Clients { pooling: build(MAX_IDLE_PER_HOST)?, closing: build(0)? })
}

fn client_builder(resolver: GuardedResolver, timeout: Duration) -> ClientBuilder {
    // HTTP/1.1 only: a connection carries one request at a time, so a hanging response delays no other request. No proxy, because a
    // proxy would resolve names itself and bypass the address guard.
    Client::builder()
        .dns_resolver(resolver)
        .http1_only()
        .no_proxy()
        .referer(false)
        .redirect(Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(timeout)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .user_agent(concat!("countersign/", env!("CARGO_PKG_VERSION")))
}

/// Classifies a response by its status only. Reads the start of the body for troubleshooting.
async fn read_response(mut response: Response, now: Timestamp) -> SendOutcome {
    let status = response.status();
    let retry_after = retry_after(&response, now);
    let mut bytes = Vec::new();
    let read = async {
        while let Ok(Some(chunk)) = response.chunk().await {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MAX_BODY_READ {
                return;
            }
        }
    };
    // If the body does not arrive in time, the stored excerpt contains the part that has arrived.
    let _elapsed = tokio::time::timeout(BODY_TIMEOUT, read).await;
    bytes.truncate(EXCERPT_BYTES);
    // PostgreSQL cannot store NUL in text.
    let body = String::from_utf8_lossy(&bytes).replace('\0', "\u{fffd}");
    let failure = AttemptFailure::from_http_status(status.as_u16());
    SendOutcome { response: Some(ResponseExcerpt { status: status.as_u16(), body }), failure, retry_after }
}

/// Parses `Retry-After` (RFC 9110, section 10.2.3): seconds or a date. The header is ignored unless the status is 429 or 5xx.
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
    Some(Timestamp::from_seconds(i64::try_from(date.as_secs()).ok()?).duration_since(now))
}

/// Classifies an error by the first of its causes whose type is known.
fn failure_from_error(error: &reqwest::Error) -> AttemptFailure {
    let mut cause: &dyn Error = error;
    loop {
        match cause.downcast_ref::<HostRejection>() {
            Some(HostRejection::Unresolved | HostRejection::TooManyLookups) => return AttemptFailure::Dns,
            Some(HostRejection::NotPublic | HostRejection::PlaintextNotAllowed) => {
                return AttemptFailure::AddressRefused;
            }
            None => {}
        }
        if cause.is::<rustls::Error>() {
            return AttemptFailure::Tls;
        }
        // `io::Error::source` skips the error that the `io::Error` wraps, such as a TLS error.
        let wrapped = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        match wrapped.map(|wrapped| wrapped as &dyn Error).or_else(|| cause.source()) {
            Some(inner) => cause = inner,
            None if error.is_timeout() => return AttemptFailure::Timeout,
            None => return AttemptFailure::Connection,
        }
    }
}
