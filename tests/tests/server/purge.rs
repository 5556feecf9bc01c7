//! Tests that deletions do not stop each other, and do not hold back the events of expired roles.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use super::housekeeping::Database;
use countersign_tests::{Agent, ControlPlane, HttpResponse, Receiver, Target, eventually};
use serde_json::json;

/// Fewer roles than the removal of deleted roles chooses from at a time.
const ROLES: u32 = 50;

/// More events than may wait while deleted roles are removed, and fewer than may wait while events of expired roles are emitted.
const EVENTS: u64 = 6000;

/// A role of a service of another human user than that of the first service.
async fn create_role_of(control: &ControlPlane, (service, key): &(String, String), name: &str) -> String {
    let body = json!({ "name": name, "permissions": [] });
    let created = control.api.send_as(key, "POST", &format!("/services/{service}/roles"), body).await.expect(201);
    created["roleId"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_roles_that_cannot_be_removed_do_not_stop_those_of_another_owner() {
    let control = ControlPlane::start_process().await;
    let mallory = control.create_service_of(&control.mint_human("mallory"), json!({ "name": "of mallory" })).await;
    let mut roles = Vec::new();
    for number in 0..ROLES {
        roles.push(create_role_of(&control, &mallory, &format!("role-{number}")).await);
    }
    let mut database = Database::connect(&control.database_url()).await;
    database.execute("CREATE TABLE blocker (role_id TEXT REFERENCES roles (id))").await;
    assert_eq!(database.execute("INSERT INTO blocker SELECT id FROM roles").await, u64::from(ROLES));
    for role in &roles {
        let path = format!("/services/{}/roles/{role}", mallory.0);
        HttpResponse::send(control.api.request("DELETE", &path).bearer_auth(&mallory.1)).await.expect(200);
    }

    let (agent, role) = (Agent::register(&control, "Agent").await, control.create_role("reader", &[]).await);
    control.assign(&agent.id, &role).await;
    control.delete_role(&role).await.expect(200);
    database.wait_until_none(&format!("roles WHERE id = '{role}'"), &control).await;
    assert_eq!(database.count("roles WHERE deleted_at IS NOT NULL").await, i64::from(ROLES));

    // Nothing is forgotten.
    database.execute("DELETE FROM blocker").await;
    database.wait_until_none("roles WHERE deleted_at IS NOT NULL", &control).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_expired_roles_do_not_wait_for_those_of_deletions() {
    let mut control = ControlPlane::start_process().await;
    let receiver = Receiver::start_ok().await;
    let target = Target::create_for(&control, &receiver.url, &["agent.role_revoked"]).await;
    target.pause().await;
    let agent = Agent::register(&control, "Agent").await;
    let (expiring, deleted) = (control.create_role("expiring", &[]).await, control.create_role("deleted", &[]).await);
    control.assign_until(&agent.id, &expiring, Some("2100-01-01T00:00:00Z".to_owned())).await;
    control.assign(&agent.id, &deleted).await;
    control.terminate().await;
    // The fan-out cannot take the first event, nor those after it.
    let mut database = Database::connect(&control.database_url()).await;
    assert_eq!(database.insert_events(control.service()).await, EVENTS);
    database.execute("CREATE TABLE blocker (event_id TEXT REFERENCES webhook_outbox (id))").await;
    database.execute("INSERT INTO blocker SELECT MIN(id) FROM webhook_outbox").await;
    control.restart().await;

    control.delete_role(&deleted).await.expect(200);
    let expire = format!("UPDATE assignments SET expires_at = 1 WHERE role_id = '{expiring}'");
    assert_eq!(database.execute(&expire).await, 1);
    let revoked = "webhook_outbox WHERE kind = 'agent.role_revoked'";
    let is_emitted =
        async || (database.count(&format!("{revoked} AND body LIKE '%\"expired\"%'")).await == 1).then_some(());
    eventually("the event of the expired role is emitted", is_emitted, || control.log()).await;
    assert_eq!(database.count(revoked).await, 1, "the removal waits until fewer events wait");
    assert_eq!(database.count(&format!("assignments WHERE role_id = '{deleted}'")).await, 1);

    database.execute("DELETE FROM blocker").await;
    database.wait_until_none(&format!("roles WHERE id = '{deleted}'"), &control).await;
    let are_pending = async || (target.count_deliveries("pending").await == 2).then_some(());
    eventually("both events have a delivery", are_pending, || control.log()).await;
}
