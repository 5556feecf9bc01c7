//! Tests that deletions do not hold back the events of expired roles.

use super::housekeeping::insert_events;
use countersign_tests::{Agent, ControlPlane, Database, Receiver, Target, eventually};

/// Number of events in the outbox: so many that the removal of deleted roles waits, but the events of expired roles do not.
const EVENTS: u64 = 6000;

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
    // Keep the fan-out from taking the first event, so that all later events wait, too.
    let mut database = Database::connect_to_write(&control).await;
    assert_eq!(insert_events(&mut database, control.service()).await, EVENTS);
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
    database.wait_until_none(&format!("roles WHERE id = '{deleted}'"), || control.log()).await;
    let are_pending = async || (target.count_deliveries("pending").await == 2).then_some(());
    eventually("both events have a delivery", are_pending, || control.log()).await;
}
