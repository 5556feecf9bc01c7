//! Tests that expired rows, and what depends on deleted roles, are deleted in small transactions, however many there are.
//!
//! A foreign key in another table keeps the control plane from deleting a row, so the tests see the state while rows are left.

use countersign_process::Clock;
use countersign_tests::{
    Agent, ControlPlane, Database, InProcessServer, ManualClock, Receiver, Target, bulk::BulkInserts, eventually, jwt,
};
use serde_json::{Value, json};
use std::time::Duration;

/// Number of rows that a test inserts into each table. It is larger than the maximum of one transaction.
const ROWS: i64 = 6000;

/// A table with the numbers from 1 to [`ROWS`].
const NUMBERS: &str = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 6000)";

/// SQL for the end of an id, different for each number `n`.
pub const DIGITS: &str = "substr(CAST(10000000000000000 + n AS TEXT), 2)";

/// The time of rows that the tests insert, and of their expiry, in microseconds. It is long before all other rows.
const LONG_AGO: i64 = 1_600_000_000_000_000;

/// Waits until housekeeping has deleted all rows that can be deleted now. Of a table with more rows than one transaction deletes,
/// some rows may be left.
pub async fn wait_for_housekeeping(database: &mut Database, clock: &ManualClock) {
    // A round of housekeeping deletes what could be deleted when the round began. So insert a row that can be deleted: when it is
    // gone, a round has begun after this call. When a second such row is gone, that round is over.
    for _ in 0..2 {
        clock.advance(Duration::from_secs(1));
        let deleted_at = clock.now().saturating_sub(Duration::from_hours(24 * 30)).micros();
        database.execute(&format!("INSERT INTO agent_deletions VALUES ('', '', {deleted_at}, 1)")).await;
        let is_gone = async || {
            clock.advance(Duration::from_secs(1));
            (database.count("agent_deletions WHERE owner_issuer = ''").await == 0).then_some(())
        };
        eventually("housekeeping has run", is_gone, String::new).await;
    }
}

/// Inserts [`ROWS`] events of a service into the outbox, with ids that sort before others. Returns their number.
pub async fn insert_events(database: &mut Database, service: &str) -> u64 {
    let events = format!(
        "{NUMBERS} INSERT INTO webhook_outbox (id, kind, body, occurred_at, service_id) \
         SELECT 'evt_0000000000' || {DIGITS}, 'agent.role_assigned', '{{}}', {LONG_AGO}, '{service}' FROM numbers"
    );
    database.execute(&events).await
}

/// Inserts expired rows of all kinds, with ids that sort before others.
async fn insert_expired(database: &mut Database, agent: &str) {
    let sessions = format!(
        "{NUMBERS} INSERT INTO sessions (id, challenge_id, agent_id, started_at, started_revision, expires_at, audiences, \
         refresh_common_hash, refresh_hash) SELECT 'ses_0000000000' || {DIGITS}, 'challenge ' || n, '{agent}', {LONG_AGO}, 0, \
         {LONG_AGO} + n, '', '', '' FROM numbers"
    );
    let changes = format!(
        "{NUMBERS} INSERT INTO changes (revision, position, facet, subject, recorded_at) \
         SELECT {LONG_AGO} + n, 0, 'keys', '', {LONG_AGO} FROM numbers"
    );
    let idempotency =
        format!("{NUMBERS} INSERT INTO idempotent_requests SELECT 'key ' || n, '', '', {LONG_AGO} FROM numbers");
    let audiences =
        format!("{NUMBERS} INSERT INTO token_audiences SELECT '{agent}', 'service ' || n, {LONG_AGO} FROM numbers");
    let events = format!(
        "{NUMBERS} INSERT INTO webhook_events SELECT 'evt_0000000000' || {DIGITS}, 'agent.authenticated', '{{}}', \
         {LONG_AGO} FROM numbers"
    );
    for sql in [sessions, changes, idempotency, audiences, events] {
        assert_eq!(database.execute(&sql).await, ROWS.unsigned_abs(), "{sql}");
    }
}

/// Rows that the test inserts, by table and condition, except sessions.
const EXPIRED: [&str; 4] = [
    "idempotent_requests WHERE id LIKE 'key %'",
    "token_audiences WHERE service_id LIKE 'service %'",
    "webhook_events WHERE id LIKE 'evt_0000000000%'",
    "changes WHERE recorded_at = 1600000000000000",
];

