//! A control plane with a manual clock, clients at several addresses, and helpers for rate limit responses.

use countersign_tests::{
    Agent, ControlPlane, HttpResponse, ManualClock,
    http::{HttpClient, trusting},
};
use reqwest::{ClientBuilder, RequestBuilder};
use serde_json::Value;
use std::{net::Ipv4Addr, sync::Arc, time::Duration};

/// The time window of all rate limits.
pub const MINUTE: Duration = Duration::from_mins(1);

pub struct Fixture {
    pub clock: Arc<ManualClock>,
    pub control: ControlPlane,
    /// A client at 127.0.0.1.
    pub api: HttpClient,
}

impl Fixture {
    pub async fn new() -> Self {
        Self::with_settings(&[]).await
    }

    pub async fn with_settings(settings: &[&str]) -> Self {
        let clock = ManualClock::new();
        let control = ControlPlane::start_limited_with_clock(&clock, settings).await;
        let api = control.api.clone();
        Self { clock, control, api }
    }

    /// A client of the API with other HTTP options.
    pub fn with_client(&self, configure: impl FnOnce(ClientBuilder) -> ClientBuilder) -> HttpClient {
        let client = configure(trusting(&self.control.authority())).build().unwrap();
        HttpClient::new(self.api.url.clone(), client)
    }

    /// A client of the API that sends from another loopback address.
    pub fn from(&self, last_byte: u8) -> HttpClient {
        self.control.client_at(Ipv4Addr::new(127, 0, 0, last_byte))
    }

    /// Registers an agent, which is one call under `/auth`.
    pub async fn register(&self) -> Agent {
        Agent::register(&self.control, "Agent").await
    }

    /// Logs in, which is two calls under `/auth`.
    pub async fn login(&self, agent: &Agent) -> Value {
        agent.log_in(&self.api, None).await.expect(200)
    }

    /// The number of rate-limited requests in a category, from the metrics.
    pub async fn rate_limited_total(&self, category: &str) -> Option<f64> {
        let admin = HttpClient::plain(self.control.env["ADMIN_URL"].clone());
        admin.metric(&format!("countersign_rate_limited_total{{category=\"{category}\"}}")).await
    }
}

/// Requests a challenge.
pub async fn challenge(client: &HttpClient, agent: &Agent) -> HttpResponse {
    agent.challenge(client, None).await
}

/// Sends requests one after the other. Returns how many requests are not rate-limited.
pub async fn count_passed(times: usize, request: impl Fn() -> RequestBuilder) -> usize {
    let mut passed = 0;
    for _ in 0..times {
        let response = HttpResponse::send(request()).await;
        passed += usize::from(response.status != 429);
    }
    passed
}

/// The category and delay in seconds of a rate-limited response. Checks that body and headers of the response agree.
#[track_caller]
pub fn rate_limit_refusal(response: &HttpResponse) -> (String, u64) {
    let (status, code, _) = response.error();
    assert_eq!((status, code), (429, "RATE_LIMIT_EXCEEDED"), "{}", response.body);
    let details = &response.body["error"]["details"];
    let (category, seconds) = (details["category"].as_str().unwrap(), details["retryAfterSeconds"].as_u64().unwrap());
    let limit = details["limit"].as_u64().unwrap();
    assert_eq!(details["windowSeconds"], 60);
    assert_eq!(response.header("retry-after"), seconds.to_string());
    assert!(response.text("/error/message").contains(&format!("{seconds} second")), "{}", response.body);
    let policy = format!("\"{category}\";q={limit};w=60");
    assert!(response.header("ratelimit-policy").split(", ").any(|item| item == policy), "{:?}", response.headers);
    let expected = format!("\"{category}\";r=0;t={seconds}");
    assert!(response.header("ratelimit").split(", ").any(|item| item == expected), "{:?}", response.headers);
    (category.to_owned(), seconds)
}
