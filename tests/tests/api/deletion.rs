//! Deletion of services and agents.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{
    Agent, ControlPlane, Database, HttpResponse, InProcessServer, ManualClock, Receiver, Sidecar, Target,
    control_plane::{mint_human, text},
    eventually, jwt,
    process::free_port,
};
use secrecy::ExposeSecret;
use serde_json::json;
use std::{collections::BTreeSet, time::Duration};

/// A service of a person with a role, and an agent that holds the role and has logged in for the service.
struct Deletable {
    control: ControlPlane,
    owner: String,
    service: String,
    key: String,
    agent: Agent,
    access: String,
    refresh: String,
}

impl Deletable {
    async fn new(settings: &[&str]) -> Self {
        let control = ControlPlane::start_process_with(settings).await;
        let owner = control.mint_human("alice");
        let (service, key) = control.create_service_of(&owner, json!({ "name": "a service" })).await;
        let agent = Agent::register(&control, "Agent").await;
        let body = json!({ "name": "reader", "permissions": ["read"] });
        let role = control.api.send_as(&key, "POST", &format!("/services/{service}/roles"), body).await.expect(201);
        let path = format!("/services/{service}/agents/{}/roles", agent.id);
        control.api.send_as(&key, "POST", &path, json!({ "roleId": role["roleId"] })).await.expect(200);
        let pair = login(&control, &agent, Some(&service)).await.expect(200);
        let (access, refresh) = (text(&pair["accessToken"]), text(&pair["refreshToken"]));
        control.verify_at(&service, &key, &access).await.expect(200);
        Self { control, owner, service, key, agent, access, refresh }
    }

    async fn delete_service(&self, human: &str) -> HttpResponse {
        delete(&self.control, human, &format!("/services/{}", self.service)).await
    }
}

/// All rows, after no row of these tables contains the text any more.
async fn rows_after_purge(control: &ControlPlane, tables: &[&str], text: &str) -> BTreeSet<String> {
    let mut database = Database::connect_to(control).await;
    let purged_rows = async || {
        let rows = database.rows().await;
        let remains =
            |row: &String| tables.iter().any(|table| row.starts_with(&format!("{table} "))) && row.contains(text);
        (!rows.iter().any(remains)).then_some(rows)
    };
    eventually("the rows are removed", purged_rows, || control.log()).await
}

async fn delete(control: &ControlPlane, human: &str, path: &str) -> HttpResponse {
    HttpResponse::send(control.api.request("DELETE", path).bearer_auth(human)).await
}

async fn login(control: &ControlPlane, agent: &Agent, service: Option<&str>) -> HttpResponse {
    let mut body = json!({ "agentId": agent.id });
    if let Some(service) = service {
        body["serviceId"] = json!(service);
    }
    let challenge = control.api.post("/auth/challenge", body).await;
    if challenge.status != 200 {
        return challenge;
    }
    let signature = agent.key.sign(challenge.text("/nonce"));
    let body = json!({ "challengeId": challenge.body["challengeId"], "signature": signature });
    control.api.post("/auth/authenticate", body).await
}

