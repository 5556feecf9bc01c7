//! Tests of `secrets rotate`, which rotates the master key while servers serve.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests panic on unexpected values")]

use crate::database::succeed;
use countersign_tests::{
    Agent, ControlPlane, Database, HttpResponse, Postgres, Receiver, StandardWebhooks, Target,
    agent::{log_in_at, signed_challenge},
    control_plane::MASTER_KEY,
    eventually,
};
use serde_json::{Value, json};
use std::{
    process::Output,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

const OLD: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const NEW: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

fn current(key: &str) -> String {
    format!("secrets.master_key={key}")
}

fn previous(key: &str) -> String {
    format!("secrets.previous_master_keys={key}")
}

/// Asserts that a command fails and that its error contains these texts, but no master key.
#[track_caller]
fn assert_refused(output: &Output, expected: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{output:?}");
    assert!(expected.iter().all(|text| message.contains(text)), "expected {expected:?}: {message}");
    assert!(![OLD, NEW, MASTER_KEY].iter().any(|key| message.contains(key)), "{message}");
}

/// Asserts that a server with these additional settings does not start.
async fn assert_start_refused(control: &ControlPlane, settings: &[String], expected: &[&str]) {
    let mut command = tokio::process::Command::from(control.prepare(&[]));
    for setting in settings.iter().map(String::as_str).chain(["listen.api=127.0.0.1:0", "listen.sync=127.0.0.1:0"]) {
        command.args(["--set", setting]);
    }
    command.args(["--set", "listen.admin=127.0.0.1:0"]).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_mins(1), command.output()).await;
    assert_refused(&output.expect("the server must not start").unwrap(), expected);
}

/// Starts a server with the old master key, and restarts it with both master keys.
async fn start_with_both_keys(settings: &[&str]) -> ControlPlane {
    let mut control = ControlPlane::start_process_with(&[&[current(OLD).as_str()], settings].concat()).await;
    control.create_role("of-the-old-key", &[]).await;
    control.restart_with(&previous(OLD)).await;
    control.restart_with(&current(NEW)).await;
    control
}

/// The body of a login.
async fn login(control: &ControlPlane, agent: &Agent) -> Value {
    signed_challenge(&control.api, &agent.id, &agent.key).await
}

async fn authenticate(control: &ControlPlane, login: &Value) {
    control.api.post("/auth/authenticate", login.clone()).await.expect(200);
}

/// Sends an event to a target, and verifies the signature of the request.
async fn assert_signed(target: &Target, receiver: &Receiver) {
    let event = target.send_test_event().await;
    receiver.wait_for_event(&event).await;
    let request = receiver.received().into_iter().find(|request| request.id() == event).unwrap();
    StandardWebhooks::start().assert_signatures(&target.secret, &[request]);
}

