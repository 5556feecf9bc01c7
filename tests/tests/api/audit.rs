//! Tests of the audit: each management action writes one entry to an audit chain, and `audit verify` detects tampering.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests panic on unexpected values")]

mod actions;
mod archive;
mod reading;
mod tampering;

use countersign_tests::{ControlPlane, HttpResponse, Postgres};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// All audit entries that match the query, newest first, as an administrator reads them.
pub async fn entries(control: &ControlPlane, query: &str) -> Vec<Value> {
    let mut entries: Vec<Value> = Vec::new();
    loop {
        let path = format!("/audit?limit=200&offset={}{query}", entries.len());
        let page = control.api.get_as(control.human(), &path).await.expect(200);
        entries.extend(page["data"].as_array().unwrap().iter().cloned());
        if page["pagination"]["hasMore"] == false {
            return entries;
        }
    }
}

/// Runs `audit verify` and returns its output and whether it succeeded.
fn verify(control: &ControlPlane) -> (String, bool) {
    let output = control.command(&["audit", "verify"]);
    (String::from_utf8(output.stdout).unwrap(), output.status.success())
}

/// Asserts that `audit verify` reports every chain as intact.
#[track_caller]
pub fn assert_chains_intact(control: &ControlPlane) {
    let (report, valid) = verify(control);
    assert!(valid && report.lines().all(|line| line.contains(": ok, ")), "{report}");
}

/// Starts a control plane with SQLite and another with PostgreSQL.
pub async fn start_on_both_engines(postgres: &Postgres) -> [ControlPlane; 2] {
    let setting = format!("database.url={}", postgres.create_database().await);
    [ControlPlane::start_process_with(&["database.url="]).await, ControlPlane::start_process_with(&[&setting]).await]
}

#[tokio::test]
async fn concurrent_actions_keep_the_chains_intact() {
    let postgres = Postgres::start().await;
    for control in start_on_both_engines(&postgres).await {
        let create_role = |number| {
            let body = json!({ "name": format!("role {number}"), "permissions": [] });
            let path = control.path("/roles");
            let control = &control;
            async move { control.api.send_as(control.key(), "POST", &path, body).await.expect(201) }
        };
        let register_and_suspend = async |number| {
            let agent = countersign_tests::Agent::register(&control, &format!("agent {number}")).await;
            control.set_status(&agent.id, "suspended").await.expect(200);
        };
        tokio::join!(join_all((0..50).map(create_role)), join_all((0..25).map(register_and_suspend)));
        assert_chains_intact(&control);
        let service_entries = entries(&control, &format!("&serviceId={}&action=role.created", control.service())).await;
        let sequences: BTreeSet<_> = service_entries.iter().map(|entry| entry["sequence"].as_i64()).collect();
        assert_eq!((service_entries.len(), sequences.len()), (50, 50));
        assert_eq!(entries(&control, "&action=agent.registered").await.len(), 25);
        assert_eq!(entries(&control, "&action=agent.status_changed").await.len(), 25);
    }
}

/// A transaction contains both a change and its audit entry.
#[tokio::test]
async fn state_and_audit_agree_after_a_crash() {
    let postgres = Postgres::start().await;
    for mut control in start_on_both_engines(&postgres).await {
        for round in 0..3 {
            let path = control.path("/roles");
            let (key, api) = (control.key().to_owned(), control.api.clone());
            let create_role = |number: usize| {
                let body = json!({ "name": format!("role {round} {number}"), "permissions": ["a"] });
                let request = api.request("POST", &path).bearer_auth(&key).json(&body);
                tokio::spawn(async move { HttpResponse::try_send(request).await.map(|response| response.status) })
            };
            let requests: Vec<_> = (0..40).map(create_role).collect();
            tokio::time::sleep(std::time::Duration::from_millis(15 * (round + 1))).await;
            control.kill();
            let statuses: Vec<_> = join_all(requests).await.into_iter().map(Result::unwrap).collect();
            control.restart().await;
            let acknowledged = statuses.iter().filter(|status| **status == Some(201)).count();
            let roles = control.api.get_as(control.key(), &control.path("/roles")).await.expect(200);
            let names = roles["data"].as_array().unwrap().iter().map(|role| role["name"].clone());
            let names: BTreeSet<_> = names.map(|name| name.to_string()).collect();
            let audited_names = entries(&control, "&action=role.created").await;
            let audited_names: BTreeSet<_> =
                audited_names.iter().map(|entry| entry["details"]["name"].to_string()).collect();
            assert_eq!(names, audited_names, "round {round}");
            let prefix = format!("\"role {round} ");
            assert!(
                names.iter().filter(|name| name.starts_with(&prefix)).count() >= acknowledged,
                "every acknowledged role exists after the crash"
            );
            assert_chains_intact(&control);
        }
    }
}