#[tokio::test]
async fn deleted_service_is_refused_like_one_that_never_existed() {
    let deletable = Deletable::new(&[]).await;
    let Deletable { control, owner, service, key, agent, access, refresh } = &deletable;
    let path = format!("/services/{service}");
    let challenge = control.api.post("/auth/challenge", json!({ "agentId": agent.id, "serviceId": service })).await;
    let challenge = challenge.expect(200);
    let stranger = control.mint_human("mallory");
    assert_eq!(deletable.delete_service(&stranger).await.error().2, "not_yours");
    control.verify_at(service, key, access).await.expect(200);

    assert_eq!(deletable.delete_service(owner).await.expect(200)["deleted"], true);
    let again = deletable.delete_service(owner).await;
    assert_eq!((again.status, again.error().1), (404, "SERVICE_NOT_FOUND"), "{again:?}");
    assert_eq!(control.verify_at(service, key, access).await.error().2, "service_key_invalid");
    for below in ["", "/keys", "/roles", "/agents", "/webhooks"] {
        for human in [owner.as_str(), control.human()] {
            let response = control.api.get_as(human, &format!("{path}{below}")).await;
            assert_eq!((response.status, response.error().1), (404, "SERVICE_NOT_FOUND"), "{below}: {response:?}");
        }
    }
    let named = login(control, agent, Some(service)).await;
    assert_eq!((named.status, named.error().1), (404, "SERVICE_NOT_FOUND"), "{named:?}");
    let signature = agent.key.sign(&text(&challenge["nonce"]));
    let body = json!({ "challengeId": challenge["challengeId"], "signature": signature });
    assert_eq!(control.api.post("/auth/authenticate", body).await.status, 404, "a challenge from before the deletion");
    let refreshed = control.api.post("/auth/refresh", json!({ "refreshToken": refresh })).await;
    assert_eq!((refreshed.status, refreshed.error().2), (401, "refresh_revoked"), "{refreshed:?}");
    let unbound = login(control, agent, None).await.expect(200);
    assert_eq!(jwt::claims(&text(&unbound["accessToken"]))["aud"], control.env["URL"], "no default service remains");
    let feedback = json!({ "agentId": agent.id, "score": 1 });
    assert_eq!(control.api.send_as(key, "POST", "/trust/feedback", feedback).await.error().2, "service_key_invalid");
    rows_after_purge(control, &["assignments", "roles"], service).await;
}

#[tokio::test]
async fn deletion_of_a_service_seals_its_audit_chain_and_keeps_it_for_administrators() {
    let deletable = Deletable::new(&[]).await;
    let Deletable { control, owner, service, .. } = &deletable;
    let active = async || control.api.get_as(control.key(), "/status").await.expect(200)["activeServices"].clone();
    assert_eq!(active().await, json!(2));
    deletable.delete_service(owner).await.expect(200);
    assert_eq!(active().await, json!(1));
    rows_after_purge(control, &["assignments", "roles"], service).await;
    let path = format!("/audit?serviceId={service}");
    let entries = control.api.get_as(control.human(), &path).await.expect(200);
    let (newest, count) = (&entries["data"][0], entries["data"].as_array().unwrap().len());
    assert_eq!((&newest["action"], &newest["actor"]["id"]), (&json!("service.deleted"), &json!("alice")));
    assert_eq!(newest["details"], json!({ "revokedKeys": 1, "deletedWebhooks": 0 }));
    assert_eq!(newest["sequence"], json!(count), "the chain has all entries since its first one");
    let refused = control.api.get_as(owner, &path).await;
    assert_eq!((refused.status, refused.error().1), (404, "SERVICE_NOT_FOUND"), "{refused:?}");
    let verified = control.command(&["audit", "verify"]);
    assert!(verified.status.success(), "{verified:?}");
}

#[tokio::test]
async fn feedback_of_a_deleted_service_keeps_its_weight() {
    let deletable = Deletable::new(&[]).await;
    let Deletable { control, owner, key, agent, service, .. } = &deletable;
    let rate = async |key: &str, score: u8| {
        let body = json!({ "agentId": agent.id, "score": score });
        control.api.send_as(key, "POST", "/trust/feedback", body).await.expect(200)["newTrustScore"].clone()
    };
    let low = rate(key, 0).await;
    deletable.delete_service(owner).await.expect(200);
    rows_after_purge(control, &["assignments"], service).await;
    let record = control.api.get_as(control.key(), &control.path(&format!("/agents/{}", agent.id))).await.expect(200);
    assert_eq!(record["trustScore"], low, "the deletion moves nothing");
    // The prior weighs 4, the deleted service 1, and the unknown service 1.
    let after = rate(control.key(), 100).await;
    assert_eq!(after, json!(50), "(4 * 50 + 1 * 0 + 1 * 100) / 6");
    let history = control.api.get_as(control.key(), &format!("/trust/agents/{}/history", agent.id)).await.expect(200);
    let services: Vec<_> = history["data"].as_array().unwrap().iter().map(|entry| text(&entry["serviceId"])).collect();
    assert_eq!(services, [control.service(), service]);
}

