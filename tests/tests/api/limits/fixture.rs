//! A control plane with a manual clock, clients at several addresses, and helpers for rate limit responses.

use countersign_client::PrivateKey;
use countersign_control_plane::{App, Config, Dependencies};
use countersign_process::Shutdown;
use countersign_tests::{
    HttpResponse, ManualClock,
    control_plane::{default_limits, mint_human},
    http::HttpClient,
};
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use std::{net::Ipv4Addr, sync::Arc, time::Duration};
use tempfile::TempDir;

/// The time window of all rate limits.
pub const MINUTE: Duration = Duration::from_mins(1);

pub struct Fixture {
    pub clock: Arc<ManualClock>,
    /// A client at 127.0.0.1.
    pub api: HttpClient,
    pub admin: HttpClient,
    pub service: String,
    pub key: String,
    pub human: String,
    authority: Vec<u8>,
    folder: TempDir,
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
        let data_dir = folder.path().display().to_string();
        let ports_and_folder = [
            ("data_dir", data_dir.as_str()),
            ("listen.api", "127.0.0.1:0"),
            ("listen.sync", "127.0.0.1:0"),
            ("listen.admin", "127.0.0.1:0"),
        ];
        let flags =
            ports_and_folder.iter().chain(settings).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let flags = default_limits().chain(flags).collect();
        let config = Config::read(None, Vec::new(), flags, true).unwrap();
        config.check().unwrap();
        let dependencies = Dependencies { clock: clock.clone(), ..Dependencies::default() };
        let app = App::start(config, dependencies, Shutdown::default()).await.unwrap();
        let (port, admin) = (app.addresses().api.port(), app.addresses().admin);
        tokio::spawn(app.run());
        let env = std::fs::read_to_string(folder.path().join("dev.env")).unwrap();
        let env_value = |name: &str| {
            let mut lines = env.lines().filter_map(|line| line.strip_prefix("COUNTERSIGN_")?.split_once('='));
            lines.find(|(key, _)| *key == name).unwrap().1.to_owned()
        };
        let authority = std::fs::read(env_value("CA")).unwrap();
        Self {
            clock,
            api: HttpClient::trusting(format!("https://127.0.0.1:{port}"), &authority),
            admin: HttpClient::plain(format!("http://{admin}")),
            service: env_value("SERVICE_ID"),
            key: env_value("SERVICE_KEY"),
            human: env_value("HUMAN_TOKEN"),
            authority,
            folder,
        }
    }

    /// A client of the API with other HTTP options.
    pub fn with_client(&self, configure: impl FnOnce(reqwest::ClientBuilder) -> reqwest::ClientBuilder) -> HttpClient {
        let authority = reqwest::Certificate::from_pem(&self.authority).unwrap();
        let client = configure(Client::builder().tls_certs_only([authority])).build().unwrap();
        HttpClient::new(self.api.url.clone(), client)
    }

    /// A client of the API that sends from another loopback address.
    pub fn from(&self, last_byte: u8) -> HttpClient {
        self.with_client(|client| client.local_address(std::net::IpAddr::from(Ipv4Addr::new(127, 0, 0, last_byte))))
    }

    /// The certificate authority of the control plane in PEM.
    pub fn authority(&self) -> &[u8] {
        &self.authority
    }

    /// A token of another human user.
    pub fn mint_human(&self, subject: &str) -> String {
        mint_human(self.folder.path(), subject, 8)
    }

    /// Registers an agent, which is one call under `/auth`.
    pub async fn register(&self) -> Agent {
        let key = PrivateKey::generate();
        let body = json!({ "email": "owner@example.org", "name": "Agent", "publicKey": key.public_pem().unwrap() });
        let created = self.api.post("/auth/register", body).await.expect(201);
        Agent { id: created["agentId"].as_str().unwrap().to_owned(), key }
    }

    /// Logs in, which is two calls under `/auth`.
    pub async fn login(&self, agent: &Agent) -> Value {
        let challenge = challenge(&self.api, agent).await.expect(200);
        let signature = agent.key.sign(challenge["nonce"].as_str().unwrap());
        let body = json!({ "challengeId": challenge["challengeId"], "signature": signature });
        self.api.post("/auth/authenticate", body).await.expect(200)
    }

    /// The number of rate-limited requests in a category, from the metrics.
    pub async fn rate_limited_total(&self, category: &str) -> Option<f64> {
        let line = format!("countersign_rate_limited_total{{category=\"{category}\"}} ");
        let metrics = self.admin.get("/metrics").await.body;
        metrics.as_str().unwrap().lines().find_map(|metric_line| metric_line.strip_prefix(&line)?.parse().ok())
    }
}

/// Requests a challenge.
pub async fn challenge(client: &HttpClient, agent: &Agent) -> HttpResponse {
    client.post("/auth/challenge", json!({ "agentId": agent.id })).await
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
