//! Each error that docs/use/api.md promises of a route comes, when a request deserves it.

use super::{
    contract::{LINES, Line, line},
    fixture::{Fixture, assert_none, misshapen},
    routes::{Door, ROUTES, Route},
};
use countersign_tests::{Agent, HttpResponse};
use reqwest::RequestBuilder;
use secrecy::ExposeSecret;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// A stage, and whoever may not do what is done there.
struct Scene {
    fixture: Fixture,
    others_key: String,
    sync_key: String,
    stranger: String,
    /// Suspended, with a challenge, its answer and a refresh token of before.
    suspended: Agent,
    answer: Map<String, Value>,
    refresh: String,
    /// An agent whose roles' names together are as long as they may be.
    laden: Agent,
    one_role_more: String,
    revoked: Agent,
}

impl Scene {
    async fn new() -> Self {
        let fixture = Fixture::new().await;
        let control = &fixture.control;
        let (_, others_key) = control.create_service(json!({ "name": "other" })).await;
        let sync_key = control.create_key(control.service(), "sync").await;
        let suspended = Agent::register(control, "Suspended").await;
        let refresh = suspended.login().await.refresh_token.expose_secret().to_owned();
        let asked = control.api.post("/auth/challenge", json!({ "agentId": suspended.id })).await.expect(200);
        let signature = suspended.key.sign(asked["nonce"].as_str().unwrap());
        let answer = json!({ "challengeId": asked["challengeId"], "signature": signature });
        control.set_status(&suspended.id, "suspended").await.expect(200);
        let revoked = Agent::register(control, "Revoked").await;
        control.set_status(&revoked.id, "revoked").await.expect(200);
        let laden = Agent::register(control, "Laden").await;
        // 32 names of 64 characters would be above 2 KiB, with what stands between them.
        let mut last = String::new();
        for number in 0..32 {
            last = control.create_role(&format!("{number:064}"), &[]).await;
            if number < 31 {
                control.assign(&laden.id, &last).await;
            }
        }
        let stranger = control.mint_human("stranger");
        let answer = answer.as_object().unwrap().clone();
        Self {
            fixture,
            others_key,
            sync_key,
            stranger,
            suspended,
            answer,
            refresh,
            laden,
            one_role_more: last,
            revoked,
        }
    }

    /// A good request with this field replaced.
    async fn with(&self, route: &Route, field: &str, value: impl Into<Value>) -> RequestBuilder {
        let mut body = self.fixture.body(route).await;
        body.insert(field.to_owned(), value.into());
        self.fixture.admitted(route).json(&body)
    }

    /// A good request under another path.
    async fn at(&self, route: &Route, path: &str) -> RequestBuilder {
        let request = self.fixture.admit(route, self.fixture.control.api.request(route.method, path));
        if route.fields.is_empty() { request } else { request.json(&self.fixture.body(route).await) }
    }

    /// A request that deserves this error, by whoever is admitted.
    async fn provoke(&self, route: &Route, code: &str) -> RequestBuilder {
        let named = |name: &str| route.path.contains(&format!("{{{name}}}"));
        let has = |name: &str| route.fields.iter().any(|field| field.name == name);
        match code {
            "UNSUPPORTED_MEDIA_TYPE" => self.fixture.admitted(route).header("content-type", "text/plain").body("{}"),
            "VALIDATION_ERROR" if route.fields.is_empty() => {
                self.at(route, &format!("{}?limit=0", self.fixture.path(route))).await
            }
            "VALIDATION_ERROR" => self.with(route, "extra", 1).await,
            "AUTHENTICATION_FAILED" if has("challengeId") => self.with(route, "challengeId", "chal_of_nobody").await,
            "AUTHENTICATION_FAILED" if has("refreshToken") => self.with(route, "refreshToken", "rf_of_nobody").await,
            "AUTHENTICATION_FAILED" => self.as_bearer(route, "nonsense").await,
            "INSUFFICIENT_PERMISSIONS" => self.not_allowed(route).await,
            "INVALID_SIGNATURE" => self.with(route, "signature", "00").await,
            "SERVICE_NOT_FOUND" if named("service") => self.nowhere(route, "service").await,
            "SERVICE_NOT_FOUND" if route.path == "/audit" => self.at(route, "/audit?serviceId=nowhere").await,
            "SERVICE_NOT_FOUND" => self.with(route, "serviceId", "svc_00000000000000000000000000").await,
            "AGENT_NOT_FOUND" if named("agent") => self.nowhere(route, "agent").await,
            "AGENT_NOT_FOUND" if route.path == "/audit" => self.at(route, "/audit?agentId=nowhere").await,
            "AGENT_NOT_FOUND" => self.with(route, "agentId", "agent_00000000000000000000000000").await,
            "ROLE_NOT_FOUND" if named("role") => self.nowhere(route, "role").await,
            "ROLE_NOT_FOUND" if has("roleId") => self.with(route, "roleId", "role_00000000000000000000000000").await,
            "ROLE_NOT_FOUND" => self.at(route, &format!("{}?role=role_nowhere", self.fixture.path(route))).await,
            "WEBHOOK_NOT_FOUND" => self.nowhere(route, "webhook").await,
            "NOT_FOUND" if named("event") => self.nowhere(route, "event").await,
            "NOT_FOUND" if named("file") => self.nowhere(route, "file").await,
            "NOT_FOUND" if named("kid") => self.nowhere(route, "kid").await,
            "NOT_FOUND" if named("key") => self.nowhere(route, "key").await,
            "CONFLICT" => self.conflict(route).await,
            other => panic!("docs/use/api.md promises {other} of {} {}: provoke it here", route.method, route.path),
        }
    }