#[tokio::test]
async fn deleted_service_counts_for_the_quota_of_its_owner_for_thirty_days() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
    let settings = [("quotas.services_per_person", "1".to_owned())];
    let server = InProcessServer::start(folder.path(), &settings, &clock).await;
    let env = |name| InProcessServer::env(folder.path(), name);
    let (human, service) = (mint_human(folder.path(), "developer", 31 * 24), env("SERVICE_ID"));
    let create = async || server.api.send_as(&human, "POST", "/services", json!({ "name": "another" })).await;
    assert_eq!(create().await.error().1, "CONFLICT");
    let delete = server.api.request("DELETE", &format!("/services/{service}")).bearer_auth(&human);
    HttpResponse::send(delete).await.expect(200);
    assert_eq!(server.api.get_as(&human, "/services").await.expect(200)["pagination"]["total"], 0);
    clock.advance(Duration::from_hours(30 * 24) - Duration::from_secs(1));
    assert_eq!(create().await.error().1, "CONFLICT");
    clock.advance(Duration::from_secs(1));
    create().await.expect(201);
    server.server.stop().await;
}

/// A sidecar that accepts a token of the first service.
async fn start_sidecar_with_token(control: &ControlPlane) -> (Sidecar, String) {
    let agent = Agent::register(control, "Agent").await;
    let role = control.create_role("reader", &["read"]).await;
    control.assign(&agent.id, &role).await;
    let sidecar = Sidecar::start(control).await;
    let token = agent.login().await.access_token.expose_secret().to_owned();
    let accepted = async || (sidecar.check_token(&token).await.status == 200).then_some(());
    eventually("the sidecar accepts the token", accepted, || sidecar.log()).await;
    (sidecar, token)
}

async fn wait_until_key_is_unknown(sidecar: &Sidecar, token: &str) {
    let refused = async || (sidecar.check_token(token).await.reason == "token_key_unknown").then_some(());
    eventually("the sidecar refuses the token", refused, || sidecar.log()).await;
}

#[tokio::test]
async fn sidecar_of_a_deleted_service_refuses_its_tokens() {
    let control = ControlPlane::start_process().await;
    let (sidecar, token) = start_sidecar_with_token(&control).await;
    delete(&control, control.human(), &control.path("")).await.expect(200);
    wait_until_key_is_unknown(&sidecar, &token).await;
}

/// The sidecar reaches the control plane again only after everything that depends on the service is removed.
#[tokio::test]
async fn sidecar_that_was_not_connected_at_the_deletion_refuses_the_tokens_after_contact() {
    let mut control = ControlPlane::start_process().await;
    let (sidecar, token) = start_sidecar_with_token(&control).await;
    let reachable = control.env["SYNC_URL"].rsplit('/').next().unwrap().to_owned();
    control.restart_with(&format!("listen.sync=127.0.0.1:{}", free_port())).await;
    delete(&control, control.human(), &control.path("")).await.expect(200);
    rows_after_purge(&control, &["assignments", "roles"], control.service()).await;
    assert_eq!(sidecar.check_token(&token).await.status, 200, "the sidecar has not heard of the deletion");
    let port = reachable.rsplit(':').next().unwrap();
    control.restart_with(&format!("listen.sync=127.0.0.1:{port}")).await;
    wait_until_key_is_unknown(&sidecar, &token).await;
    let refused = control.api.get_as(control.key(), &control.path("/roles")).await;
    assert_eq!(refused.error().2, "service_key_invalid", "the key that opens the stream allows nothing else");
}

/// An agent that a person has registered, and its tokens for a service where it holds a role.
struct OwnAgent {
    control: ControlPlane,
    owner: String,
    agent: Agent,
    access: String,
    refresh: String,
}

impl OwnAgent {
    async fn new(settings: &[&str]) -> Self {
        let control = ControlPlane::start_process_with(settings).await;
        let owner = control.mint_human("alice");
        let mut agent = Agent::register(&control, "public").await;
        agent.id = text(&register(&control, &owner, &agent, "Alice's agent").await.expect(201)["agentId"]);
        let role = control.create_role("reader", &["read"]).await;
        control.assign(&agent.id, &role).await;
        let pair = login(&control, &agent, Some(control.service())).await.expect(200);
        let (access, refresh) = (text(&pair["accessToken"]), text(&pair["refreshToken"]));
        control.verify(&access).await.expect(200);
        Self { control, owner, agent, access, refresh }
    }

