//! `countersign webhook`: webhooks, their secrets and their deliveries.

use crate::{control_and_shell, mode};
use countersign_tests::{
    Agent, ControlPlane, Receiver, Reply, Shell, WebhookListener, command_line::parts, control_plane::text, eventually,
    process::free_port,
};
use serde_json::{Value, json};
use std::fs;

const SERVICE_ENV: [&str; 4] = ["URL", "CA", "SERVICE_ID", "SERVICE_KEY"];

/// A URL on this machine without a listener.
fn unreachable_url() -> String {
    format!("http://127.0.0.1:{}/hook", free_port())
}

#[tokio::test]
async fn webhook_is_created_shown_changed_paused_and_deleted() {
    let (control, shell) = control_and_shell(&SERVICE_ENV).await;
    let (url, kinds) = (unreachable_url(), ["agent.role_assigned", "agent.role_revoked"]);
    let create = ["webhook", "create", &url, "--events", &kinds.join(","), "--description", "For the shop"];
    let created = shell.json(&create);
    let (id, secret) = (text(&created["webhookId"]), text(&created["secret"]));
    assert!(id.starts_with("wh_") && secret.starts_with("whsec_"), "{created}");
    assert_eq!((&created["events"], &created["serviceId"]), (&json!(kinds), &json!(control.service())));
    let (_, printed, note) = parts(&shell.run(&["webhook", "create", &unreachable_url()]));
    assert!(printed.starts_with("whsec_") && printed.len() == secret.len(), "standard output has the secret only");
    let all = shell.json(&["webhook", "list"]);
    let other = all.as_array().unwrap().iter().find(|target| target["webhookId"] != id.as_str()).unwrap();
    assert!(note.contains(&format!("\nNext: countersign webhook test {}", text(&other["webhookId"]))), "{note}");
    assert_eq!((all.as_array().unwrap().len(), &other["events"]), (2, &json!(["*"])));

    let table = shell.stdout(&["webhook", "list"]);
    assert!(table.starts_with("ID ") && table.contains(&id) && table.contains("For the shop"), "{table}");
    let (shown, value) = (shell.stdout(&["webhook", "show", &id]), shell.json(&["webhook", "show", &id]));
    assert!(shown.contains(&url) && shown.contains("agent.role_assigned, agent.role_revoked"), "{shown}");
    assert_eq!((&value["status"], &value["description"]), (&json!("active"), &json!("For the shop")));

    let elsewhere = unreachable_url();
    let changed = shell.json(&["webhook", "change", &id, "--target", &elsewhere, "--events", "*"]);
    assert_eq!((&changed["url"], &changed["events"]), (&json!(elsewhere), &json!(["*"])));
    assert_eq!(changed["description"], "For the shop", "other fields do not change");
    assert_eq!(shell.json(&["webhook", "change", &id, "--description", "Else"])["url"], json!(elsewhere));
    assert_eq!(shell.failure(&["webhook", "change", &id]).0, 2, "no change is set");
    assert_eq!(shell.json(&["webhook", "pause", &id])["status"], "paused");
    assert!(shell.stdout(&["webhook", "list"]).contains("paused"));
    assert_eq!(shell.json(&["webhook", "resume", &id])["status"], "active");

    assert_eq!(shell.json(&["webhook", "delete", &id, "--yes"]), json!({ "deleted": true, "webhookId": id }));
    let unknown = ["WEBHOOK_NOT_FOUND", "Next: `countersign webhook list`"];
    let error = shell.assert_fails(3, &["webhook", "delete", &id, "--yes"], &unknown);
    let all = format!("{table}{shown}{value}{changed}{note}{error}{}", shell.stdout(&["webhook", "list"]));
    assert!(!all.contains(&secret[6..]) && !all.contains("whsec_"), "a secret is shown only once");
}

