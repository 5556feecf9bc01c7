//! API and sidecar have the same outcome for every change of an agent.

use countersign_tests::{Agent, ControlPlane, Sidecar, Verifiers, VerifyOutcome};
use secrecy::ExposeSecret;
use serde_json::json;

/// A control plane with three services, and one sidecar for all of them.
struct Court {
    control: ControlPlane,
    sidecar: Sidecar,
    second: (String, String),
    strict: (String, String),
}

impl Court {
    async fn open() -> Self {
        let control = ControlPlane::start().await;
        let second = control.create_service(json!({ "name": "second" })).await;
        let strict = control.create_service(json!({ "name": "strict", "acceptsUnboundTokens": false })).await;
        let mut keys = Vec::new();
        for service in [control.service(), &second.0, &strict.0] {
            keys.push(control.create_key(service, "sync").await);
        }
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let sidecar = Sidecar::start_with(&control, &keys, &[]);
        sidecar.await_ready().await;
        Self { control, sidecar, second, strict }
    }

    fn first(&self) -> Verifiers<'_> {
        Verifiers::new(&self.control, &self.sidecar)
    }

    fn at<'a>(&'a self, (service, key): &'a (String, String)) -> Verifiers<'a> {
        Verifiers { service, key, ..self.first() }
    }

    async fn agent(&self, name: &str) -> Agent {
        Agent::register(&self.control, name).await
    }

    /// Revokes a token. The API refuses `dead` from its answer on, and the sidecar as soon as the change reaches it.
    async fn revoke_at_once(&self, token: &str, dead: &[&str]) {
        self.control.revoke_token(token).await;
        for token in dead {
            assert_eq!(
                self.first().verify(token).await.0,
                VerifyOutcome::refused(401, "token_revoked"),
                "the API refuses it at once"
            );
            self.first().agree("it was revoked", token, refused(401, "token_revoked")).await;
        }
    }

    async fn accept_unbound(&self, service: &str, accepted: bool) {
        let body = json!({ "acceptsUnboundTokens": accepted });
        let path = format!("/services/{service}");
        let changed = self.control.api.send_as(self.control.human(), "PATCH", &path, body).await.expect(200);
        assert_eq!(changed["acceptsUnboundTokens"], accepted);
    }

    /// Creates a role at another service and assigns it.
    async fn assign_at(&self, (service, key): &(String, String), agent: &Agent, role: &str, permissions: &[&str]) {
        let body = json!({ "name": role, "permissions": permissions });
        let made = self.control.api.send_as(key, "POST", &format!("/services/{service}/roles"), body).await.expect(201);
        let path = format!("/services/{service}/agents/{}/roles", agent.id);
        self.control.api.send_as(key, "POST", &path, json!({ "roleId": made["roleId"] })).await.expect(200);
    }
}

fn known<'a>(
    agent: &'a Agent,
    name: &'a str,
    roles: &'a [&str],
    permissions: &'a [&str],
) -> impl Fn(&VerifyOutcome) -> bool {
    let own = |items: &[&str]| items.iter().map(ToString::to_string).collect();
    let expected = VerifyOutcome::Accepted {
        id: agent.id.clone(),
        name: name.to_owned(),
        roles: own(roles),
        permissions: own(permissions),
        trust: "50".to_owned(),
    };
    move |outcome| *outcome == expected
}

fn refused(status: u16, reason: &'static str) -> impl Fn(&VerifyOutcome) -> bool {
    move |outcome| *outcome == VerifyOutcome::refused(status, reason)
}

/// A time in some seconds, in RFC 3339.
#[expect(clippy::disallowed_methods, reason = "the test uses the machine's clock, as a client does")]
fn in_seconds(seconds: i64) -> String {
    (jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds)).to_string()
}