    async fn delete(&self, human: &str) -> HttpResponse {
        delete(&self.control, human, &format!("/agents/{}", self.agent.id)).await
    }

    /// All rows, after those that depend on the agent are removed.
    async fn rows_after_purge(&self) -> BTreeSet<String> {
        rows_after_purge(&self.control, &["assignments", "known_agents", "agent_departures"], &self.agent.id).await
    }
}

async fn register(control: &ControlPlane, human: &str, agent: &Agent, name: &str) -> HttpResponse {
    let body = json!({
        "email": "alice@example.org", "name": name, "publicKey": agent.key.public_pem().unwrap(),
        "metadata": { "team": "Wonderland" },
    });
    control.api.send_as(human, "POST", "/auth/register", body).await
}

#[tokio::test]
async fn deleted_agent_is_revoked_everywhere() {
    let own = OwnAgent::new(&[]).await;
    let OwnAgent { control, owner, agent, access, refresh } = &own;
    let sidecar = Sidecar::start(control).await;
    let accepted = async || (sidecar.check_token(access).await.status == 200).then_some(());
    eventually("the sidecar accepts the token", accepted, || sidecar.log()).await;
    let challenge = control.api.post("/auth/challenge", json!({ "agentId": agent.id })).await.expect(200);
    let stranger = control.mint_human("mallory");
    assert_eq!(own.delete(&stranger).await.error().2, "not_yours");

    assert_eq!(own.delete(owner).await.expect(200)["deleted"], true);
    for human in [owner.as_str(), &stranger, control.human()] {
        let again = own.delete(human).await;
        assert_eq!((again.status, again.error().1), (404, "AGENT_NOT_FOUND"), "{again:?}");
    }
    let refused = async || (sidecar.check_token(access).await.reason == "agent_revoked").then_some(());
    eventually("the sidecar refuses the token", refused, || sidecar.log()).await;
    assert_eq!(control.verify(access).await.error().2, "agent_revoked");
    assert_eq!(
        control.api.post("/auth/refresh", json!({ "refreshToken": refresh })).await.error().2,
        "refresh_invalid"
    );
    assert_eq!(login(control, agent, None).await.error().1, "AGENT_NOT_FOUND");
    let signature = agent.key.sign(&text(&challenge["nonce"]));
    let body = json!({ "challengeId": challenge["challengeId"], "signature": signature });
    assert_eq!(control.api.post("/auth/authenticate", body).await.error().2, "challenge_invalid");
    for path in [control.path(&format!("/agents/{}", agent.id)), format!("/trust/agents/{}/history", agent.id)] {
        let response = control.api.get_as(control.key(), &path).await;
        assert_eq!((response.status, response.error().1), (404, "AGENT_NOT_FOUND"), "{path}: {response:?}");
    }
    let holders = control.api.get_as(control.key(), &control.path("/agents")).await.expect(200);
    assert_eq!(holders["pagination"]["total"], 0);
}

#[tokio::test]
async fn nothing_but_the_id_of_a_deleted_agent_remains() {
    let mut own = OwnAgent::new(&[]).await;
    let rate = json!({ "agentId": own.agent.id, "score": 80 });
    own.control.api.send_as(own.control.key(), "POST", "/trust/feedback", rate).await.expect(200);
    let personal = ["Alice's agent", "Alice''s agent", "alice@example.org", "Wonderland"];
    let count = |rows: &BTreeSet<String>| {
        rows.iter().filter(|row| personal.iter().any(|personal| row.contains(personal))).count()
    };
    assert_eq!(count(&Database::connect_to(&own.control).await.rows().await), 1, "the row of the agent");
    own.delete(&own.owner).await.expect(200);
    let rows = own.rows_after_purge().await;
    assert_eq!(count(&rows), 0);
    let of_agent = |table: &str| {
        let is_of_agent = |row: &&String| row.starts_with(&format!("{table} ")) && row.contains(&own.agent.id);
        rows.iter().filter(is_of_agent).collect::<Vec<_>>()
    };
    assert_eq!(of_agent("trust_feedback").len(), 1, "feedback remains");
    let [row] = of_agent("agents")[..] else { panic!("the row of the agent remains: {rows:?}") };
    assert!(!row.contains("alice") && !row.contains("sha256"), "{row}");
    if own.control.database_url().starts_with("sqlite:") {
        assert!(own.control.terminate().await.success());
        let file = std::fs::read(own.control.folder().join("countersign.db")).unwrap();
        let contains = |text: &str| file.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(contains(&own.agent.id), "the file is the database");
        assert!(!personal.iter().any(|personal| contains(personal)), "SQLite overwrites deleted content");
    }
}

