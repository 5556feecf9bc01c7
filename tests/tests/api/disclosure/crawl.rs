//! Reads everything that a credential can read: sends each GET operation of the API description with all ids that the party
//! has, adds the ids in the responses, and repeats until nothing is new.

use super::scenario::Scenario;
use countersign_tests::{HttpResponse, description};
use futures_util::future::join_all;
use reqwest::RequestBuilder;
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

/// The path parameters of the API, and the prefix of the ids that they contain.
const PARAMETERS: [(&str, &str); 6] = [
    ("service", "svc_"),
    ("agent", "agent_"),
    ("role", "role_"),
    ("key", "key_"),
    ("webhook", "wh_"),
    ("event", "evt_"),
];

/// Static documents, which are the same for every caller.
const STATIC: [&str; 3] = ["/openapi.json", "/docs", "/docs/{file}"];

/// Number of characters after the prefix of an id.
const ID_LENGTH: usize = 26;

/// Maximum number of requests that are sent at the same time.
const CONCURRENCY: usize = 16;

/// The limit of requests of one crawl, so that a mistake in the test does not make it run forever.
const MAX_REQUESTS: usize = 20_000;

/// Ids by prefix.
#[derive(Debug, Clone, Default)]
pub struct Ids(BTreeMap<&'static str, BTreeSet<String>>);

impl Ids {
    /// All ids in a text.
    pub fn from_text(text: &str) -> Self {
        let mut ids = Self::default();
        for (_, prefix) in PARAMETERS {
            for (start, _) in text.match_indices(prefix) {
                let suffix = &text.as_bytes()[start + prefix.len()..];
                let length = suffix.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
                if length == ID_LENGTH {
                    let id = &text[start..start + prefix.len() + ID_LENGTH];
                    ids.0.entry(prefix).or_default().insert(id.to_owned());
                }
            }
        }
        ids
    }

    pub fn extend(&mut self, other: Self) {
        for (prefix, ids) in other.0 {
            self.0.entry(prefix).or_default().extend(ids);
        }
    }

    pub fn remove(&mut self, removed: &[&String]) {
        self.0.values_mut().for_each(|ids| ids.retain(|id| !removed.contains(&id)));
    }

    fn with_prefix(&self, prefix: &str) -> impl Iterator<Item = &String> {
        self.0.get(prefix).into_iter().flatten()
    }

    /// The path, once for each combination of known ids in place of its parameters.
    fn fill(&self, path: &str) -> Vec<String> {
        let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
        let (name, after) = rest.split_once('}').unwrap();
        let prefix = PARAMETERS.iter().find(|(parameter, _)| *parameter == name);
        let (_, prefix) = prefix.unwrap_or_else(|| panic!("add the parameter `{name}` of {path} to PARAMETERS"));
        self.with_prefix(prefix).flat_map(|id| self.fill(&format!("{before}{id}{after}"))).collect()
    }

    /// All requests for a path, with the query parameters that select by id.
    fn requests(&self, path: &str) -> Vec<String> {
        if path != "/audit" {
            return self.fill(path).into_iter().map(|path| format!("{path}?limit=200")).collect();
        }
        let with_service = |service: &String| format!("?serviceId={service}&limit=200");
        let services = self.with_prefix("svc_").map(with_service).chain(["?limit=200".to_owned()]);
        let with_agents = |query: String| {
            let agents = self.with_prefix("agent_").map(|agent| format!("/audit{query}&agentId={agent}"));
            agents.chain([format!("/audit{query}")]).collect::<Vec<_>>()
        };
        services.flat_map(with_agents).collect()
    }
}

/// Reads everything that a party can read if it has these credentials and at first knows only `ids`. The credential `None` sends a
/// request without one.
pub async fn crawl(scenario: &Scenario, credentials: &[Option<&str>], mut ids: Ids) -> String {
    let openapi = description::openapi();
    let reads = description::operations(&openapi)
        .filter(|(method, path, _)| method == "GET" && !STATIC.contains(&path.as_str()));
    let paths: Vec<_> = reads.map(|(_, path, _)| path.as_str()).collect();
    let (mut sent, mut transcript) = (BTreeSet::new(), String::new());
    loop {
        let mut is_new = |request: &String| sent.insert(request.clone());
        let requests: Vec<String> = paths.iter().flat_map(|path| ids.requests(path)).filter(&mut is_new).collect();
        let challenges: Vec<String> = challenge_bodies(&ids).into_iter().filter(&mut is_new).collect();
        if requests.is_empty() && challenges.is_empty() {
            return transcript;
        }
        assert!(sent.len() < MAX_REQUESTS, "the crawl does not end");
        let mut new = String::new();
        for chunk in requests.chunks(CONCURRENCY) {
            for response in send_all(scenario, credentials, "GET", chunk).await {
                write(&mut new, &response);
            }
        }
        for chunk in challenges.chunks(CONCURRENCY) {
            let request = || scenario.control.api.request("POST", "/auth/challenge");
            let ask = |body: &String| request().header("content-type", "application/json").body(body.clone());
            for response in join_all(chunk.iter().map(ask).map(HttpResponse::send)).await {
                write(&mut new, &response);
            }
        }
        ids.extend(Ids::from_text(&new));
        transcript.push_str(&new);
    }
}

/// Tries to change services of other people, and returns the errors. Some routes need no body, so the request would change a
/// service that the party manages: `ids` must contain no such service.
pub async fn try_changes(scenario: &Scenario, credentials: &[Option<&str>], ids: &Ids) -> String {
    let openapi = description::openapi();
    let is_change = |(method, path, _): &(String, &String, _)| method != "GET" && path.starts_with("/services/");
    let mut transcript = String::new();
    for (method, path, _) in description::operations(&openapi).filter(is_change) {
        for chunk in ids.fill(path).chunks(CONCURRENCY) {
            for response in send_all(scenario, credentials, &method, chunk).await {
                assert!(response.status >= 400, "{method} {path} was accepted: {response:?}");
                write(&mut transcript, &response);
            }
        }
    }
    transcript
}

/// The bodies of requests for challenges, which need no credential.
fn challenge_bodies(ids: &Ids) -> Vec<String> {
    let of_agent = |agent: &String| {
        let services = ids.with_prefix("svc_").map(Some).chain([None]);
        services.map(|service| json!({ "agentId": agent, "serviceId": service }).to_string()).collect::<Vec<_>>()
    };
    ids.with_prefix("agent_").flat_map(of_agent).collect()
}

/// Sends a request for each path with each credential, at the same time.
async fn send_all(
    scenario: &Scenario,
    credentials: &[Option<&str>],
    method: &str,
    paths: &[String],
) -> Vec<HttpResponse> {
    let requests = paths.iter().flat_map(|path| {
        let request = move || scenario.control.api.request(method, path);
        credentials.iter().map(move |credential| credential.iter().fold(request(), RequestBuilder::bearer_auth))
    });
    join_all(requests.map(HttpResponse::send)).await
}

/// Adds status, headers and body of a response to a transcript.
pub fn write(transcript: &mut String, response: &HttpResponse) {
    writeln!(transcript, "{} {:?} {}", response.status, response.headers, response.body).unwrap();
}
