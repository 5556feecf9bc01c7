//! Deletion of services and agents.

use countersign_client::PrivateKey;
use countersign_tests::{
    Agent, ControlPlane, Database, HttpResponse, ManualClock, Receiver, Sidecar, Target, Tenant,
    agent::registration,
    control_plane::text,
    eventually,
    http::{items, texts},
    jwt,
    process::free_port,
};
use serde_json::json;
use std::{collections::BTreeSet, time::Duration};

/// A service of a person, and an agent that has a role and has logged in for the service.
struct Deletable {
    control: ControlPlane,
    tenant: Tenant,
    agent: Agent,
    access: String,
    refresh: String,
}

impl Deletable {
    async fn new() -> Self {
        let control = ControlPlane::start_process().await;
        let tenant = Tenant::new(&control, "alice").await;
        let agent = Agent::register(&control, "Agent").await;
        tenant.assign_new_role(&agent.id, "reader", &["read"]).await;
        let pair = agent.log_in(&control.api, Some(&tenant.service)).await.expect(200);
        let (access, refresh) = (text(&pair["accessToken"]), text(&pair["refreshToken"]));
        control.verify_at(&tenant.service, &tenant.key, &access).await.expect(200);
        Self { control, tenant, agent, access, refresh }
    }

    async fn delete_service(&self, human: &str) -> HttpResponse {
        self.control.api.delete_as(human, &self.tenant.path("")).await
    }
}

/// Waits until no row of these tables contains the text. Returns all rows of the database.
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

#[tokio::test]
async fn deleted_service_is_refused_like_one_that_never_existed() {
    let deletable = Deletable::new().await;
    let Deletable { control, tenant, agent, access, refresh } = &deletable;
    let Tenant { human: owner, service, key, .. } = tenant;
    let challenge = agent.challenge(&control.api, Some(service)).await.expect(200);
    let stranger = control.mint_human("mallory");
    assert_eq!(deletable.delete_service(&stranger).await.error().2, "not_yours");
    control.verify_at(service, key, access).await.expect(200);

    assert_eq!(deletable.delete_service(owner).await.expect(200)["deleted"], true);
    let again = deletable.delete_service(owner).await;
    assert_eq!(again.code(), (404, "SERVICE_NOT_FOUND"), "{again:?}");
    assert_eq!(control.verify_at(service, key, access).await.error().2, "service_key_invalid");
    for below in ["", "/keys", "/roles", "/agents", "/webhooks"] {
        for human in [owner.as_str(), control.human()] {
            let response = control.api.get_as(human, &tenant.path(below)).await;
            assert_eq!(response.code(), (404, "SERVICE_NOT_FOUND"), "{below}: {response:?}");
        }
    }
    let named = agent.log_in(&control.api, Some(service)).await;
    assert_eq!(named.code(), (404, "SERVICE_NOT_FOUND"), "{named:?}");
    assert_eq!(
        control.api.post("/auth/authenticate", agent.answer(&challenge)).await.status,
        404,
        "a challenge from before the deletion"
    );
    let refreshed = control.api.post("/auth/refresh", json!({ "refreshToken": refresh })).await;
    assert_eq!(refreshed.reason(), (401, "refresh_revoked"), "{refreshed:?}");
    let unbound = agent.log_in(&control.api, None).await.expect(200);
    assert_eq!(jwt::claims(&text(&unbound["accessToken"]))["aud"], control.env["URL"], "no default service remains");
    let feedback = json!({ "agentId": agent.id, "score": 1 });
    assert_eq!(control.api.send_as(key, "POST", "/trust/feedback", feedback).await.error().2, "service_key_invalid");
    rows_after_purge(control, &["assignments", "roles"], service).await;
}

#[tokio::test]
async fn deletion_of_a_service_seals_its_audit_chain_and_keeps_it_for_administrators() {
    let deletable = Deletable::new().await;
    let Deletable { control, tenant: Tenant { human: owner, service, .. }, .. } = &deletable;
    let active = async || control.api.get_as(control.key(), "/status").await.expect(200)["activeServices"].clone();
    assert_eq!(active().await, json!(2));
    deletable.delete_service(owner).await.expect(200);
    assert_eq!(active().await, json!(1));
    rows_after_purge(control, &["assignments", "roles"], service).await;
    let path = format!("/audit?serviceId={service}");
    let entries = control.api.get_as(control.human(), &path).await.expect(200);
    let (newest, count) = (&entries["data"][0], items(&entries).len());
    assert_eq!((&newest["action"], &newest["actor"]["id"]), (&json!("service.deleted"), &json!("alice")));
    assert_eq!(newest["details"], json!({ "revokedKeys": 1, "deletedWebhooks": 0 }));
    assert_eq!(newest["sequence"], json!(count), "the chain has all entries since its first one");
    let refused = control.api.get_as(owner, &path).await;
    assert_eq!(refused.code(), (404, "SERVICE_NOT_FOUND"), "{refused:?}");
    control.assert_audit_intact();
}