const EXPIRED_SESSIONS: &str = "sessions WHERE challenge_id LIKE 'challenge %'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_rows_are_deleted_while_agents_log_in() {
    let mut control = ControlPlane::start_process().await;
    let agent = Agent::register(&control, "Agent").await;
    let kept = agent.login().await;
    let mut database = Database::connect_to_write(&control).await;
    insert_expired(&mut database, &agent.id).await;
    // Reset the revision floor: housekeeping may have raised it past the changes that the test inserted.
    database.execute("UPDATE feed SET floor = 0").await;
    let blocker = "CREATE TABLE blocker (session_id TEXT REFERENCES sessions (id))";
    database.execute(blocker).await;
    database.execute("INSERT INTO blocker SELECT MIN(id) FROM sessions").await;

    // The control plane starts to delete at once after a restart. If the rows of one table cannot be deleted, housekeeping still
    // raises the revision floor and deletes the rows of other tables.
    control.restart().await;
    for rows in EXPIRED {
        database.wait_until_none(rows, || control.log()).await;
    }
    assert_eq!(database.number("SELECT floor FROM feed").await, LONG_AGO + ROWS);
    assert!(database.count(EXPIRED_SESSIONS).await > 0, "the session that the blocker refers to remains");

    database.execute("DELETE FROM blocker").await;
    control.restart().await;
    let mut logins = 0;
    while database.count(EXPIRED_SESSIONS).await > 0 {
        agent.token_for(control.service()).await;
        logins += 1;
    }
    assert_eq!(database.count("sessions").await, logins + 1, "sessions that have not expired remain");
    agent.api().refresh(&kept.refresh_token).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_degraded_while_expired_rows_wait() {
    let (clock, folder) = (ManualClock::new(), tempfile::tempdir().unwrap());
    let server = InProcessServer::start(folder.path(), &[], &clock).await;
    let mut database = Database::open(&InProcessServer::database_url(folder.path()).await).await;
    let health = async || {
        let body = server.api.get("/health").await.expect(200);
        assert!(body["checks"]["housekeeping"] == "up" || body["status"] == "degraded", "{body}");
        (body["checks"]["housekeeping"].clone(), body["reasons"].clone())
    };
    let wait_for = async |expected: (Value, Value)| {
        // Housekeeping runs again as soon as its clock has advanced by a minute.
        let is_expected = async || {
            clock.advance(Duration::from_secs(1));
            (health().await == expected).then_some(())
        };
        eventually(&format!("health is {expected:?}"), is_expected, String::new).await;
    };
    let healthy = || (json!("up"), json!([]));
    wait_for(healthy()).await;

    let offer = "INSERT INTO service_transfers SELECT id, 'issuer', 'subject', 1, ";
    // Less than an hour overdue.
    let recently = clock.now().micros() - 600_000_000;
    database.execute(&format!("{offer}{recently} FROM services LIMIT 1")).await;
    database.execute("CREATE TABLE blocker (service_id TEXT REFERENCES service_transfers (service_id))").await;
    database.execute("INSERT INTO blocker SELECT service_id FROM service_transfers").await;
    for _ in 0..10 {
        clock.advance(Duration::from_mins(1));
        assert_eq!(health().await, healthy());
    }
    clock.advance(Duration::from_hours(1));
    let message = "rows that can be deleted have waited for more than an hour: service_transfers";
    let reason =
        json!({ "check": "housekeeping", "code": "rows_overdue", "data": "service_transfers", "message": message });
    wait_for((json!("degraded"), json!([reason]))).await;
    database.execute("DELETE FROM blocker").await;
    wait_for(healthy()).await;
    assert_eq!(database.count("service_transfers").await, 0);
}

/// Maximum number of holders of a role that the API counts.
const MAX_COUNTED_HOLDERS: i64 = 5000;

/// Makes copies of an agent hold the role. Returns their number.
async fn copy_holder(control: &ControlPlane, agent: &str, role: &str) -> i64 {
    let mut bulk = BulkInserts::connect(&control.database_url(), agent).await;
    bulk.agents((1, ROWS), "active").await;
    bulk.assignments((1, ROWS), control.service(), &[role.to_owned()]).await;
    ROWS
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletion_of_a_role_with_many_holders_takes_effect_at_once() {
    let control = ControlPlane::start_process().await;
    let receiver = Receiver::start_ok().await;
    let target = Target::create_for(&control, &receiver.url, &["agent.role_revoked"]).await;
    target.pause().await;
    let (agent, role) = Agent::with_role(&control, "reader", &["read"]).await;
    let token = agent.token_for(control.service()).await;
    let roles = async || control.verify(&token).await.expect(200)["agent"]["roles"].clone();
    assert_eq!(roles().await, json!(["reader"]));
    let mut database = Database::connect_to_write(&control).await;
    let copies = copy_holder(&control, &agent.id, &role).await;
    let holders = async || {
        let agents = control.api.get_as(control.key(), &control.path("/agents")).await.expect(200);
        agents["pagination"]["total"].as_i64().unwrap()
    };
    assert_eq!(holders().await, (copies + 1).min(MAX_COUNTED_HOLDERS));
    let blocker = "CREATE TABLE blocker (agent_id TEXT, role_id TEXT, \
                   FOREIGN KEY (agent_id, role_id) REFERENCES assignments (agent_id, role_id))";
    database.execute(blocker).await;
    database.execute("INSERT INTO blocker SELECT MIN(agent_id), MIN(role_id) FROM assignments").await;

    control.delete_role(&role).await.expect(200);
    assert_eq!(control.delete_role(&role).await.error().1, "ROLE_NOT_FOUND");
    assert_eq!(roles().await, json!([]));
    assert_eq!(holders().await, 0);
    let renewed = control.create_role("reader", &["read"]).await;
    assert_ne!(renewed, role);
    assert_eq!(roles().await, json!([]), "a role with the same name is another role");
    assert_eq!(holders().await, 0);
    let listed = control.api.get_as(control.key(), &control.path("/roles")).await.expect(200);
    assert!(listed.to_string().contains(&renewed) && !listed.to_string().contains(&role), "{listed}");
    let logged_in = agent.token().await;
    let audience = jwt::claims(&logged_in)["aud"].clone();
    assert_ne!(audience, json!(control.service()), "the service is no longer the only one with a role");
    let of_role = format!("assignments WHERE role_id = '{role}'");
    assert!(database.count(&of_role).await > 0);

    database.execute("DELETE FROM blocker").await;
    database.wait_until_none(&of_role, || control.log()).await;
    database.wait_until_none(&format!("roles WHERE id = '{role}'"), || control.log()).await;
    let all = u64::try_from(copies + 1).unwrap();
    let are_emitted = async || (target.count_deliveries("pending").await == all).then_some(());
    eventually("there is an event for each holder", are_emitted, || control.log()).await;
    let reasons = "webhook_events WHERE kind = 'agent.role_revoked' AND body LIKE '%\"role_deleted\"%' \
                   AND body LIKE '%\"reader\"%'";
    assert_eq!(database.count(reasons).await, copies + 1);
}
