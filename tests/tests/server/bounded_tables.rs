//! Tests that tables stay bounded: feedback, agents that never logged in, rows of deleted agents, and events that cannot be fanned
//! out.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use super::housekeeping::{DIGITS, wait_for_housekeeping};
use countersign_client::{Api, PrivateKey};
use countersign_tests::{
    Agent, ControlPlane, Database, EventSource, HttpClient, HttpResponse, InProcessServer, ManualClock, Receiver,
    Target,
    control_plane::{mint_human, text},
    eventually,
};
use serde_json::{Value, json};
use std::{path::Path, sync::Arc, time::Duration};

const DAY: Duration = Duration::from_hours(24);

/// A server in this process with a connection to its database.
struct Fixture {
    server: InProcessServer,
    database: Database,
    clock: Arc<ManualClock>,
    client: Api,
    folder: tempfile::TempDir,
}

impl Fixture {
    async fn start(settings: &[(&str, String)]) -> Self {
        let (clock, folder) = (ManualClock::new(), tempfile::tempdir().unwrap());
        let server = InProcessServer::start(folder.path(), settings, &clock).await;
        let database = Database::open(&InProcessServer::database_url(folder.path()).await).await;
        let authority = std::fs::read(folder.path().join("ca.pem")).unwrap();
        let client = Api::new(&server.api.url, Some(&authority)).unwrap();
        Self { server, database, clock, client, folder }
    }

    fn api(&self) -> &HttpClient {
        &self.server.api
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn env(&self, name: &str) -> String {
        InProcessServer::env(self.folder(), name)
    }

    async fn register(&self, key: &PrivateKey, name: &str) -> String {
        self.client.register(key, "owner@example.org", name, None).await.unwrap().agent_id
    }

    /// Registers an agent of a human user.
    async fn register_own(&self, key: &PrivateKey, human: &str) -> String {
        let body = json!({ "email": "a@example.org", "name": "own", "publicKey": key.public_pem().unwrap() });
        text(&self.api().send_as(human, "POST", "/auth/register", body).await.expect(201)["agentId"])
    }

    async fn rate(&self, agent: &str, score: u8) -> Value {
        let body = json!({ "agentId": agent, "score": score });
        let rated = self.api().send_as(&self.env("SERVICE_KEY"), "POST", "/trust/feedback", body).await;
        rated.expect(200)["newTrustScore"].clone()
    }

    async fn wait_for_housekeeping(&mut self) {
        wait_for_housekeeping(&mut self.database, &self.clock).await;
    }
}

#[tokio::test]
async fn history_has_the_newest_feedback_of_each_service() {
    let control = ControlPlane::start_process().await;
    let agent = Agent::register(&control, "Agent").await;
    let (_, other) = control.create_service(json!({ "name": "other" })).await;
    let rate = async |key: &str, score: u8| {
        let body = json!({ "agentId": agent.id, "score": score });
        control.api.send_as(key, "POST", "/trust/feedback", body).await.expect(200)["newTrustScore"].clone()
    };
    let history = async || {
        let path = format!("/trust/agents/{}/history?limit=200", agent.id);
        control.api.get_as(control.key(), &path).await.expect(200)
    };
    rate(control.key(), 10).await;
    // Insert older feedback of the same service.
    let mut database = Database::connect_to_write(&control).await;
    let copies = format!(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1004) \
         INSERT INTO trust_feedback SELECT substr(id, 1, 19) || {DIGITS}, agent_id, service_id, score, reason, metadata, \
         created_at - 5000 + n FROM trust_feedback, numbers"
    );
    assert_eq!(database.execute(&copies).await, 1004);
    let before = rate(&other, 20).await;
    assert_eq!(database.count("trust_feedback").await, 1006, "the feedback of another service deletes nothing");

    // 1006 feedbacks of the service, of which the oldest six are deleted.
    let score = rate(control.key(), 90).await;
    assert!(score.as_f64() > before.as_f64());
    assert_eq!(database.count("trust_feedback").await, 1001);
    let oldest = format!("trust_feedback WHERE id LIKE '%{}' OR id LIKE '%{}'", "0000000000000001", "0000000000000006");
    assert_eq!(database.count(&oldest).await, 0);
    assert_eq!(database.count("trust_feedback WHERE id LIKE '%0000000000000007'").await, 1);
    let listed = history().await;
    let scores: Vec<_> =
        listed["data"].as_array().unwrap().iter().take(3).map(|entry| entry["score"].as_f64()).collect();
    assert_eq!(scores, [Some(90.0), Some(20.0), Some(10.0)], "{listed}");
    rate(control.key(), 90).await;
    assert_eq!(database.count("trust_feedback").await, 1001);