#[tokio::test]
async fn feedback_of_a_deleted_service_keeps_its_weight() {
    let deletable = Deletable::new().await;
    let Deletable { control, tenant: Tenant { human: owner, service, key, .. }, agent, .. } = &deletable;
    let low = control.rate(key, &agent.id, 0).await;
    deletable.delete_service(owner).await.expect(200);
    rows_after_purge(control, &["assignments"], service).await;
    let record = control.get(&format!("/agents/{}", agent.id)).await.expect(200);
    assert_eq!(record["trustScore"], low, "the deletion does not change the trust score");
    // The initial score weighs 4, the feedback of the deleted service 1, and that of a service unknown to the agent 1.
    let after = control.rate(control.key(), &agent.id, 100).await;
    assert!((after - 50.0).abs() < 0.01, "(4 * 50 + 1 * 0 + 1 * 100) / 6, not {after}");
    let history = control.api.get_as(control.key(), &format!("/trust/agents/{}/history", agent.id)).await.expect(200);
    assert_eq!(texts(&history, "serviceId"), [control.service(), service]);
}

#[tokio::test]
async fn deleted_service_counts_for_the_quota_of_its_owner_for_thirty_days() {
    let clock = ManualClock::new();
    let control = ControlPlane::start_with_clock(&clock, &["quotas.services_per_person=1"]).await;
    let human = control.mint_human_for("developer", 31 * 24);
    let create = async || control.api.send_as(&human, "POST", "/services", json!({ "name": "another" })).await;
    assert_eq!(create().await.error().1, "CONFLICT");
    control.api.delete_as(&human, &control.path("")).await.expect(200);
    assert_eq!(control.api.get_as(&human, "/services").await.expect(200)["pagination"]["total"], 0);
    clock.advance(Duration::from_hours(30 * 24) - Duration::from_secs(1));
    assert_eq!(create().await.error().1, "CONFLICT");
    clock.advance(Duration::from_secs(1));
    create().await.expect(201);
}

/// A sidecar that accepts a token of the first service.
async fn start_sidecar_with_token(control: &ControlPlane) -> (Sidecar, String) {
    let agent = Agent::register(control, "Agent").await;
    control.assign_new_role(&agent.id, "reader", &["read"]).await;
    let sidecar = Sidecar::start(control).await;
    let token = agent.token().await;
    sidecar.wait_until_accepted(&token).await;
    (sidecar, token)
}

#[tokio::test]
async fn sidecar_of_a_deleted_service_refuses_its_tokens() {
    let control = ControlPlane::start_process().await;
    let (sidecar, token) = start_sidecar_with_token(&control).await;
    control.api.delete_as(control.human(), &control.path("")).await.expect(200);
    sidecar.wait_until_refused(&token, "token_key_unknown").await;
}

/// The sidecar must refuse the tokens even if it reaches the control plane again only after all rows of the service are removed.
#[tokio::test]
async fn sidecar_that_was_not_connected_at_the_deletion_refuses_the_tokens_after_contact() {
    let mut control = ControlPlane::start_process().await;
    let (sidecar, token) = start_sidecar_with_token(&control).await;
    let reachable = control.env["SYNC_URL"].rsplit('/').next().unwrap().to_owned();
    control.restart_with(&format!("listen.sync=127.0.0.1:{}", free_port())).await;
    control.api.delete_as(control.human(), &control.path("")).await.expect(200);
    rows_after_purge(&control, &["assignments", "roles"], control.service()).await;
    assert_eq!(sidecar.check_token(&token).await.status, 200, "the sidecar has not heard of the deletion");
    let port = reachable.rsplit(':').next().unwrap();
    control.restart_with(&format!("listen.sync=127.0.0.1:{port}")).await;
    sidecar.wait_until_refused(&token, "token_key_unknown").await;
    let refused = control.get("/roles").await;
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
    async fn new() -> Self {
        let control = ControlPlane::start_process().await;
        let owner = control.mint_human("alice");
        let personal = json!({ "email": "alice@example.org", "metadata": { "team": "Wonderland" } });
        let agent = Agent::register_with(&control, &owner, "Alice's agent", personal).await;
        control.assign_new_role(&agent.id, "reader", &["read"]).await;
        let pair = agent.log_in(&control.api, Some(control.service())).await.expect(200);
        let (access, refresh) = (text(&pair["accessToken"]), text(&pair["refreshToken"]));
        control.verify(&access).await.expect(200);
        Self { control, owner, agent, access, refresh }
    }

    async fn delete(&self, human: &str) -> HttpResponse {
        self.control.api.delete_as(human, &format!("/agents/{}", self.agent.id)).await
    }

    /// Waits until the rows that depend on the agent are removed. Returns all rows of the database.
    async fn rows_after_purge(&self) -> BTreeSet<String> {
        rows_after_purge(&self.control, &["assignments", "known_agents", "agent_departures"], &self.agent.id).await
    }
}