#[tokio::test]
async fn assigned_and_revoked_roles() {
    let court = Court::open().await;
    let (first, control) = (court.first(), &court.control);
    let name = "Ålesund 100%, \"West\"";
    let agent = court.agent(name).await;
    let before = agent.token_for(control.service()).await;
    first.agree("no role yet", &before, known(&agent, name, &[], &[])).await;

    let reader = control.create_role("reader", &["read", "list"]).await;
    control.assign(&agent.id, &reader).await;
    let with_reader = agent.token().await;
    let both = [("the token from before the role", &before), ("the token that names it", &with_reader)];
    for (what, token) in both {
        first.agree(what, token, known(&agent, name, &["reader"], &["list", "read"])).await;
    }

    let odd = control.create_role("Prüfer, 100% \"odd\"", &["write", "read", "a%2Cb"]).await;
    control.assign(&agent.id, &odd).await;
    let roles = ["Prüfer, 100% \"odd\"", "reader"];
    for (what, token) in both {
        first.agree(what, token, known(&agent, name, &roles, &["a%2Cb", "list", "read", "write"])).await;
    }

    assert!(control.revoke(&agent.id, &reader).await);
    for (what, token) in both {
        first.agree(what, token, known(&agent, name, &roles[..1], &["a%2Cb", "read", "write"])).await;
    }
    assert!(control.revoke(&agent.id, &odd).await);
    for (what, token) in both {
        first.agree(what, token, known(&agent, name, &[], &[])).await;
    }
    control.assign(&agent.id, &reader).await;
    for (what, token) in both {
        first.agree(what, token, known(&agent, name, &["reader"], &["list", "read"])).await;
    }
}

#[tokio::test]
async fn expiring_roles() {
    let court = Court::open().await;
    let (first, control) = (court.first(), &court.control);
    let agent = court.agent("Guest").await;
    let (guest, stays) = (control.create_role("guest", &["look"]).await, control.create_role("stays", &["stay"]).await);
    control.assign(&agent.id, &stays).await;
    let before = agent.token().await;

    control.assign_until(&agent.id, &guest, Some(in_seconds(4))).await;
    let after = agent.token().await;
    let tokens = [("a token from before", &before), ("a token from after", &after)];
    for (what, token) in tokens {
        first.agree(what, token, known(&agent, "Guest", &["guest", "stays"], &["look", "stay"])).await;
    }
    for (what, token) in tokens {
        first.agree(what, token, known(&agent, "Guest", &["stays"], &["stay"])).await;
    }

    control.assign_until(&agent.id, &guest, Some(in_seconds(2))).await;
    control.assign_until(&agent.id, &guest, None).await;
    for (what, token) in tokens {
        first.agree(what, token, known(&agent, "Guest", &["guest", "stays"], &["look", "stay"])).await;
    }
    control.assign_until(&agent.id, &guest, Some(in_seconds(2))).await;
    for (what, token) in tokens {
        first.agree(what, token, known(&agent, "Guest", &["stays"], &["stay"])).await;
    }
}

#[tokio::test]
async fn deleted_and_recreated_roles() {
    let court = Court::open().await;
    let (first, control) = (court.first(), &court.control);
    let (agent, witness) = (court.agent("Heir").await, court.agent("Witness").await);
    let before = agent.token_for(control.service()).await;
    let old = control.create_role("reader", &["read"]).await;
    control.assign(&agent.id, &old).await;
    let with_reader = agent.token().await;
    let both = [("the token from before the role", &before), ("the token that names it", &with_reader)];
    for (what, token) in both {
        first.agree(what, token, known(&agent, "Heir", &["reader"], &["read"])).await;
    }

    control.delete_role(&old).await.expect(200);
    for (what, token) in both {
        first.agree(what, token, known(&agent, "Heir", &[], &[])).await;
    }
    let new = control.create_role("reader", &["everything"]).await;
    control.assign(&witness.id, &new).await;
    let seen = witness.token().await;
    first.agree("the new role has arrived", &seen, known(&witness, "Witness", &["reader"], &["everything"])).await;
    let after = agent.token_for(control.service()).await;
    for (what, token) in both.into_iter().chain([("a token from after", &after)]) {
        let said = first.verify(token).await;
        let nothing = known(&agent, "Heir", &[], &[]);
        assert!(nothing(&said.0) && nothing(&said.1), "{what}: {said:?}");
    }
    control.assign(&agent.id, &new).await;
    for (what, token) in both.into_iter().chain([("a token from after", &after)]) {
        first.agree(what, token, known(&agent, "Heir", &["reader"], &["everything"])).await;
    }
}