#[tokio::test]
async fn secrets_are_rotated_and_written_to_private_files() {
    let (_control, shell) = control_and_shell(&SERVICE_ENV).await;
    let file = shell.path("webhook.secret").display().to_string();
    let id = shell.stdout(&["webhook", "create", &unreachable_url(), "--out", &file]);
    assert!(id.starts_with("wh_"), "{id}");
    assert_eq!(mode(&file), 0o600);
    let first = fs::read_to_string(&file).unwrap();
    shell.assert_fails(1, &["webhook", "rotate-secret", &id, "--yes", "--out", &file], &["no file is overwritten"]);
    assert!(shell.stdout(&["webhook", "show", &id]).contains("old secret until  -"), "the secret was not rotated");
    let rotated = shell.json(&["webhook", "rotate-secret", &id, "--yes"]);
    assert!(text(&rotated["secret"]).starts_with("whsec_") && rotated["secret"] != first.trim(), "{rotated}");
    let until = text(&rotated["previousSecretExpiresAt"]);
    assert!(shell.stdout(&["webhook", "show", &id]).contains(&until));
    let (_, printed, note) = parts(&shell.run(&["webhook", "rotate-secret", &id, "--yes"]));
    assert!(printed.starts_with("whsec_") && printed != text(&rotated["secret"]), "{note}");
    assert!(note.contains("signed with the previous secret too until"), "{note}");
}

#[tokio::test]
async fn requests_are_signed_with_both_secrets_during_a_rotation() {
    let (_control, shell) = control_and_shell(&SERVICE_ENV).await;
    let port = free_port().to_string();
    let id = shell.stdout(&["webhook", "create", &format!("http://127.0.0.1:{port}/"), "--out", "old"]);
    shell.stdout(&["webhook", "rotate-secret", &id, "--yes", "--out", "new"]);
    let other = shell.stdout(&["webhook", "create", &unreachable_url(), "--out", "another"]);
    assert_ne!(id, other);
    for (file, code, signature) in [("old", 0, "good"), ("new", 0, "good"), ("another", 1, "bad")] {
        let mut listener =
            WebhookListener::start(&shell, &["--port", &port, "--secret-file", file, "--count", "1"]).await;
        assert_eq!(shell.run(&["webhook", "test", &id]).status.code(), Some(code), "{file}");
        assert_eq!(listener.wait_for_exit().await.code(), Some(code), "{file}");
        assert_eq!(listener.events()[0]["signature"], signature, "{file}");
    }
}

#[tokio::test]
async fn errors_have_a_next_step() {
    let (control, mut shell) = control_and_shell(&SERVICE_ENV).await;
    let id = shell.stdout(&["webhook", "create", &unreachable_url(), "--out", "first"]);
    let unknown = "wh_00000000000000000000000000";
    let event = "evt_00000000000000000000000000";
    for (arguments, code, expected) in [
        (&["create", "ftp://127.0.0.1/hook"][..], 2, "`url`"),
        (&["create", "http://192.0.2.1/hook"], 2, "`url`"),
        (&["create", "https://user:s3cr3t@example.com/"], 2, "`url`"),
        (&["create", "https://example.com/", "--events", "agent.born"], 2, "`events`"),
        (&["listen", "--events", "agent.born"], 2, "`events`"),
        (&["show", "nope"], 2, "`nope` is not the id of a webhook: wh_"),
        (&["show", unknown], 3, "`countersign webhook list`"),
        (&["test", unknown], 3, "`countersign webhook list`"),
        (&["deliveries", unknown], 3, "`countersign webhook list`"),
        (&["deliveries", &id, "--event", "nope"], 2, "`nope` is not the id of an event: evt_"),
        (&["deliveries", &id, "--event", event], 3, "`countersign webhook deliveries wh_"),
        (&["deliveries", &id, "--status", "lost"], 2, "--status"),
        (&["replay", &id], 2, "--since"),
        (&["replay", &id, "--since", "soon"], 2, "write a time as"),
        (&["replay", &id, "--event", event], 3, "`countersign webhook deliveries wh_"),
        (&["list", "--deployment"], 2, "COUNTERSIGN_HUMAN_TOKEN"),
    ] {
        let error = shell.assert_fails(code, &[&["webhook"], arguments].concat(), &[expected]);
        assert!(!error.contains("s3cr3t"), "{error}");
    }
    shell.unset("COUNTERSIGN_SERVICE_KEY");
    assert_eq!(shell.failure(&["webhook", "list"]).0, 2, "no credentials");
    shell.export("COUNTERSIGN_HUMAN_TOKEN", &control.mint_human("stranger"));
    assert_eq!((shell.failure(&["webhook", "list"]).0, shell.failure(&["webhook", "list", "--deployment"]).0), (3, 3));
    shell.export("COUNTERSIGN_SERVICE_KEY", "svc_sk_planted0sentinel");
    let error = shell.assert_fails(3, &["webhook", "show", &id], &[]);
    assert!(!error.contains("planted"), "{error}");
}

