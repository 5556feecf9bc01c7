//! The servers and the expected outcomes of the parity tests.

use countersign_tests::{Agent, ControlPlane, Sidecar, Verifiers, VerifyOutcome};
use serde_json::json;

/// A control plane with three services, and one sidecar for all of them. The service `strict` refuses unbound tokens,
/// which are issued for no service.
pub struct Fixture {
    pub control: ControlPlane,
    pub sidecar: Sidecar,
    pub second: (String, String),
    pub strict: (String, String),
}

impl Fixture {
    pub async fn start() -> Self {
        let control = ControlPlane::start_process().await;
        let second = control.create_service(json!({ "name": "second" })).await;
        let strict = control.create_service(json!({ "name": "strict", "acceptsUnboundTokens": false })).await;
        let mut keys = Vec::new();
        for service in [control.service(), &second.0, &strict.0] {
            keys.push(control.create_key(service, "sync").await);
        }
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let sidecar = Sidecar::start_with(&control, &keys, &[]);
        sidecar.wait_until_ready().await;
        Self { control, sidecar, second, strict }
    }

    pub fn verifiers(&self) -> Verifiers<'_> {
        Verifiers::new(&self.control, &self.sidecar)
    }

    pub fn verifiers_of<'a>(&'a self, (service, key): &'a (String, String)) -> Verifiers<'a> {
        Verifiers { service, key, ..self.verifiers() }
    }

    pub async fn restart_sidecar(&mut self) {
        self.sidecar.restart();
        self.sidecar.wait_until_ready().await;
    }

    pub async fn register_agent(&self, name: &str) -> Agent {
        Agent::register(&self.control, name).await
    }

    /// Revokes a token. The API must refuse `revoked_tokens` as soon as it has responded, and the sidecar as soon as
    /// it has received the change.
    pub async fn assert_revoked_at_once(&self, token: &str, revoked_tokens: &[&str]) {
        self.control.revoke_token(token).await;
        for token in revoked_tokens {
            assert_eq!(
                self.verifiers().verify(token).await.0,
                VerifyOutcome::refused(401, "token_revoked"),
                "the API refuses the token at once"
            );
            self.verifiers().wait_until_equal("the token is revoked", token, refused(401, "token_revoked")).await;
        }
    }

    pub async fn set_accepts_unbound(&self, service: &str, accepted: bool) {
        let body = json!({ "acceptsUnboundTokens": accepted });
        let path = format!("/services/{service}");
        let changed = self.control.api.send_as(self.control.human(), "PATCH", &path, body).await.expect(200);
        assert_eq!(changed["acceptsUnboundTokens"], accepted);
    }

    /// Creates a role at another service and assigns it.
    pub async fn assign_at(&self, (service, key): &(String, String), agent: &Agent, role: &str, permissions: &[&str]) {
        let body = json!({ "name": role, "permissions": permissions });
        let created =
            self.control.api.send_as(key, "POST", &format!("/services/{service}/roles"), body).await.expect(201);
        let path = format!("/services/{service}/agents/{}/roles", agent.id);
        self.control.api.send_as(key, "POST", &path, json!({ "roleId": created["roleId"] })).await.expect(200);
    }
}

pub fn accepted<'a>(
    agent: &'a Agent,
    name: &'a str,
    roles: &'a [&str],
    permissions: &'a [&str],
) -> impl Fn(&VerifyOutcome) -> bool {
    let to_strings = |items: &[&str]| items.iter().map(ToString::to_string).collect();
    let expected = VerifyOutcome::Accepted {
        id: agent.id.clone(),
        name: name.to_owned(),
        roles: to_strings(roles),
        permissions: to_strings(permissions),
        trust: "50".to_owned(),
    };
    move |outcome| *outcome == expected
}

pub fn refused(status: u16, reason: &'static str) -> impl Fn(&VerifyOutcome) -> bool {
    move |outcome| *outcome == VerifyOutcome::refused(status, reason)
}

/// The time that is `seconds` from now, in RFC 3339 format.
#[expect(clippy::disallowed_methods, reason = "the test uses the machine's clock, as a client does")]
pub fn seconds_from_now(seconds: i64) -> String {
    (jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds)).to_string()
}