#[tokio::test]
async fn suspended_reactivated_and_revoked_agents() {
    let court = Court::open().await;
    let (first, control) = (court.first(), &court.control);
    let agent = court.agent("Suspect").await;
    let role = control.create_role("reader", &["read"]).await;
    control.assign(&agent.id, &role).await;
    let old = agent.token().await;
    let good = known(&agent, "Suspect", &["reader"], &["read"]);
    first.agree("it is active", &old, &good).await;

    control.set_status(&agent.id, "suspended").await.expect(200);
    first.agree("it is suspended", &old, refused(403, "agent_suspended")).await;
    first
        .agree("the signature is checked before the status", &old[..old.len() - 2], |said| {
            matches!(said, VerifyOutcome::Refused(401, _))
        })
        .await;
    control.set_status(&agent.id, "active").await.expect(200);
    first.agree("the old token stays revoked", &old, refused(401, "token_revoked")).await;
    let new = agent.token().await;
    first.agree("a new token is accepted", &new, &good).await;

    control.set_status(&agent.id, "revoked").await.expect(200);
    for token in [&old, &new] {
        first.agree("the agent is revoked", token, refused(403, "agent_revoked")).await;
    }
    assert_eq!(control.set_status(&agent.id, "active").await.status, 409);
    first.agree("still", &new, refused(403, "agent_revoked")).await;
}

#[tokio::test]
async fn sessions_ended_by_refresh_token_reuse() {
    let court = Court::open().await;
    let first = court.first();
    let agent = court.agent("Thief").await;
    let (stolen, other) = (agent.login().await, agent.token().await);
    let next = agent.api.refresh(&stolen).await.expect("refreshed");
    let tokens = [&stolen, &next].map(|tokens| tokens.access_token.expose_secret());
    for token in tokens {
        first.agree("before the reuse", token, known(&agent, "Thief", &[], &[])).await;
    }
    agent.api.refresh(&stolen).await.expect_err("it was used");
    for token in tokens {
        first.agree("the session has ended", token, refused(401, "token_revoked")).await;
    }
    first.agree("another session continues", &other, known(&agent, "Thief", &[], &[])).await;
}

#[tokio::test]
async fn revoked_access_tokens_and_sessions() {
    let mut court = Court::open().await;
    let agent = court.agent("Leaver").await;
    let (login, other) = (agent.login().await, agent.token().await);
    let next = agent.api.refresh(&login).await.expect("refreshed");
    let [one, sibling] = [&login, &next].map(|tokens| tokens.access_token.expose_secret());
    let alive = known(&agent, "Leaver", &[], &[]);
    for token in [one, sibling, &other] {
        court.first().agree("before", token, &alive).await;
    }

    court.revoke_at_once(one, &[one]).await;
    court.first().agree("another token of the same session", sibling, &alive).await;
    let last = agent.api.refresh(&next).await.expect("the session continues");
    let newest = last.access_token.expose_secret();
    court.first().agree("issued after another token was revoked", newest, &alive).await;

    court.revoke_at_once(last.refresh_token.expose_secret(), &[one, sibling, newest]).await;
    let refused_refresh = agent.api.refresh(&last).await.expect_err("the login has ended").to_string();
    assert!(refused_refresh.contains("401"), "{refused_refresh}");
    court.first().agree("another login", &other, &alive).await;

    court.control.kill();
    court.control.restart().await;
    court.sidecar.restart();
    court.sidecar.await_ready().await;
    for token in [one, sibling, newest] {
        court.first().agree("the revocation is remembered", token, refused(401, "token_revoked")).await;
    }
    court.first().agree("another login", &other, &alive).await;
}