    // If a service has much more feedback than the maximum, each new feedback deletes only a few of the excess rows.
    let copies = copies.replace("FROM trust_feedback, numbers", "FROM trust_feedback, numbers WHERE score = 20000000");
    let copies = copies.replace("service_id, score", &format!("'{}', score", control.service()));
    let copies = copies.replace("+ n AS TEXT", "+ 5000 + n AS TEXT");
    assert_eq!(database.execute(&copies).await, 1004);
    rate(control.key(), 90).await;
    assert_eq!(database.count("trust_feedback").await, 1001 + 1004 + 1 - 10);
}

#[tokio::test]
async fn number_of_ratings_of_services_that_the_agent_is_not_known_to_is_limited() {
    let control = ControlPlane::start_process().await;
    let agent = Agent::register(&control, "Agent").await;
    let (known, known_key) = control.create_service(json!({ "name": "known" })).await;
    agent.token_for(&known).await;
    let rate = async |key: &str| {
        let body = json!({ "agentId": agent.id, "score": 80 });
        control.api.send_as(key, "POST", "/trust/feedback", body).await.expect(200);
    };
    rate(&known_key).await;
    let mut database = Database::connect_to_write(&control).await;
    let numbers = "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1001)";
    let services = format!(
        "{numbers} INSERT INTO services (id, owner_issuer, owner_subject, name, created_at) SELECT substr(id, 1, 14) || {DIGITS}, \
         'issuer', 'stranger', 'copy', created_at FROM services, numbers WHERE id = '{known}'"
    );
    let ratings = format!(
        "{numbers} INSERT INTO trust_ratings SELECT agent_id, substr(service_id, 1, 14) || {DIGITS}, weight, mean, rated_at + n \
         FROM trust_ratings, numbers"
    );
    for copies in [services, ratings] {
        assert_eq!(database.execute(&copies).await, 1001);
    }
    // One rating by the service that the agent is known to, and 1002 by others, of which the oldest two are removed.
    rate(control.key()).await;
    assert_eq!(database.count("trust_ratings").await, 1001);
    assert_eq!(
        database.count(&format!("trust_ratings WHERE service_id IN ('{known}', '{}')", control.service())).await,
        2
    );
    let oldest = "trust_ratings WHERE service_id LIKE '%0000000000000001' OR service_id LIKE '%0000000000000002'";
    assert_eq!(database.count(oldest).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn feedback_is_deleted_after_its_retention_and_its_effect_remains() {
    let mut server = Fixture::start(&[]).await;
    let key = PrivateKey::generate();
    let agent = server.register(&key, "Agent").await;
    server.client.login(&key, &agent, None).await.unwrap();
    server.rate(&agent, 0).await;
    server.clock.advance(DAY);
    server.rate(&agent, 0).await;
    server.clock.advance(DAY * 363);
    let path = format!("/trust/agents/{agent}/history");
    let total = async |server: &Fixture| {
        server.api().get_as(&server.env("SERVICE_KEY"), &path).await.expect(200)["pagination"]["total"].clone()
    };
    server.wait_for_housekeeping().await;
    assert_eq!(total(&server).await, 2);
    server.clock.advance(DAY);
    server.wait_for_housekeeping().await;
    assert_eq!(total(&server).await, 1, "the older feedback is deleted");
    server.clock.advance(DAY);
    server.wait_for_housekeeping().await;
    assert_eq!(total(&server).await, 0);
    assert_eq!(server.rate(&agent, 50).await.as_f64().map(|after| after < 50.0), Some(true), "the ratings remain");
    server.server.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn public_agent_that_never_logs_in_is_deleted_and_frees_its_place() {
    let mut server = Fixture::start(&[("registration.public_agents", "2".to_owned())]).await;
    let human = mint_human(server.folder(), "developer", 30 * 24);
    let keys = [PrivateKey::generate(), PrivateKey::generate(), PrivateKey::generate()];
    let unused = server.register(&keys[0], "unused").await;
    let used = server.register(&keys[1], "used").await;
    server.client.login(&keys[1], &used, None).await.unwrap();
    let own = server.register_own(&keys[0], &human).await;
    let challenge = async |server: &Fixture, agent: &str| {
        server.api().post("/auth/challenge", json!({ "agentId": agent })).await.status
    };
    server.clock.advance(DAY * 6);
    server.wait_for_housekeeping().await;
    assert_eq!(challenge(&server, &unused).await, 200);
    let refused = server.client.register(&keys[2], "owner@example.org", "third", None).await.unwrap_err().to_string();
    assert!(refused.contains("without the token of a human user"), "{refused}");

    server.clock.advance(DAY);
    server.wait_for_housekeeping().await;
    assert_eq!(challenge(&server, &unused).await, 404, "it never logged in");
    assert_eq!([challenge(&server, &used).await, challenge(&server, &own).await], [200, 200]);
    server.register(&keys[2], "third").await;
    let audited = "audit_entries WHERE action = 'agent.deleted' AND actor_kind = 'system' AND agent_id =";
    assert_eq!(server.database.count(&format!("{audited} '{unused}'")).await, 1);
    assert_eq!(server.database.count("unused_agents").await, 1, "the third agent");
    server.server.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_of_a_deleted_agent_is_removed_with_the_feedback_about_it() {
    let mut server = Fixture::start(&[]).await;
    let human = mint_human(server.folder(), "developer", 60 * 24);
    let key = PrivateKey::generate();
    let agent = server.register_own(&key, &human).await;
    let kept_key = PrivateKey::generate();
    let kept = server.register(&kept_key, "kept").await;
    server.client.login(&kept_key, &kept, None).await.unwrap();
    server.client.login(&key, &agent, Some(&server.env("SERVICE_ID"))).await.unwrap();
    server.rate(&agent, 80).await;
    server.rate(&kept, 80).await;
    let delete = server.api().request("DELETE", &format!("/agents/{agent}")).bearer_auth(&human);
    HttpResponse::send(delete).await.expect(200);
    let tables = ["agents WHERE id", "trust_feedback WHERE agent_id", "trust_ratings WHERE agent_id"];
    let count = async |server: &mut Fixture, agent: &str| {
        let mut counts = [0; 3];
        for (number, table) in counts.iter_mut().zip(tables) {
            *number = server.database.count(&format!("{table} = '{agent}'")).await;
        }
        counts
    };
    // After this time, the session that the agent began before its deletion has expired, but it is not deleted yet.
    server.clock.advance(DAY * 30);
    server.wait_for_housekeeping().await;
    assert_eq!(count(&mut server, &agent).await, [1, 1, 1]);
    assert_eq!(server.database.count("agent_deletions").await, 0, "the deletion no longer counts for the quota");

    server.clock.advance(Duration::from_hours(3));
    let is_removed = async || {
        server.clock.advance(Duration::from_secs(1));
        (server.database.count(&format!("agents WHERE id = '{agent}'")).await == 0).then_some(())
    };
    eventually("the agent is removed", is_removed, String::new).await;
    assert_eq!(count(&mut server, &agent).await, [0, 0, 0]);
    assert_eq!(count(&mut server, &kept).await, [1, 1, 1]);
    let audited = server.database.count(&format!("audit_entries WHERE agent_id = '{agent}'")).await;
    assert_eq!(audited, 2, "the audit log has its registration and its deletion");
    server.server.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_that_cannot_be_fanned_out_expires() {
    let mut control = ControlPlane::start_one_with(&[]).await;
    let receiver = Receiver::start_ok().await;
    let _target = Target::create_for(&control, &receiver.url, &["agent.role_assigned"]).await;
    EventSource::new(&control).await.assign().await;
    receiver.wait_for_requests(1).await;
    control.terminate().await;
    let mut database = Database::connect_to_write(&control).await;
    // The fan-out fails with this index, because an event of the same kind is stored.
    database.execute("CREATE UNIQUE INDEX blocker ON webhook_events (kind)").await;
    for (time, number) in [("'0000000000'", 1), ("substr(e.id, 5, 10)", 2)] {
        let insert = format!(
            "INSERT INTO webhook_outbox SELECT 'evt_' || {time} || '000000000000000{number}', e.kind, e.body, e.occurred_at, \
             t.service_id FROM webhook_events e, webhook_targets t"
        );
        assert_eq!(database.execute(&insert).await, 1);
    }
    control.restart().await;
    database.wait_until_none("webhook_outbox WHERE id LIKE 'evt_0000000000%'", || control.log()).await;
    assert_eq!(database.count("webhook_outbox").await, 1, "the newer event waits");
    // Wait for the metric: the control plane counts a row only after the commit that deletes it.
    let series = r#"countersign_housekeeping_deleted_rows_total{data="webhook_outbox"}"#;
    let counted = async || (control.metric(series).await == Some(1.0)).then_some(());
    eventually("the deleted event is counted", counted, || control.log()).await;

    database.execute("DROP INDEX blocker").await;
    receiver.wait_for_requests(2).await;
    assert_eq!(database.count("webhook_outbox").await, 0);
}