#[tokio::test]
async fn deleted_agent_is_revoked_everywhere() {
    let own = OwnAgent::new().await;
    let OwnAgent { control, owner, agent, access, refresh } = &own;
    let sidecar = Sidecar::start(control).await;
    sidecar.wait_until_accepted(access).await;
    let challenge = agent.challenge(&control.api, None).await.expect(200);
    let stranger = control.mint_human("mallory");
    assert_eq!(own.delete(&stranger).await.error().2, "not_yours");

    assert_eq!(own.delete(owner).await.expect(200)["deleted"], true);
    for human in [owner.as_str(), &stranger, control.human()] {
        let again = own.delete(human).await;
        assert_eq!(again.code(), (404, "AGENT_NOT_FOUND"), "{again:?}");
    }
    sidecar.wait_until_refused(access, "agent_revoked").await;
    assert_eq!(control.verify(access).await.error().2, "agent_revoked");
    let refreshed = control.api.post("/auth/refresh", json!({ "refreshToken": refresh })).await;
    assert_eq!(refreshed.error().2, "refresh_invalid");
    assert_eq!(agent.log_in(&control.api, None).await.error().1, "AGENT_NOT_FOUND");
    assert_eq!(control.api.post("/auth/authenticate", agent.answer(&challenge)).await.error().2, "challenge_invalid");
    for path in [control.path(&format!("/agents/{}", agent.id)), format!("/trust/agents/{}/history", agent.id)] {
        let response = control.api.get_as(control.key(), &path).await;
        assert_eq!(response.code(), (404, "AGENT_NOT_FOUND"), "{path}: {response:?}");
    }
    let holders = control.get("/agents").await.expect(200);
    assert_eq!(holders["pagination"]["total"], 0);
}

#[tokio::test]
async fn nothing_but_the_id_of_a_deleted_agent_remains() {
    let mut own = OwnAgent::new().await;
    own.control.rate(own.control.key(), &own.agent.id, 80).await;
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
    let own = OwnAgent::new().await;
    let OwnAgent { control, owner, agent, .. } = &own;
    let body = registration(&agent.key, "repeated");
    let register = async || {
        let request = control.api.request("POST", "/auth/register").bearer_auth(owner).json(&body);
        text(&HttpResponse::send(request.header("idempotency-key", "one")).await.expect(201)["agentId"])
    };
    let first = register().await;
    assert_eq!(register().await, first);
    control.api.delete_as(owner, &format!("/agents/{first}")).await.expect(200);
    let second = register().await;
    assert_ne!(second, first, "the response does not describe the deleted agent");
    assert_eq!(register().await, second);
}

#[tokio::test]
async fn key_of_a_deleted_agent_is_free_again() {
    let mut own = OwnAgent::new().await;
    let OwnAgent { control, owner, agent, .. } = &own;
    let active = async || control.api.get_as(control.key(), "/status").await.expect(200)["activeAgents"].clone();
    let before = active().await.as_i64().unwrap();
    own.delete(owner).await.expect(200);
    assert_eq!(active().await, json!(before - 1));
    assert_eq!(control.api.get_as(owner, "/agents").await.expect(200)["data"], json!([]));
    let registered = registration(&agent.key, "Alice's agent");
    let registered = control.api.send_as(owner, "POST", "/auth/register", registered).await.expect(201);
    assert_ne!(registered["agentId"], json!(agent.id));
    assert_eq!(active().await, json!(before));
    own.agent.id = text(&registered["agentId"]);
    own.agent.log_in(&own.control.api, None).await.expect(200);
}

#[tokio::test]
async fn deleted_agent_counts_for_the_quota_of_its_owner_for_thirty_days() {
    let clock = ManualClock::new();
    let control = ControlPlane::start_with_clock(&clock, &["quotas.agents_per_person=2"]).await;
    let [human, other] = ["developer", "bob"].map(|subject| control.mint_human_for(subject, 31 * 24));
    let key = PrivateKey::generate();
    let register = async |human: &str, name: &str| {
        control.api.send_as(human, "POST", "/auth/register", registration(&key, name)).await
    };
    for name in ["first", "second"] {
        let agent = text(&register(&human, name).await.expect(201)["agentId"]);
        control.api.delete_as(&human, &format!("/agents/{agent}")).await.expect(200);
    }
    let refused = register(&human, "third").await;
    assert_eq!(refused.error().1, "CONFLICT");
    assert!(refused.text("/error/message").contains("a deleted agent counts for 30 more days"), "{refused:?}");
    register(&other, "third").await.expect(201);
    clock.advance(Duration::from_hours(30 * 24) - Duration::from_mins(1));
    assert_eq!(register(&human, "third").await.error().1, "CONFLICT");
    clock.advance(Duration::from_mins(1));
    register(&human, "third").await.expect(201);
}

#[tokio::test]
async fn webhooks_are_told_which_roles_end_with_an_agent() {
    let own = OwnAgent::new().await;
    let receiver = Receiver::start_ok().await;
    let target = Target::create_for(&own.control, &receiver.url, &["agent.role_revoked"]).await;
    own.delete(&own.owner).await.expect(200);
    let delivered = async || target.deliveries("?status=delivered").await.pop();
    let delivery = eventually("the event is delivered", delivered, || own.control.log()).await;
    let delivery = target.delivery(&text(&delivery["eventId"])).await.to_string();
    assert!(delivery.contains("agent_deleted") && delivery.contains(&own.agent.id), "{delivery}");
}