#[tokio::test]
async fn unbound_tokens_after_a_service_changes_its_setting() {
    let mut court = Court::open().await;
    let agent = court.agent("Traveller").await;
    let unbound = agent.token().await;
    let welcome = known(&agent, "Traveller", &[], &[]);
    for accepted in [true, false, true] {
        court.accept_unbound(&court.strict.0, accepted).await;
        let (first, strict) = (court.first(), court.at(&court.strict));
        if accepted {
            strict.agree("since they are accepted", &unbound, &welcome).await;
        } else {
            strict.agree("since they are refused", &unbound, refused(401, "token_unbound")).await;
        }
        first.agree("another service is not affected", &unbound, &welcome).await;
    }
    court.sidecar.kill();
    court.accept_unbound(&court.strict.0, false).await;
    court.sidecar.restart();
    court.sidecar.await_ready().await;
    let strict = court.at(&court.strict);
    strict.agree("changed while the sidecar was away", &unbound, refused(401, "token_unbound")).await;
}

#[tokio::test]
async fn tokens_bound_to_another_service_or_unbound() {
    let court = Court::open().await;
    let (first, second, strict) = (court.first(), court.at(&court.second), court.at(&court.strict));
    let agent = court.agent("Traveller").await;
    let unbound = agent.token().await;
    first.agree("unbound", &unbound, known(&agent, "Traveller", &[], &[])).await;
    second.agree("unbound", &unbound, known(&agent, "Traveller", &[], &[])).await;
    strict.agree("unbound where that is refused", &unbound, refused(401, "token_unbound")).await;

    let role = court.control.create_role("reader", &["read"]).await;
    court.control.assign(&agent.id, &role).await;
    court.assign_at(&court.second, &agent, "reader", &["write"]).await;
    court.assign_at(&court.strict, &agent, "auditor", &["audit"]).await;
    first.agree("unbound, and a role since", &unbound, known(&agent, "Traveller", &["reader"], &["read"])).await;
    second.agree("unbound, and a role since", &unbound, known(&agent, "Traveller", &["reader"], &["write"])).await;
    strict.agree("unbound, and a role since", &unbound, refused(401, "token_unbound")).await;

    let places = [
        ("first", first, known(&agent, "Traveller", &["reader"], &["read"])),
        ("second", second, known(&agent, "Traveller", &["reader"], &["write"])),
        ("strict", strict, known(&agent, "Traveller", &["auditor"], &["audit"])),
    ];
    for (name, verifiers, here) in &places {
        let token = agent.token_for(verifiers.service).await;
        verifiers.agree(&format!("for {name}"), &token, here).await;
        for (other, elsewhere, _) in places.iter().filter(|(other, ..)| other != name) {
            let what = format!("for {name}, shown at {other}");
            elsewhere.agree(&what, &token, refused(401, "token_audience_mismatch")).await;
        }
    }
    first.agree("the oldest role's service", &agent.token().await, &places[0].2).await;
}

#[tokio::test]
async fn outcomes_after_restarts_of_control_plane_and_sidecar() {
    let mut court = Court::open().await;
    let agent = court.agent("Survivor").await;
    let role = court.control.create_role("reader", &["read"]).await;
    court.control.assign(&agent.id, &role).await;
    let token = agent.token().await;
    court.first().agree("at first", &token, known(&agent, "Survivor", &["reader"], &["read"])).await;

    court.control.revoke(&agent.id, &role).await;
    court.sidecar.restart();
    court.sidecar.await_ready().await;
    court.first().agree("a new sidecar", &token, known(&agent, "Survivor", &[], &[])).await;

    court.control.kill();
    court.control.restart().await;
    court.control.assign(&agent.id, &role).await;
    court.first().agree("a new control plane", &token, known(&agent, "Survivor", &["reader"], &["read"])).await;
    court.control.set_status(&agent.id, "suspended").await.expect(200);
    court.first().agree("and on it goes", &token, refused(403, "agent_suspended")).await;
}
