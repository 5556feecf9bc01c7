//! Who did what: each act of management leaves one link in a chain, and no link can be bent unnoticed.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a chain that cannot be made ends the test")]

mod acts;
mod reading;
mod tampering;

use countersign_tests::{ControlPlane, HttpResponse, Postgres};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// All links that there are, newest first, as an administrator reads them.
async fn links(control: &ControlPlane, query: &str) -> Vec<Value> {
    let mut found: Vec<Value> = Vec::new();
    loop {
        let path = format!("/audit?limit=200&offset={}{query}", found.len());
        let page = control.api.get_as(control.human(), &path).await.expect(200);
        found.extend(page["data"].as_array().unwrap().iter().cloned());
        if page["pagination"]["hasMore"] == false {
            return found;
        }
    }
}

/// What `audit verify` says, and whether it is content.
fn verify(control: &ControlPlane) -> (String, bool) {
    let output = control.command(&["audit", "verify"]);
    (String::from_utf8(output.stdout).unwrap(), output.status.success())
}

/// That `audit verify` is content.
#[track_caller]
fn assert_whole(control: &ControlPlane) {
    let (said, good) = verify(control);
    assert!(good && said.lines().all(|line| line.contains(": ok, ")), "{said}");
}

/// A control plane on each engine.
async fn on_both(postgres: &Postgres) -> [ControlPlane; 2] {
    let setting = format!("database.url={}", postgres.database().await);
    [ControlPlane::start_with(&["database.url="]).await, ControlPlane::start_with(&[&setting]).await]
}

#[tokio::test]
async fn concurrent_actions_keep_the_chains_intact() {
    let postgres = Postgres::start().await;
    for control in on_both(&postgres).await {
        let role = |number| {
            let body = json!({ "name": format!("role {number}"), "permissions": [] });
            let path = control.path("/roles");
            let control = &control;
            async move { control.api.send_as(control.key(), "POST", &path, body).await.expect(201) }
        };
        let register = async |number| {
            let agent = countersign_tests::Agent::register(&control, &format!("agent {number}")).await;
            control.set_status(&agent.id, "suspended").await.expect(200);
        };
        tokio::join!(join_all((0..50).map(role)), join_all((0..25).map(register)));
        assert_whole(&control);
        let service = links(&control, &format!("&serviceId={}&action=role.created", control.service())).await;
        let places: BTreeSet<_> = service.iter().map(|link| link["sequence"].as_i64()).collect();
        assert_eq!((service.len(), places.len()), (50, 50));
        assert_eq!(links(&control, "&action=agent.registered").await.len(), 25);
        assert_eq!(links(&control, "&action=agent.status_changed").await.len(), 25);
    }
}

/// Whenever it is killed, what is there is recorded and what is recorded is there.
#[tokio::test]
async fn state_and_audit_agree_after_a_crash() {
    let postgres = Postgres::start().await;
    for mut control in on_both(&postgres).await {
        for round in 0..3 {
            let path = control.path("/roles");
            let (key, api) = (control.key().to_owned(), control.api.clone());
            let make = |number: usize| {
                let body = json!({ "name": format!("role {round} {number}"), "permissions": ["a"] });
                let request = api.request("POST", &path).bearer_auth(&key).json(&body);
                tokio::spawn(async move { HttpResponse::try_send(request).await.map(|answer| answer.status) })
            };
            let under_way: Vec<_> = (0..40).map(make).collect();
            tokio::time::sleep(std::time::Duration::from_millis(15 * (round + 1))).await;
            control.kill();
            let answered: Vec<_> = join_all(under_way).await.into_iter().map(Result::unwrap).collect();
            control.restart().await;
            let done = answered.iter().filter(|status| **status == Some(201)).count();
            let roles = control.api.get_as(control.key(), &control.path("/roles")).await.expect(200);
            let names = roles["data"].as_array().unwrap().iter().map(|role| role["name"].clone());
            let names: BTreeSet<_> = names.map(|name| name.to_string()).collect();
            let recorded = links(&control, "&action=role.created").await;
            let recorded: BTreeSet<_> = recorded.iter().map(|link| link["details"]["name"].to_string()).collect();
            assert_eq!(names, recorded, "round {round}");
            let begins = format!("\"role {round} ");
            assert!(names.iter().filter(|name| name.starts_with(&begins)).count() >= done, "what was answered is kept");
            assert_whole(&control);
        }
    }
}