#[tokio::test]
async fn repeated_registration_of_a_deleted_agent_registers_its_key_again() {
    let own = OwnAgent::new(&[]).await;
    let OwnAgent { control, owner, agent, .. } = &own;
    let body = json!({ "email": "a@example.org", "name": "repeated", "publicKey": agent.key.public_pem().unwrap() });
    let register = async || {
        let request = control.api.request("POST", "/auth/register").bearer_auth(owner).json(&body);
        text(&HttpResponse::send(request.header("idempotency-key", "one")).await.expect(201)["agentId"])
    };
    let first = register().await;
    assert_eq!(register().await, first);
    delete(control, owner, &format!("/agents/{first}")).await.expect(200);
    let second = register().await;
    assert_ne!(second, first, "the response does not describe the deleted agent");
    assert_eq!(register().await, second);
}

#[tokio::test]
async fn key_of_a_deleted_agent_is_free_again() {
    let mut own = OwnAgent::new(&[]).await;
    let OwnAgent { control, owner, agent, .. } = &own;
    let active = async || control.api.get_as(control.key(), "/status").await.expect(200)["activeAgents"].clone();
    let before = active().await.as_i64().unwrap();
    own.delete(owner).await.expect(200);
    assert_eq!(active().await, json!(before - 1));
    assert_eq!(control.api.get_as(owner, "/agents").await.expect(200)["data"], json!([]));
    let registered = register(control, owner, agent, "Alice's agent").await.expect(201);
    assert_ne!(registered["agentId"], json!(agent.id));
    assert_eq!(active().await, json!(before));
    own.agent.id = text(&registered["agentId"]);
    login(&own.control, &own.agent, None).await.expect(200);
}

#[tokio::test]
async fn deleted_agent_counts_for_the_quota_of_its_owner_for_thirty_days() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
    let settings = [("quotas.agents_per_person", "2".to_owned())];
    let server = InProcessServer::start(folder.path(), &settings, &clock).await;
    let [human, other] = ["developer", "bob"].map(|subject| mint_human(folder.path(), subject, 31 * 24));
    let key = countersign_client::PrivateKey::generate().public_pem().unwrap();
    let register = async |human: &str, name: &str| {
        let body = json!({ "email": "a@example.org", "name": name, "publicKey": key });
        server.api.send_as(human, "POST", "/auth/register", body).await
    };
    for name in ["first", "second"] {
        let agent = text(&register(&human, name).await.expect(201)["agentId"]);
        let delete = server.api.request("DELETE", &format!("/agents/{agent}")).bearer_auth(&human);
        HttpResponse::send(delete).await.expect(200);
    }
    let refused = register(&human, "third").await;
    assert_eq!(refused.error().1, "CONFLICT");
    assert!(refused.text("/error/message").contains("a deleted agent counts for 30 more days"), "{refused:?}");
    register(&other, "third").await.expect(201);
    clock.advance(Duration::from_hours(30 * 24) - Duration::from_mins(1));
    assert_eq!(register(&human, "third").await.error().1, "CONFLICT");
    clock.advance(Duration::from_mins(1));
    register(&human, "third").await.expect(201);
    server.server.stop().await;
}

#[tokio::test]
async fn webhooks_are_told_which_roles_end_with_an_agent() {
    let own = OwnAgent::new(&[]).await;
    let receiver = Receiver::start_ok().await;
    let target = Target::create_for(&own.control, &receiver.url, &["agent.role_revoked"]).await;
    own.delete(&own.owner).await.expect(200);
    let delivered = async || target.deliveries("?status=delivered").await.pop();
    let delivery = eventually("the event is delivered", delivered, || own.control.log()).await;
    let delivery = target.delivery(&text(&delivery["eventId"])).await.to_string();
    assert!(delivery.contains("agent_deleted") && delivery.contains(&own.agent.id), "{delivery}");
}