/// Repeats logins and audited changes until `stop` is set. Returns the number of repetitions.
fn spawn_traffic(control: &ControlPlane, agent: &Arc<Agent>, stop: &Arc<AtomicBool>) -> tokio::task::JoinHandle<usize> {
    let (api, key, roles) = (control.api.clone(), control.key().to_owned(), control.path("/roles"));
    let (agent, stop) = (agent.clone(), stop.clone());
    tokio::spawn(async move {
        let mut count = 0;
        while !stop.load(Ordering::SeqCst) {
            log_in_at(&api, &agent.id, &agent.key).await;
            let body = json!({ "name": format!("role-{count}"), "description": "", "permissions": [] });
            api.send_as(&key, "POST", &roles, body).await.expect(201);
            count += 1;
        }
        count
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotation_while_a_server_serves() {
    let mut control = start_with_both_keys(&[]).await;
    let receiver = Receiver::start_ok().await;
    let mut target = Target::create(&control, &receiver.url).await;
    let old_secret = target.secret.clone();
    target.rotate_secret().await;
    let agent = Arc::new(Agent::register(&control, "Agent").await);
    let (token, open_login) = (agent.token().await, login(&control, &agent).await);
    let stop = Arc::new(AtomicBool::new(false));
    let traffic = spawn_traffic(&control, &agent, &stop);

    // The archive gives a chain a floor (its last archived entry), which the rotation must authenticate with the new key, too.
    let archive = control.folder().join("archive.jsonl");
    let archive = ["audit", "archive", "--before", "2100-01-01", "--output", archive.to_str().unwrap()];
    tokio::task::block_in_place(|| succeed(&control, &archive));
    let report = tokio::task::block_in_place(|| succeed(&control, &["secrets", "rotate"]));
    // The secrets are two signing keys, and the current and the previous secret of the target.
    assert!(report.contains("Secrets: 4 were encrypted again with this key, 0 already used it."), "{report}");
    assert!(report.contains("2 were verified and authenticated with this key, 0 already used it"), "{report}");
    authenticate(&control, &open_login).await;
    assert_signed(&target, &receiver).await;
    let later_target = Target::create(&control, &receiver.url).await;
    control.rotate().await;
    stop.store(true, Ordering::SeqCst);
    assert!(traffic.await.unwrap() > 0);
    let again = tokio::task::block_in_place(|| control.command(&["secrets", "rotate"]));
    assert!(again.status.success() && !String::from_utf8_lossy(&again.stderr).contains("takes effect"), "{again:?}");
    let again = String::from_utf8(again.stdout).unwrap();
    assert!(again.contains("remove secrets.previous_master_keys from the settings"), "{again}");
    assert!(again.contains("\nSecrets: 0 were encrypted again with this key, 6 already used it."), "{again}");
    assert!(again.contains("0 were verified and authenticated with this key, 2 already used it"), "{again}");

    let open_login = login(&control, &agent).await;
    control.restart_with(&previous("")).await;
    authenticate(&control, &open_login).await;
    control.verify(&token).await.expect(200);
    agent.token().await;
    for target in [&target, &later_target] {
        assert_signed(target, &receiver).await;
    }
    let event = target.send_test_event().await;
    receiver.wait_for_event(&event).await;
    let request = receiver.received().into_iter().find(|request| request.id() == event).unwrap();
    StandardWebhooks::start().assert_signatures(&old_secret, &[request]);
    succeed(&control, &["audit", "verify"]);
    let without_previous = succeed(&control, &["secrets", "rotate"]);
    assert!(
        without_previous.contains("No previous master key is needed, and none is configured."),
        "{without_previous}"
    );
    let entries = control.api.get_as(control.human(), "/audit?action=master_key.rotated").await.expect(200);
    assert_eq!(entries["data"].as_array().unwrap().len(), 1, "{entries}");
    let fingerprint = succeed(&control, &["config", "check"]);
    let fingerprint = fingerprint.strip_prefix("ok\nmaster key: fingerprint ").unwrap().trim_end();
    let expected = ["another master key", fingerprint, "secrets.previous_master_keys"];
    control.kill();
    assert_start_refused(&control, &[current(OLD)], &expected).await;
    let old_key = current(OLD);
    assert_refused(&control.command(&["--set", &old_key, "audit", "verify"]), &expected);
    let logs = format!("{}{report}{again}", control.log());
    assert!(![OLD, NEW].iter().any(|key| logs.contains(key)), "{logs}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn incomplete_rotation_needs_the_previous_key() {
    let mut control = start_with_both_keys(&[]).await;
    let receiver = Receiver::start_ok().await;
    let target = Target::create(&control, &receiver.url).await;
    let mut database = Database::connect_to_write(&control).await;
    let sealed = database.text_column("SELECT secret FROM webhook_targets").await.remove(0);
    let fingerprint = database.text_column("SELECT master_key_fingerprint FROM deployment").await.remove(0);
    succeed(&control, &["secrets", "rotate"]);
    // The state of a rotation that was killed after it had made the new key current.
    database.execute(&format!("UPDATE webhook_targets SET secret = '{sealed}'")).await;
    database.execute(&format!("INSERT INTO previous_master_keys VALUES ('{fingerprint}', 1)")).await;
    database.execute("DELETE FROM audit_checkpoints").await;
    assert_signed(&target, &receiver).await;
    control.create_role("while-incomplete", &[]).await;
    succeed(&control, &["audit", "verify"]);

    if control.database_url().starts_with("sqlite:") {
        let current = database.text_column("SELECT master_key_fingerprint FROM deployment").await.remove(0);
        let backup = succeed(&control, &["backup", &control.folder().join("backup.db").display().to_string()]);
        assert!(backup.contains(&format!("(fingerprints {current}, {fingerprint})")), "{backup}");
    }
    let expected = [fingerprint.as_str(), "secrets.previous_master_keys", "secrets rotate"];
    control.kill();
    assert_start_refused(&control, &[previous("")], &expected).await;
    control.restart().await;
    for arguments in [&["secrets", "rotate"][..], &["audit", "verify"]] {
        let setting = previous("");
        let without = [&["--set", setting.as_str()], arguments].concat();
        assert_refused(&control.command(&without), &expected);
    }
    let report = succeed(&control, &["secrets", "rotate"]);
    assert!(report.contains("\nSecrets: 1 were encrypted again with this key, 2 already used it."), "{report}");
    assert!(report.contains(&fingerprint), "{report}");
    control.restart_with(&previous("")).await;
    assert_signed(&target, &receiver).await;
    succeed(&control, &["audit", "verify"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_rotation_is_resumed() {
    let mut control = start_with_both_keys(&[]).await;
    let receiver = Receiver::start_ok().await;
    let agent = Agent::register(&control, "Agent").await;
    let mut targets = Vec::new();
    // Create many audit chains: each service has one.
    for _ in 0..25 {
        let (service, key) = control.create_service(json!({ "name": "another chain" })).await;
        let webhooks = format!("/services/{service}/webhooks");
        for _ in 0..10 {
            targets.push(Target::create_in(&control.api, &key, &webhooks, &receiver.url, &["*"]).await);
        }
    }
    let mut kills = 0;
    let mut delay = Duration::from_millis(10);
    loop {
        let mut process = control.prepare(&["secrets", "rotate"]).spawn().unwrap();
        tokio::time::sleep(delay).await;
        if let Some(status) = process.try_wait().unwrap() {
            assert!(status.success(), "{status:?}");
            break;
        }
        process.kill().unwrap();
        process.wait().unwrap();
        kills += 1;
        delay += Duration::from_millis(10);
        agent.token().await;
        control.create_role(&format!("after-kill-{kills}"), &[]).await;
        assert_signed(&targets[kills % targets.len()], &receiver).await;
    }
    assert!(kills > 0);
    control.restart_with(&previous("")).await;
    agent.token().await;
    for target in [targets.first().unwrap(), targets.last().unwrap()] {
        assert_signed(target, &receiver).await;
    }
    let report = succeed(&control, &["secrets", "rotate"]);
    assert!(report.contains("\nSecrets: 0 were encrypted again with this key, 252 already used it."), "{report}");
    succeed(&control, &["audit", "verify"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secret_that_no_key_decrypts_prevents_the_removal_of_the_previous_key() {
    let mut control = start_with_both_keys(&[]).await;
    let receiver = Receiver::start_ok().await;
    let (target, damaged) =
        (Target::create(&control, &receiver.url).await, Target::create(&control, &receiver.url).await);
    let mut database = Database::connect_to_write(&control).await;
    database.execute(&format!("UPDATE webhook_targets SET secret = 'damaged' WHERE id = '{}'", damaged.id)).await;
    assert_refused(&control.command(&["secrets", "rotate"]), &[&damaged.id, "secrets.previous_master_keys"]);
    control.kill();
    assert_start_refused(&control, &[previous("")], &["secrets.previous_master_keys"]).await;
    control.restart().await;
    // Some audit chains are authenticated by the new key already, so the old key cannot become current again.
    let (to_old, from_new) = (current(OLD), previous(NEW));
    let rotate_back = ["--set", to_old.as_str(), "--set", from_new.as_str(), "secrets", "rotate"];
    assert_refused(&control.command(&rotate_back), &["is not complete: complete it first"]);
    succeed(&control, &["audit", "verify"]);
    assert_signed(&target, &receiver).await;
    damaged.delete().await;
    succeed(&control, &["secrets", "rotate"]);
    control.create_role("of-the-new-key", &[]).await;
    assert!(control.command(&rotate_back).status.success(), "a complete rotation can be followed by one back");
    control.restart_with(&to_old).await;
    control.restart_with(&previous("")).await;
    control.create_role("of-the-old-key-again", &[]).await;
    succeed(&control, &["audit", "verify"]);
    assert_signed(&target, &receiver).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_chain_stays_broken_at_the_same_entry_after_the_rotation() {
    let mut control = start_with_both_keys(&[]).await;
    let mut database = Database::connect_to_write(&control).await;
    let change = format!(
        "UPDATE audit_entries SET action = 'role.deleted' WHERE chain = '{}' AND sequence = 3",
        control.service()
    );
    database.execute(&change).await;
    let verify = |control: &ControlPlane| {
        let output = control.command(&["audit", "verify"]);
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let export = |control: &ControlPlane| {
        let output = control.command(&["audit", "export"]);
        String::from_utf8(output.stdout).unwrap().lines().filter(|line| line.contains(control.service())).count()
    };
    let expected = format!("{}: broken at entry 3: its content does not match its hash", control.service());
    assert!(verify(&control).contains(&expected));
    let exported = export(&control);
    assert!(exported >= 2, "{exported}");
    let report = succeed(&control, &["secrets", "rotate"]);
    assert!(report.contains("broken at entry 3"), "{report}");
    control.restart_with(&previous("")).await;
    let verified = verify(&control);
    assert!(verified.contains(&expected), "{verified}");
    assert_eq!(export(&control), exported, "the entries before the break are still authenticated");
}

/// An attacker who has the previous master key and can write to the database cannot hide a change by restoring the old head (the
/// recorded end) of a chain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_head_and_removed_entries_are_detected_after_the_rotation() {
    let control = start_with_both_keys(&[]).await;
    let mut database = Database::connect_to_write(&control).await;
    let mut head = async |column: &str| {
        database.text_column(&format!("SELECT {column} FROM audit_heads WHERE chain = 'deployment'")).await.remove(0)
    };
    let (hash, mac) = (head("hash").await, head("mac").await);
    let restore_head = format!(
        "UPDATE audit_heads SET length = length - 1, hash = '{hash}', mac = '{mac}' WHERE chain = 'deployment'"
    );
    let remove_entry = "DELETE FROM audit_entries WHERE chain = 'deployment' AND action = 'master_key.rotated'";
    succeed(&control, &["secrets", "rotate"]);
    database.execute(remove_entry).await;
    database.execute(&restore_head).await;
    let output = control.command(&["audit", "verify"]);
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && report.contains("deployment: broken"), "{output:?}");
}

/// A control plane without the new master key can still verify tokens, but must get no requests from a load balancer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_without_the_new_key_is_not_ready_until_it_has_the_key() {
    // One process, because each replica learns of the rotation, and reports it, on its own.
    let mut control = ControlPlane::start_one_with(&[current(OLD).as_str()]).await;
    let agent = Agent::register(&control, "Agent").await;
    let admin = control.admin();
    assert_eq!(admin.get("/readyz").await.status, 200);
    let (new, old) = (current(NEW), previous(OLD));
    let both = ["--set", new.as_str(), "--set", old.as_str()];
    let checked = succeed(&control, &[&both[..], &["config", "check"]].concat());
    let fingerprints: Vec<_> = checked.lines().filter_map(|line| line.rsplit_once(' ')).map(|(_, key)| key).collect();
    let [new_fingerprint, old_fingerprint] = fingerprints[..] else { panic!("{checked}") };
    assert!(checked.contains(&format!("\nprevious master key: fingerprint {old_fingerprint}\n")), "{checked}");
    succeed(&control, &[&both[..], &["secrets", "rotate"]].concat());

    let is_unready = async || {
        let response = HttpResponse::try_send(admin.request("GET", "/readyz")).await;
        response.filter(|response| response.status == 503)
    };
    let unready = eventually("the server is not ready", is_unready, || control.log()).await;
    let expected =
        format!("the master key with the fingerprint {new_fingerprint}: set secrets.master_key to it and restart");
    assert!(unready.text("").contains(&expected), "{unready:?}");
    let refused = control.api.post("/auth/challenge", json!({ "agentId": agent.id })).await;
    assert_eq!(refused.error(), (503, "SERVICE_UNAVAILABLE", "master_key_missing"), "{refused:?}");
    let health = control.api.get("/health").await;
    let reason = &health.body["reasons"][0];
    assert_eq!(health.status, 503, "{health:?}");
    assert_eq!([&health.body["status"], &health.body["checks"]["master_key"]], ["unhealthy", "down"]);
    assert_eq!([&reason["check"], &reason["code"]], ["master_key", "master_key_missing"], "{health:?}");
    assert!(!health.body.to_string().contains(new_fingerprint), "anybody may read it");
    let log = control.log();
    for text in
        ["which is not configured: set secrets.master_key to it and secrets.previous_master_keys", new_fingerprint]
    {
        assert!(log.contains(text), "{text}: {log}");
    }
    assert!(![OLD, NEW].iter().any(|key| log.contains(key)), "{log}");
    control.restart_with(&current(NEW)).await;
    agent.token().await;
    assert_eq!(admin.get("/readyz").await.status, 200);
    assert_eq!(control.api.get("/health").await.expect(200)["checks"]["master_key"], "up");
}

/// The replicas are restarted one after the other, and always share challenges and audit chains.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotation_with_two_replicas() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let mut first = ControlPlane::start_replica(&database, &[]).await;
    let mut second = ControlPlane::start_replica(&database, &[]).await;
    let receiver = Receiver::start_ok().await;
    let target = Target::create(&first, &receiver.url).await;
    let agent = Arc::new(Agent::register(&first, "Agent").await);
    let role = first.create_role("reader", &[]).await;
    let login_across = async |first: &ControlPlane, second: &ControlPlane| {
        for (issuer, verifier) in [(first, second), (second, first)] {
            authenticate(verifier, &login(issuer, &agent).await).await;
            let path = first.path(&format!("/agents/{}/roles", agent.id));
            issuer.api.send_as(first.key(), "POST", &path, json!({ "roleId": role })).await.expect(200);
            let path = format!("{path}/{role}");
            verifier.api.send_as(first.key(), "DELETE", &path, Value::Null).await.expect(200);
        }
    };
    login_across(&first, &second).await;
    first.restart_with(&previous(MASTER_KEY)).await;
    first.restart_with(&current(NEW)).await;
    login_across(&first, &second).await;
    let of_first = Target::create(&first, &receiver.url).await;
    second.restart_with(&previous(MASTER_KEY)).await;
    second.restart_with(&current(NEW)).await;
    login_across(&first, &second).await;
    let stop = Arc::new(AtomicBool::new(false));
    let traffic = spawn_traffic(&first, &agent, &stop);
    let report = tokio::task::block_in_place(|| succeed(&first, &["secrets", "rotate"]));
    assert!(report.contains("Secrets: 4 were encrypted again with this key,"), "{report}");
    stop.store(true, Ordering::SeqCst);
    assert!(traffic.await.unwrap() > 0);
    login_across(&first, &second).await;
    first.restart_with(&previous("")).await;
    login_across(&first, &second).await;
    second.restart_with(&previous("")).await;
    login_across(&first, &second).await;
    assert_signed(&target, &receiver).await;
    assert_signed(&of_first, &receiver).await;
    succeed(&first, &["audit", "verify"]);
    assert_start_refused(&second, &[current(MASTER_KEY)], &["another master key"]).await;
}
