//! Tests of the audit: each management action writes one entry to an audit chain, and `audit verify` detects tampering.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

mod actions;
mod archive;
mod reading;
mod tampering;

use countersign_tests::{ControlPlane, HttpResponse, Postgres, control_plane::text, http::texts};
use futures_util::future::join_all;
use serde_json::json;
use std::collections::BTreeSet;

/// A transaction contains both a change and its audit entry.
#[tokio::test]
async fn state_and_audit_agree_after_a_crash() {
    let postgres = Postgres::start().await;
    for mut control in ControlPlane::start_on_both_engines(&postgres).await {
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
            let roles = control.get("/roles").await.expect(200);
            let names: BTreeSet<_> = texts(&roles, "name").into_iter().map(str::to_owned).collect();
            let audited = control.audit_entries("&action=role.created").await;
            let audited: BTreeSet<_> = audited.iter().map(|entry| text(&entry["details"]["name"])).collect();
            assert_eq!(names, audited, "round {round}");
            let prefix = format!("role {round} ");
            assert!(
                names.iter().filter(|name| name.starts_with(&prefix)).count() >= acknowledged,
                "every acknowledged role exists after the crash"
            );
            control.assert_audit_intact();
        }
    }
}