    async fn nowhere(&self, route: &Route, name: &str) -> RequestBuilder {
        let (mut path, whole) = (route.path.to_owned(), self.fixture.path(route));
        for (template, part) in
            route.path.split('/').zip(whole.split('/')).filter(|(template, _)| template.starts_with('{'))
        {
            path = path.replace(template, if template == format!("{{{name}}}") { "nowhere" } else { part });
        }
        self.at(route, &path).await
    }

    async fn as_bearer(&self, route: &Route, credential: &str) -> RequestBuilder {
        let request = self.fixture.request(route).bearer_auth(credential);
        if route.fields.is_empty() { request } else { request.json(&self.fixture.body(route).await) }
    }

    async fn not_allowed(&self, route: &Route) -> RequestBuilder {
        match (route.door, route.path) {
            (Door::Open, "/auth/challenge") => self.with(route, "agentId", self.suspended.id.as_str()).await,
            (Door::Open, "/auth/authenticate") => self.fixture.admitted(route).json(&self.answer),
            (Door::Open, "/auth/refresh") => self.with(route, "refreshToken", self.refresh.as_str()).await,
            (Door::Owner | Door::Admin, _) => self.as_bearer(route, &self.stranger).await,
            (Door::AnyFullKey, _) => self.as_bearer(route, &self.sync_key).await,
            (Door::Verifier | Door::Manager, _) => self.as_bearer(route, &self.others_key).await,
            (Door::Open | Door::Registrant | Door::Person, path) => panic!("{path} allows everybody"),
        }
    }

    async fn conflict(&self, route: &Route) -> RequestBuilder {
        let long: Vec<_> = (0..33).map(|number| format!("{number:0128}")).collect();
        match (route.method, route.path) {
            (_, "/auth/register" | "/trust/feedback") => {
                let keyed = |request: RequestBuilder| request.header("idempotency-key", "one-of-conflict");
                let body = self.fixture.body(route).await;
                let first = HttpResponse::send(keyed(self.fixture.admitted(route).json(&body))).await;
                assert_eq!(first.status, route.good, "{}", first.body);
                let mut other = body;
                other.insert("metadata".to_owned(), json!({ "other": true }));
                keyed(self.fixture.admitted(route).json(&other))
            }
            ("POST", path) if path.ends_with("/webhooks") => {
                let make = async || {
                    HttpResponse::send(self.fixture.admitted(route).json(&self.fixture.body(route).await)).await
                };
                while make().await.status == route.good {}
                self.fixture.admitted(route).json(&self.fixture.body(route).await)
            }
            ("POST", "/services/{service}/roles") => self.with(route, "name", "reader").await,
            ("PATCH", "/services/{service}/roles/{role}") => self.with(route, "permissions", json!(long)).await,
            ("POST", "/services/{service}/agents/{agent}/roles") => {
                let path = self.fixture.path(route).replace(&self.fixture.agent.id, &self.laden.id);
                let request = self.fixture.control.api.request(route.method, &path);
                self.fixture.admit(route, request).json(&json!({ "roleId": self.one_role_more }))
            }
            ("PUT", "/agents/{agent}/status") => {
                let path = self.fixture.path(route).replace(&self.fixture.agent.id, &self.revoked.id);
                self.at(route, &path).await
            }
            (method, path) => panic!("docs/use/api.md promises CONFLICT of {method} {path}: provoke it here"),
        }
    }
}

#[test]
fn documented_routes_match_the_tested_routes() {
    let shown = |method: &str, path: &str, door: Door, good: u16| format!("{method} {path} {door:?} {good}");
    let documented: BTreeSet<_> =
        LINES.iter().map(|line| shown(&line.method, &line.path, line.door, line.good)).collect();
    let tested: BTreeSet<_> =
        ROUTES.iter().map(|route| shown(route.method, route.path, route.door, route.good)).collect();
    assert_eq!(documented, tested, "left: docs/use/api.md, right: the table in routes.rs");
    assert_eq!(LINES.len(), documented.len(), "no line stands twice");
}

#[tokio::test]
async fn every_documented_error_occurs() {
    let scene = Scene::new().await;
    let mut faults = Vec::new();
    for route in ROUTES {
        let Line { errors, .. } = line(route.method, route.path);
        for code in errors {
            let answer = HttpResponse::send(scene.provoke(route, code).await).await;
            let right = answer.text("/error/code") == code && misshapen(&answer).is_none();
            let said = || format!("{} {}: not {code} but {} {}", route.method, route.path, answer.status, answer.body);
            faults.extend((!right).then(said));
        }
    }
    assert_none(&faults);
}

#[tokio::test]
async fn every_route_has_its_documented_rate_limit() {
    let fixture = Fixture::new().await;
    let mut faults = Vec::new();
    for route in ROUTES {
        let request = fixture.admitted(route);
        let request = if route.fields.is_empty() { request } else { request.json(&fixture.body(route).await) };
        let answer = HttpResponse::send(request).await;
        let policy = answer.header("ratelimit-policy");
        let Line { category, .. } = line(route.method, route.path);
        let right = match category {
            Some(category) => policy.starts_with(&format!("\"{category}\";")),
            None => policy.is_empty(),
        };
        faults.extend((!right).then(|| format!("{} {}: {policy}, not {category:?}", route.method, route.path)));
    }
    assert_none(&faults);
}
