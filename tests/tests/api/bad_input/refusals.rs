//! Tests that each route returns the errors and has the rate limit that docs/use/api.md documents.

use super::{
    contract::{ROUTE_ROWS, RouteRow, route_row},
    fixture::{Failures, Fixture, malformed_error},
    routes::{Access, ROUTES, Route},
};
use countersign_tests::{
    Agent, ControlPlane, HttpResponse,
    audiences::{AUDIENCES_PER_AGENT, add_audiences},
    control_plane::text,
};
use reqwest::RequestBuilder;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A fixture with the callers and agents that cause each error.
struct RefusalFixture {
    fixture: Fixture,
    other_key: String,
    sync_key: String,
    other_user: String,
    /// A suspended agent, which received `challenge_response` and `refresh_token` before the suspension.
    suspended: Agent,
    challenge_response: Value,
    refresh_token: String,
    /// An agent whose role names have the maximum total length.
    agent_at_limit: Agent,
    extra_role: String,
    revoked: Agent,
    /// A control plane where only administrators create services, and where all quotas are used up.
    restricted: ControlPlane,
}

impl RefusalFixture {
    async fn new() -> Self {
        let fixture = Fixture::new().await;
        let control = &fixture.control;
        let (_, other_key) = control.create_service(json!({ "name": "other" })).await;
        let sync_key = control.create_key(control.service(), "sync").await;
        let suspended = Agent::register(control, "Suspended").await;
        let refresh_token = suspended.login().await.refresh_token.expose_secret().to_owned();
        let challenge_response = suspended.signed_challenge(&control.api).await;
        control.set_status(&suspended.id, "suspended").await.expect(200);
        let revoked = Agent::register(control, "Revoked").await;
        control.set_status(&revoked.id, "revoked").await.expect(200);
        let agent_at_limit = Agent::register(control, "At the limit").await;
        // 32 role names of 64 characters and their separators exceed 2 KiB, so the agent cannot get the last role.
        let mut extra_role = String::new();
        for number in 0..32 {
            extra_role = control.create_role(&format!("{number:064}"), &[]).await;
            if number < 31 {
                control.assign(&agent_at_limit.id, &extra_role).await;
            }
        }
        let other_user = control.mint_human("stranger");
        let settings = ["services.created_by=admin", "quotas.services_per_person=1", "quotas.keys_per_service=1"];
        let restricted = ControlPlane::start_process_with(&settings).await;
        Self {
            fixture,
            other_key,
            sync_key,
            other_user,
            suspended,
            challenge_response,
            refresh_token,
            agent_at_limit,
            extra_role,
            revoked,
            restricted,
        }
    }

    /// A valid request to the restricted control plane.
    async fn to_restricted(&self, route: &Route, human: &str) -> RequestBuilder {
        let path = route.path.replace("{service}", self.restricted.service());
        let request = self.restricted.api.request(route.method, &path).bearer_auth(human);
        request.json(&self.fixture.body(route).await)
    }

    /// A valid request with one field replaced.
    async fn with_field(&self, route: &Route, field: &str, value: impl Into<Value>) -> RequestBuilder {
        let mut body = self.fixture.body(route).await;
        body.insert(field.to_owned(), value.into());
        self.fixture.authorized(route).json(&body)
    }

    /// A valid request to another path.
    async fn with_path(&self, route: &Route, path: &str) -> RequestBuilder {
        let request = self.fixture.authorize(route, self.fixture.control.api.request(route.method, path));
        route.with_body(request, &self.fixture.body(route).await)
    }

