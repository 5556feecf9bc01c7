//! Two control planes on one PostgreSQL deliver together: each event once, whoever is killed.

use countersign_tests::{ControlPlane, HttpResponse, Postgres, Receiver, eventually};
use serde_json::{Value, json};

async fn replica(database: &str) -> ControlPlane {
    ControlPlane::start_replica(database, &["webhooks.attempt_seconds=1"]).await
}

/// Makes a role and gives it to an agent again and again, each time until later: so many events.
async fn happen(at: &[&ControlPlane], agent: &str, role: &str, times: usize) {
    let path = at[0].path(&format!("/agents/{agent}/roles"));
    let assign = async |number: usize| {
        let end = format!("2090-01-01T{:02}:{:02}:{:02}Z", number / 3600, number / 60 % 60, number % 60);
        let body = json!({ "roleId": role, "expiresAt": end });
        at[number % at.len()].api.send_as(at[0].key(), "POST", &path, body).await.expect(200);
    };
    for number in 0..times {
        assign(number).await;
    }
}

async fn pending(at: &ControlPlane, webhook: &str) -> Value {
    let path = at.path(&format!("/webhooks/{webhook}/deliveries?status=pending"));
    let page: HttpResponse = at.api.get_as(at.key(), &path).await;
    page.expect(200)["pagination"]["total"].clone()
}

#[tokio::test]
async fn replicas_share_the_queue_and_take_over_after_a_crash() {
    let postgres = Postgres::start().await;
    let database = postgres.database().await;
    let (one, mut other) = (replica(&database).await, replica(&database).await);
    let receiver = Receiver::good().await;
    let body = json!({ "url": receiver.url, "events": ["agent.role_assigned"] });
    let made = one.api.send_as(one.key(), "POST", &one.path("/webhooks"), body).await.expect(201);
    let webhook = made["webhookId"].as_str().unwrap();
    let role = one.create_role("reader", &[]).await;
    let key = countersign_client::PrivateKey::generate().public_pem().unwrap();
    let agent = json!({ "email": "o@example.org", "name": "Agent", "publicKey": key });
    let agent = one.api.post("/auth/register", agent).await.expect(201)["agentId"].as_str().unwrap().to_owned();

    happen(&[&one, &other], &agent, &role, 300).await;
    let delivered = async || (receiver.events() == 300 && pending(&one, webhook).await == 0).then_some(());
    eventually("all are delivered", delivered, || one.log()).await;
    assert_eq!(receiver.count(), 300, "while both replicas run, each event comes once");

    // Killed with events under way: these come when their lease is over, within a minute.
    happen(&[&one, &other], &agent, &role, 50).await;
    other.kill();
    happen(&[&one], &agent, &role, 50).await;
    let path = one.path(&format!("/webhooks/{webhook}/test"));
    one.api.send_as(one.key(), "POST", &path, json!({})).await.expect(202);
    let delivered = async || (receiver.events() == 401 && pending(&one, webhook).await == 0).then_some(());
    let _others = tokio::time::timeout(std::time::Duration::from_secs(90), async {
        while delivered().await.is_none() {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    })
    .await;
    assert_eq!((receiver.events(), pending(&one, webhook).await), (401, json!(0)), "{}", one.log());
}
