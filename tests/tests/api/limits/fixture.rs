//! A control plane with a clock that is moved by hand, clients at several addresses, and what is said of limits.

use countersign_client::PrivateKey;
use countersign_control_plane::{App, Config, Dependencies};
use countersign_process::Shutdown;
use countersign_tests::{HttpResponse, ManualClock, control_plane::default_limits, http::HttpClient};
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use std::{net::Ipv4Addr, sync::Arc, time::Duration};
use tempfile::TempDir;

/// The span that limits are for.
pub const MINUTE: Duration = Duration::from_mins(1);

pub struct Fixture {
    pub clock: Arc<ManualClock>,
    /// From the ordinary loopback address.
    pub api: HttpClient,
    pub admin: HttpClient,
    pub service: String,
    pub key: String,
    pub human: String,
    authority: Vec<u8>,
    _folder: TempDir,
}

/// An agent and its key.
pub struct Agent {
    pub id: String,
    pub key: PrivateKey,
}

impl Fixture {
    pub async fn new() -> Self {
        Self::with_settings(&[]).await
    }

    pub async fn with_settings(settings: &[(&str, &str)]) -> Self {
        let (clock, folder) = (ManualClock::new(), tempfile::tempdir().unwrap());
        let data = folder.path().display().to_string();
        let own = [
            ("data_dir", data.as_str()),
            ("listen.api", "127.0.0.1:0"),
            ("listen.sync", "127.0.0.1:0"),
            ("listen.admin", "127.0.0.1:0"),
        ];
        let flags = own.iter().chain(settings).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let flags = default_limits().chain(flags).collect();
        let config = Config::read(None, Vec::new(), flags, true).unwrap();
        config.check().unwrap();
        let app = App::bind(config, Dependencies { clock: clock.clone(), ..Dependencies::default() }).await.unwrap();
        let (port, admin) = (app.api_address().unwrap().port(), app.admin_address().unwrap());
        tokio::spawn(app.serve(Shutdown::default()));
        let env = std::fs::read_to_string(folder.path().join("dev.env")).unwrap();
        let said = |name: &str| {
            let mut lines = env.lines().filter_map(|line| line.strip_prefix("COUNTERSIGN_")?.split_once('='));
            lines.find(|(found, _)| *found == name).unwrap().1.to_owned()
        };
        let authority = std::fs::read(said("CA")).unwrap();
        Self {
            clock,
            api: HttpClient::trusting(format!("https://127.0.0.1:{port}"), &authority),
            admin: HttpClient::plain(format!("http://{admin}")),
            service: said("SERVICE_ID"),
            key: said("SERVICE_KEY"),
            human: said("HUMAN_TOKEN"),
            authority,
            _folder: folder,
        }
    }

    /// The API with a client of another making.
    pub fn with_client(&self, make: impl FnOnce(reqwest::ClientBuilder) -> reqwest::ClientBuilder) -> HttpClient {
        let authority = reqwest::Certificate::from_pem(&self.authority).unwrap();
        let client = make(Client::builder().tls_certs_only([authority])).build().unwrap();
        HttpClient { url: self.api.url.clone(), client }
    }

    /// The API from another loopback address.
    pub fn from(&self, last: u8) -> HttpClient {
        self.with_client(|client| client.local_address(std::net::IpAddr::from(Ipv4Addr::new(127, 0, 0, last))))
    }

    /// The PEM of the authority that signed its certificate.
    pub fn authority(&self) -> &[u8] {
        &self.authority
    }

    /// A new agent; this is one call under `/auth`.
    pub async fn register(&self) -> Agent {
        let key = PrivateKey::generate();
        let body = json!({ "email": "owner@example.org", "name": "Agent", "publicKey": key.public_pem().unwrap() });
        let made = self.api.post("/auth/register", body).await.expect(201);
        Agent { id: made["agentId"].as_str().unwrap().to_owned(), key }
    }

    /// Logs in, with two calls.
    pub async fn login(&self, agent: &Agent) -> Value {
        let challenge = challenge(&self.api, agent).await.expect(200);
        let signature = agent.key.sign(challenge["nonce"].as_str().unwrap());
        let body = json!({ "challengeId": challenge["challengeId"], "signature": signature });
        self.api.post("/auth/authenticate", body).await.expect(200)
    }

    /// What a category's counter says.
    pub async fn counted(&self, category: &str) -> Option<f64> {
        let line = format!("countersign_rate_limited_total{{category=\"{category}\"}} ");
        let metrics = self.admin.get("/metrics").await.body;
        metrics.as_str().unwrap().lines().find_map(|found| found.strip_prefix(&line)?.parse().ok())
    }
}

/// Asks for a challenge: the cheapest call about an agent.
pub async fn challenge(at: &HttpClient, agent: &Agent) -> HttpResponse {
    at.post("/auth/challenge", json!({ "agentId": agent.id })).await
}

/// How many of so many requests, one after the other, are not refused for being too many.
pub async fn passed(times: usize, request: impl Fn() -> RequestBuilder) -> usize {
    let mut passed = 0;
    for _ in 0..times {
        let answer = HttpResponse::send(request()).await;
        passed += usize::from(answer.status != 429);
    }
    passed
}

/// The category and the seconds of a refusal, which says both wherever it can.
#[track_caller]
pub fn refused(answer: &HttpResponse) -> (String, u64) {
    let (status, code, _) = answer.error();
    assert_eq!((status, code), (429, "RATE_LIMIT_EXCEEDED"), "{}", answer.body);
    let details = &answer.body["error"]["details"];
    let (category, seconds) = (details["category"].as_str().unwrap(), details["retryAfterSeconds"].as_u64().unwrap());
    let limit = details["limit"].as_u64().unwrap();
    assert_eq!(details["windowSeconds"], 60);
    assert_eq!(answer.header("retry-after"), seconds.to_string());
    assert!(answer.text("/error/message").contains(&format!("{seconds} second")), "{}", answer.body);
    let policy = format!("\"{category}\";q={limit};w=60");
    assert!(answer.header("ratelimit-policy").split(", ").any(|item| item == policy), "{:?}", answer.headers);
    let left = format!("\"{category}\";r=0;t={seconds}");
    assert!(answer.header("ratelimit").split(", ").any(|item| item == left), "{:?}", answer.headers);
    (category.to_owned(), seconds)
}