    /// A request that causes this error.
    async fn request_causing(&self, route: &Route, code: &str) -> RequestBuilder {
        let path_has = |name: &str| route.path.contains(&format!("{{{name}}}"));
        let body_has = |name: &str| route.fields.iter().any(|field| field.name == name);
        match code {
            "UNSUPPORTED_MEDIA_TYPE" => self.fixture.authorized(route).header("content-type", "text/plain").body("{}"),
            "VALIDATION_ERROR" if route.path.ends_with("/enforcement") => {
                self.with_path(route, &format!("{}?revision=0", self.fixture.path(route))).await
            }
            "VALIDATION_ERROR" if route.path.ends_with("/protected-resource-metadata") => {
                self.with_path(route, &format!("{}?resource=https://nowhere.example", self.fixture.path(route))).await
            }
            "VALIDATION_ERROR" if route.fields.is_empty() => {
                self.with_path(route, &format!("{}?limit=0", self.fixture.path(route))).await
            }
            "VALIDATION_ERROR" => self.with_field(route, "extra", 1).await,
            "AUTHENTICATION_FAILED" if body_has("challengeId") => {
                self.with_field(route, "challengeId", "chal_unknown").await
            }
            "AUTHENTICATION_FAILED" if body_has("refreshToken") => {
                self.with_field(route, "refreshToken", "rf_unknown").await
            }
            "AUTHENTICATION_FAILED" => self.with_credential(route, "nonsense").await,
            "INSUFFICIENT_PERMISSIONS" => self.forbidden_request(route).await,
            "INVALID_SIGNATURE" => self.with_field(route, "signature", "00").await,
            "SERVICE_NOT_FOUND" if path_has("service") => self.with_unknown_id(route, "service").await,
            "SERVICE_NOT_FOUND" if route.path == "/audit" => self.with_path(route, "/audit?serviceId=nowhere").await,
            "SERVICE_NOT_FOUND" => self.with_field(route, "serviceId", "svc_00000000000000000000000000").await,
            "AGENT_NOT_FOUND" if path_has("agent") => self.with_unknown_id(route, "agent").await,
            "AGENT_NOT_FOUND" if route.path == "/audit" => self.with_path(route, "/audit?agentId=nowhere").await,
            "AGENT_NOT_FOUND" => self.with_field(route, "agentId", "agent_00000000000000000000000000").await,
            "ROLE_NOT_FOUND" if path_has("role") => self.with_unknown_id(route, "role").await,
            "ROLE_NOT_FOUND" if body_has("roleId") => {
                self.with_field(route, "roleId", "role_00000000000000000000000000").await
            }
            "ROLE_NOT_FOUND" => self.with_path(route, &format!("{}?role=role_nowhere", self.fixture.path(route))).await,
            "WEBHOOK_NOT_FOUND" => self.with_unknown_id(route, "webhook").await,
            "NOT_FOUND" if path_has("event") => self.with_unknown_id(route, "event").await,
            "NOT_FOUND" if path_has("file") => self.with_unknown_id(route, "file").await,
            "NOT_FOUND" if path_has("kid") => self.with_unknown_id(route, "kid").await,
            // The first service is not offered to anybody.
            "NOT_FOUND" if route.path.contains("/transfer") => {
                let path = route.path.replace("{service}", self.fixture.control.service());
                self.with_path(route, &path).await
            }
            // The offered service has no resource URI.
            "NOT_FOUND" if route.path.ends_with("/protected-resource-metadata") => {
                let path = route.path.replace("{service}", &self.fixture.offered_service());
                self.with_path(route, &path).await
            }
            "NOT_FOUND" if path_has("key") => self.with_unknown_id(route, "key").await,
            "CONFLICT" if route.path.ends_with("/enforcement") => {
                self.with_path(route, &format!("{}?revision={}", self.fixture.path(route), i64::MAX)).await
            }
            "CONFLICT" => self.conflicting_request(route).await,
            other => panic!("docs/use/api.md documents {other} for {route}: add a request that causes it"),
        }
    }

    async fn with_unknown_id(&self, route: &Route, name: &str) -> RequestBuilder {
        let (mut path, full_path) = (route.path.to_owned(), self.fixture.path(route));
        for (template, part) in
            route.path.split('/').zip(full_path.split('/')).filter(|(template, _)| template.starts_with('{'))
        {
            path = path.replace(template, if template == format!("{{{name}}}") { "nowhere" } else { part });
        }
        self.with_path(route, &path).await
    }