#[tokio::test]
async fn administrators_manage_webhooks_for_all_services() {
    let (control, mut shell) = control_and_shell(&["URL", "CA", "HUMAN_TOKEN"]).await;
    let created = shell.json(&["webhook", "create", "--deployment", &unreachable_url()]);
    let id = text(&created["webhookId"]);
    assert_eq!((&created["serviceId"], &created["events"]), (&Value::Null, &json!(["*"])));
    assert!(shell.stdout(&["webhook", "show", "--deployment", &id]).contains("service           all"));
    assert_eq!(shell.json(&["webhook", "list", "--deployment"]).as_array().unwrap().len(), 1);
    shell.export("COUNTERSIGN_SERVICE_ID", control.service());
    assert_eq!(shell.json(&["webhook", "list"]), json!([]), "a service has its own webhooks");
    assert_eq!(shell.failure(&["webhook", "show", &id]).0, 3);
    let note = shell.notes(&["webhook", "pause", "--deployment", &id]);
    assert!(note.contains(&format!("Next: countersign webhook resume --deployment {id}")), "{note}");
    assert_eq!(shell.json(&["webhook", "delete", "--yes", "--deployment", &id])["deleted"], true);

    let mut owner = Shell::with_env(&control, &["URL", "CA"]);
    owner.export("COUNTERSIGN_HUMAN_TOKEN", &control.mint_human("owner"));
    let shop = owner.stdout(&["service", "create", "Shop"]);
    let created = owner.json(&["webhook", "create", &unreachable_url()]);
    assert_eq!(created["serviceId"], json!(shop), "the owner needs no API key");
    assert_eq!(owner.failure(&["webhook", "create", "--deployment", &unreachable_url()]).0, 3);

    let mut listener = WebhookListener::start(&shell, &["--deployment", "--count", "1"]).await;
    assert_eq!(shell.json(&["webhook", "list"]), json!([]));
    let agent = Agent::register(&control, "Typed").await;
    agent.login().await;
    assert!(listener.wait_for_exit().await.success(), "{}", listener.log());
    let arrival = &listener.events()[0];
    assert_eq!((&arrival["event"], &arrival["data"]["agentId"]), (&json!("agent.authenticated"), &json!(agent.id)));
    assert_eq!(shell.json(&["webhook", "list", "--deployment"]), json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_test_shows_the_response_of_the_receiver() {
    let (control, shell) = control_and_shell(&SERVICE_ENV).await;
    let port = free_port().to_string();
    let url = format!("http://127.0.0.1:{port}/");
    let id = shell.stdout(&["webhook", "create", &url, "--events", "agent.role_revoked", "--out", "secret"]);
    let refused = "was not delivered: the receiver refused the connection\nNext: ";
    shell.assert_fails(1, &["webhook", "test", &id], &[refused]);

    let mut listener = WebhookListener::start(&shell, &["--port", &port, "--secret-file", "secret"]).await;
    let tested = shell.json(&["webhook", "test", &id]);
    assert_eq!((&tested["status"], &tested["responseStatus"]), (&json!("delivered"), &json!(200)));
    assert_eq!((&tested["event"], &tested["responseBody"]), (&json!("webhook.test"), &json!("received")));
    shell.stdout(&["webhook", "pause", &id]);
    assert!(shell.stdout(&["webhook", "test", &id]).contains("delivered"), "also to a paused webhook");
    let first = listener.wait_for_events(2).await.remove(0);
    assert_eq!((&first["eventId"], &first["signature"]), (&tested["eventId"], &json!("good")));
    assert_eq!(first["data"], json!({ "webhookId": id, "serviceId": control.service() }));
    assert!(listener.stop("TERM").await.success(), "{}", listener.log());

    let receiver = Receiver::start(Reply::Full(500, Vec::new(), "out of order".to_owned())).await;
    shell.stdout(&["webhook", "change", &id, "--target", &receiver.url]);
    let (code, printed, error) = parts(&shell.run(&["webhook", "test", &id]));
    assert!(code == 1 && printed.contains("out of order"), "{printed}{error}");
    assert!(error.contains("not delivered: the receiver answered 500"), "{printed}{error}");
    receiver.set_reply(Reply::Status(307));
    shell.assert_fails(1, &["webhook", "test", &id], &["the receiver redirects (307)"]);
    receiver.set_reply(Reply::Status(204));
    assert!(shell.stdout(&["webhook", "test", &id]).contains("204"));
}

#[tokio::test]
async fn webhook_test_waits_for_a_slow_receiver_within_the_rate_limit() {
    let settings = ["webhooks.attempt_seconds=3", "limits.management_per_minute=12"];
    let control = ControlPlane::start_with_default_limits_and(&settings).await;
    let shell = Shell::with_env(&control, &SERVICE_ENV);
    // The listener accepts connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let id = shell.stdout(&["webhook", "create", &url, "--out", "secret"]);
    shell.assert_fails(1, &["webhook", "test", &id], &["was not delivered: the receiver did not answer in time"]);
}

#[tokio::test]
async fn deliveries_are_listed_shown_and_replayed() {
    // With one retry, a delivery is dead (given up) after its second attempt.
    let control = ControlPlane::start_with(&["webhooks.retry_seconds=1"]).await;
    let shell = Shell::with_env(&control, &[&SERVICE_ENV[..], &["HUMAN_TOKEN"]].concat());
    let port = free_port().to_string();
    let id = shell.stdout(&["webhook", "create", &format!("http://127.0.0.1:{port}/"), "--out", "secret"]);
    let (agent, role) = Agent::with_role(&control, "reader", &[]).await;
    let is_dead = async || {
        let deliveries = shell.json(&["webhook", "deliveries", &id, "--status", "dead"]);
        deliveries.as_array().filter(|deliveries| deliveries.len() == 1).cloned()
    };
    let dead = eventually("the delivery is dead", is_dead, || control.log()).await.remove(0);
    assert!(dead["event"] == "agent.role_assigned" && dead["failure"] == "connection", "{dead}");
    let event = text(&dead["eventId"]);
    assert_eq!(shell.json(&["webhook", "deliveries", &id, "--status", "delivered"]), json!([]));
    let table = shell.stdout(&["webhook", "deliveries", &id]);
    assert!(table.contains(&event) && table.contains("dead") && table.contains("connection"), "{table}");
    let shown = ["webhook", "deliveries", &id, "--event", &event];
    let value = shell.json(&shown);
    let payload = &value["payload"];
    assert!(payload["event"] == dead["event"] && payload["data"]["roleName"] == "reader", "{value}");
    assert!(shell.stdout(&shown).contains("\"roleName\": \"reader\""));

    let listener = WebhookListener::start(&shell, &["--port", &port, "--secret-file", "secret"]).await;
    let replayed = shell.json(&["webhook", "replay", &id, "--event", &event]);
    assert_eq!(replayed, json!({ "replayed": 1, "webhookId": id }));
    let first = listener.wait_for_events(1).await.remove(0);
    assert_eq!((&first["eventId"], &first["signature"]), (&json!(event), &json!("good")));
    assert_eq!(first["data"], payload["data"], "the data is the same as in `webhook deliveries`");
    let delivered = async || Some(shell.json(&shown)).filter(|delivery| delivery["status"] == "delivered");
    eventually("the event is delivered", delivered, || control.log()).await;
    assert_eq!(shell.json(&["webhook", "replay", &id, "--since", "1h", "--status", "dead"])["replayed"], 0);
    assert!(shell.stdout(&["webhook", "replay", &id, "--since", "1h"]).ends_with('1'));
    assert_eq!(listener.wait_for_events(2).await[1]["eventId"], first["eventId"], "the replay has the same event id");
    assert_eq!(shell.json(&["webhook", "replay", &id, "--since", "2100-01-01T00:00:00Z"])["replayed"], 0);

    control.revoke(&agent.id, &role).await;
    assert_eq!(listener.wait_for_events(3).await[2]["event"], "agent.role_revoked");
    let newest = shell.json(&["webhook", "deliveries", &id, "--limit", "1"]);
    let second = shell.json(&["webhook", "deliveries", &id, "--limit", "1", "--offset", "1"]);
    assert_eq!((&newest[0]["event"], &second[0]["eventId"]), (&json!("agent.role_revoked"), &json!(event)));
    assert_eq!((newest.as_array().unwrap().len(), second.as_array().unwrap().len()), (1, 1));
}