    async fn with_credential(&self, route: &Route, credential: &str) -> RequestBuilder {
        let request = self.fixture.request(route).bearer_auth(credential);
        route.with_body(request, &self.fixture.body(route).await)
    }

    async fn forbidden_request(&self, route: &Route) -> RequestBuilder {
        match (route.access, route.path) {
            (Access::Public, "/auth/challenge") => self.with_field(route, "agentId", self.suspended.id.as_str()).await,
            (Access::Public, "/auth/authenticate") => self.fixture.authorized(route).json(&self.challenge_response),
            (Access::Public, "/auth/refresh") => {
                self.with_field(route, "refreshToken", self.refresh_token.as_str()).await
            }
            (Access::Owner | Access::Receiver | Access::Admin, _) => {
                self.with_credential(route, &self.other_user).await
            }
            (Access::AnyFullKey, _) => self.with_credential(route, &self.sync_key).await,
            (Access::Verifier | Access::Manager, _) => self.with_credential(route, &self.other_key).await,
            (Access::HumanUser, "/services") => {
                self.to_restricted(route, &self.restricted.mint_human("stranger")).await
            }
            (Access::Public | Access::PublicOrHuman | Access::HumanUser, path) => panic!("{path} accepts every caller"),
        }
    }

    /// A login or refresh for one more service than allowed: the agent has live tokens for the maximum number of audiences, and one
    /// of them is unbound.
    async fn request_over_the_audience_quota(&self, route: &Route) -> RequestBuilder {
        let control = &self.restricted;
        let agent = Agent::register(control, "Agent").await;
        let login = agent.login().await;
        add_audiences(&control.database_url(), &agent.id, AUDIENCES_PER_AGENT - 1).await;
        let body = if route.path == "/auth/refresh" {
            json!({ "refreshToken": login.refresh_token.expose_secret(), "serviceId": control.service() })
        } else {
            agent.answer(&agent.challenge(&control.api, Some(control.service())).await.expect(200))
        };
        control.api.request("POST", route.path).json(&body)
    }

    async fn conflicting_request(&self, route: &Route) -> RequestBuilder {
        let long: Vec<_> = (0..33).map(|number| format!("{number:0128}")).collect();
        match (route.method, route.path) {
            (_, "/auth/register" | "/trust/feedback") => {
                let with_key = |request: RequestBuilder| request.header("idempotency-key", "conflict");
                let body = self.fixture.body(route).await;
                let first = HttpResponse::send(with_key(self.fixture.authorized(route).json(&body))).await;
                assert_eq!(first.status, route.success_status, "{}", first.body);
                let mut other = body;
                other.insert("metadata".to_owned(), json!({ "other": true }));
                with_key(self.fixture.authorized(route).json(&other))
            }
            ("POST", path) if path.ends_with("/webhooks") => {
                let create = async || HttpResponse::send(self.fixture.valid_request(route).await).await.status;
                while create().await == route.success_status {}
                self.fixture.valid_request(route).await
            }
            ("POST", "/auth/authenticate" | "/auth/refresh") => self.request_over_the_audience_quota(route).await,
            ("POST", "/services" | "/services/{service}/keys") => {
                self.to_restricted(route, self.restricted.human()).await
            }
            ("POST", "/services/{service}/transfer/accept") => {
                let receiver = self.restricted.mint_human("receiver");
                let offer_to_receiver = async |service: &str| {
                    let path = format!("/services/{service}/transfer");
                    let body = json!({ "subject": "receiver" });
                    self.restricted.api.send_as(self.restricted.human(), "PUT", &path, body).await.expect(200);
                    self.restricted.api.request("POST", &format!("{path}/accept")).bearer_auth(&receiver)
                };
                let first = offer_to_receiver(self.restricted.service()).await;
                HttpResponse::send(first).await.expect(200);
                let created = json!({ "name": "second" });
                let created = self.restricted.api.send_as(self.restricted.human(), "POST", "/services", created).await;
                offer_to_receiver(&text(&created.expect(201)["serviceId"])).await
            }
            ("POST", "/services/{service}/roles") => self.with_field(route, "name", "reader").await,
            ("PATCH", path) if path == "/services/{service}" || path.ends_with("/webhooks/{webhook}") => {
                self.request_for_a_duplicate(route).await
            }
            ("PATCH", "/services/{service}/roles/{role}") => self.with_field(route, "permissions", json!(long)).await,
            ("POST", "/services/{service}/agents/{agent}/roles") => {
                let path = self.fixture.path(route).replace(&self.fixture.agent.id, &self.agent_at_limit.id);
                let request = self.fixture.control.api.request(route.method, &path);
                self.fixture.authorize(route, request).json(&json!({ "roleId": self.extra_role }))
            }
            ("PUT", "/agents/{agent}/status") => {
                let path = self.fixture.path(route).replace(&self.fixture.agent.id, &self.revoked.id);
                self.with_path(route, &path).await
            }
            (method, path) => {
                panic!("docs/use/api.md documents CONFLICT for {method} {path}: add a request that causes it")
            }
        }
    }

    /// A request to change a resource, after which two resources would have the same name or URL and the same `managedBy`.
    async fn request_for_a_duplicate(&self, route: &Route) -> RequestBuilder {
        let control = &self.fixture.control;
        if route.path == "/services/{service}" {
            let other = json!({ "name": "Same name", "managedBy": "team" });
            let _may_exist_already = control.api.send_as(control.human(), "POST", "/services", other.clone()).await;
            return self.fixture.authorized(route).json(&other);
        }
        let other = json!({ "url": "http://127.0.0.1:1024/same", "managedBy": "team" });
        let ids = self.fixture.webhooks_of(route);
        let path = self.fixture.path(route).replace(&ids.permanent, &ids.deletable);
        let changed = self.fixture.authorize(route, control.api.request("PATCH", &path));
        HttpResponse::send(changed.json(&other)).await.expect(200);
        self.fixture.authorized(route).json(&other)
    }
}

#[test]
fn documented_routes_match_the_tested_routes() {
    let describe =
        |method: &str, path: &str, access: Access, status: u16| format!("{method} {path} {access:?} {status}");
    let documented: BTreeSet<_> =
        ROUTE_ROWS.iter().map(|row| describe(&row.method, &row.path, row.access, row.success_status)).collect();
    let tested: BTreeSet<_> =
        ROUTES.iter().map(|route| describe(route.method, route.path, route.access, route.success_status)).collect();
    assert_eq!(documented, tested, "left: docs/use/api.md, right: ROUTES");
    assert_eq!(ROUTE_ROWS.len(), documented.len(), "no route is listed twice");
}

#[tokio::test]
async fn every_documented_error_is_returned() {
    let fixture = RefusalFixture::new().await;
    let mut failures = Failures::default();
    for route in ROUTES {
        let RouteRow { errors, .. } = route_row(route.method, route.path);
        for code in errors {
            let response = HttpResponse::send(fixture.request_causing(route, code).await).await;
            let is_expected = response.text("/error/code") == code && malformed_error(&response).is_none();
            let message = || format!("{route}: expected {code}, got {} {}", response.status, response.body);
            failures.check(is_expected, message);
        }
    }
    failures.assert_none();
}

#[tokio::test]
async fn every_route_has_its_documented_rate_limit() {
    let fixture = Fixture::new().await;
    let mut failures = Failures::default();
    for route in ROUTES {
        let response = HttpResponse::send(fixture.valid_request(route).await).await;
        let policy = response.header("ratelimit-policy");
        let RouteRow { category, .. } = route_row(route.method, route.path);
        let is_expected = match category {
            Some(category) => policy.starts_with(&format!("\"{category}\";")),
            None => policy.is_empty(),
        };
        failures.check(is_expected, || format!("{route}: expected category {category:?}, got {policy}"));
    }
    failures.assert_none();
}
