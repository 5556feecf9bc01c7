//! Tests who may read the audit, which data it never contains, and how a third party verifies an export.

use aws_lc_rs::digest::{SHA256, digest};
use countersign_tests::{Agent, ControlPlane, Postgres, Shell, control_plane::text};
use serde_json::{Value, json};
use std::{process::Stdio, time::Duration};

/// The hash of an entry as docs/run/audit.md describes it, computed from the API's response only.
fn hash(entry: &Value) -> String {
    let at: jiff::Timestamp = entry["at"].as_str().unwrap().parse().unwrap();
    let optional = |value: &Value| value.as_str().map(str::to_owned);
    let fields = [
        Some("countersign audit entry v1".to_owned()),
        Some(optional(&entry["serviceId"]).unwrap_or("deployment".to_owned())),
        Some(entry["sequence"].to_string()),
        Some(at.as_microsecond().to_string()),
        optional(&entry["action"]),
        optional(&entry["actor"]["kind"]),
        optional(&entry["actor"]["issuer"]),
        optional(&entry["actor"]["id"]),
        optional(&entry["address"]),
        optional(&entry["requestId"]),
        optional(&entry["agentId"]),
        optional(&entry["object"]["kind"]),
        optional(&entry["object"]["id"]),
        Some(entry["details"].to_string()),
        optional(&entry["previousHash"]),
    ];
    let encode = |field: &Option<String>| match field {
        Some(text) => format!("{}:{text},", text.len()),
        None => "-,".to_owned(),
    };
    hex::encode(digest(&SHA256, fields.iter().map(encode).collect::<String>().as_bytes()))
}

#[tokio::test]
async fn exported_hashes_can_be_recomputed_from_public_fields() {
    let control = ControlPlane::start_process().await;
    let agent = Agent::register(&control, "Ägent \"Ü\" \\").await;
    control.assign_new_role(&agent.id, "réader", &["read", "a<b&c"]).await;
    let output = control.command(&["audit", "export"]);
    assert!(output.status.success());
    let exported: Vec<Value> = output
        .stdout
        .split_inclusive(|byte| *byte == b'\n')
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert_eq!(exported.len(), 6, "{exported:?}");
    let mut chain_ends: std::collections::BTreeMap<String, (u64, String)> = std::collections::BTreeMap::new();
    for entry in &exported {
        assert_eq!(entry["hash"], hash(entry), "{entry}");
        let (length, previous_hash) = chain_ends.remove(&entry["serviceId"].to_string()).unwrap_or_default();
        assert_eq!(
            (&entry["previousHash"], &entry["sequence"]),
            (&json!(previous_hash), &json!(length + 1)),
            "{entry}"
        );
        chain_ends.insert(entry["serviceId"].to_string(), (length + 1, text(&entry["hash"])));
    }
    let mut listed = control.audit_entries("").await;
    let order = |entry: &Value| (entry["serviceId"].to_string(), entry["sequence"].as_i64());
    listed.sort_by_key(order);
    let mut sorted = exported.clone();
    sorted.sort_by_key(order);
    assert_eq!(listed, sorted, "the API and the export return the same entries");
    let (report, _) = control.verify_audit();
    assert!(
        chain_ends.values().all(|(length, hash)| report.contains(&format!(": ok, {length} entries, head {hash}"))),
        "{report}"
    );
    let single_chain = control.command(&["audit", "verify", "--service", control.service()]);
    assert_eq!(String::from_utf8(single_chain.stdout).unwrap().lines().count(), 1);
    let unknown_service = control.command(&["audit", "verify", "--service", "service_unknown"]);
    assert!(
        !unknown_service.status.success()
            && String::from_utf8_lossy(&unknown_service.stderr).contains("no audit chain")
    );
}

#[tokio::test]
async fn owners_read_the_audit_of_their_services_and_administrators_read_all() {
    let control = ControlPlane::start_process().await;
    let (owner, other_user) = (control.mint_human("olga"), control.mint_human("sven"));
    let created = control.api.send_as(&owner, "POST", "/services", json!({ "name": "olga's" })).await.expect(201);
    let service = text(&created["serviceId"]);
    let list = async |token: &str, query: &str| control.api.get_as(token, &format!("/audit{query}")).await;
    let page = list(&owner, &format!("?serviceId={service}")).await.expect(200);
    assert_eq!((&page["pagination"]["total"], &page["data"][0]["action"]), (&json!(1), &json!("service.created")));
    for (token, query) in [
        (&owner, String::new()),
        (&owner, format!("?serviceId={}", control.service())),
        (&other_user, format!("?serviceId={service}")),
    ] {
        assert_eq!(list(token, &query).await.error(), (403, "INSUFFICIENT_PERMISSIONS", "not_yours"), "{query}");
    }
    let all = control.audit_entries("").await;
    assert!(
        all.iter().any(|entry| entry["serviceId"] == service) && all.iter().any(|entry| entry["serviceId"].is_null())
    );
    assert!(
        all.is_sorted_by(|later, earlier| text(&later["at"]) >= text(&earlier["at"])),
        "entries are sorted newest first"
    );
    assert_eq!(list(control.human(), "?serviceId=service_unknown").await.status, 404);
}

#[tokio::test]
async fn filters_select_matching_entries() {
    let postgres = Postgres::start().await;
    for control in ControlPlane::start_on_both_engines(&postgres).await {
        let [first, second] = [Agent::register(&control, "one").await, Agent::register(&control, "other").await];
        let role = control.create_role("reader", &[]).await;
        for agent in [&first, &second] {
            control.assign(&agent.id, &role).await;
        }
        let actions = async |query: &str| {
            let entries = control.audit_entries(query).await;
            entries.iter().map(|entry| text(&entry["action"])).collect::<Vec<_>>()
        };
        assert_eq!(actions(&format!("&agentId={}", first.id)).await, ["role.assigned", "agent.registered"]);
        assert_eq!(actions("&action=role.assigned").await.len(), 2);
        let all = control.audit_entries("").await;
        let middle = text(&all[1]["at"]);
        assert_eq!(control.audit_entries(&format!("&since={middle}")).await, all[..2]);
        assert_eq!(control.audit_entries(&format!("&until={middle}")).await, all[2..]);
        let second = control.api.get_as(control.human(), "/audit?limit=1&offset=1").await.expect(200);
        assert_eq!((&second["data"][0], &second["pagination"]["hasMore"]), (&all[1], &json!(true)));
        for (query, field) in [("action=role.made", "action"), ("since=yesterday", "since"), ("until=&until=", "until")]
        {
            let response = control.api.get_as(control.human(), &format!("/audit?{query}")).await;
            assert_eq!(response.status, 400, "{query}");
            assert!(response.body["error"]["details"]["fields"][field].is_string(), "{}", response.body);
        }
    }
}

#[tokio::test]
async fn audit_contains_no_secret() {
    let control = ControlPlane::start_process().await;
    let agent = Agent::register(&control, "agent").await;
    let body = json!({
        "email": "private@example.org", "name": "second", "publicKey": agent.key.public_pem().unwrap(),
        "metadata": { "note": "planted-metadata" },
    });
    control.api.send_as(control.human(), "POST", "/auth/register", body).await.expect(201);
    let (key, token) = (control.create_key(control.service(), "full").await, agent.token().await);
    let path = format!("/audit?agentId={}", agent.id);
    control.api.get_as(control.human(), &path).await.expect(200);
    let export = String::from_utf8(control.command(&["audit", "export"]).stdout).unwrap();
    assert!(export.contains("service_key.created") && export.contains("agent.registered"));
    let secret_part = |key: &str| key["svc_sk_".len() + 26..].to_owned();
    let secrets =
        [secret_part(&key), secret_part(control.key()), token, control.human().to_owned(), control.master_key()];
    for secret in secrets.into_iter().chain(["planted-metadata".into(), "private@example.org".into()]) {
        assert!(secret.len() > 10 && !export.contains(&secret), "{secret}");
    }
    control.assert_audit_intact();
}

#[tokio::test]
async fn audit_list_command_shows_the_entries_that_the_human_user_may_read() {
    let control = ControlPlane::start_process().await;
    let agent = Agent::register(&control, "agent").await;
    let mut shell = Shell::with_env(&control, &["URL", "CA", "SERVICE_ID", "HUMAN_TOKEN"]);
    let by_agent =
        shell.json(&["audit", "list", "--all-services", "--agent", &agent.id, "--action", "agent.registered"]);
    assert_eq!(by_agent.as_array().unwrap().len(), 1);
    let (code, error) = shell.failure(&["audit", "list", "--action", "role.made"]);
    assert!(code == 2 && error.contains("`action` must be one of"), "{code} {error}");
    shell.export("COUNTERSIGN_HUMAN_TOKEN", &control.mint_human("sven"));
    assert_eq!(shell.failure(&["audit", "list"]).0, 3);
}

/// The export is larger than a pipe buffer, so writing the export blocks for longer than the timeout of a request's transaction.
#[tokio::test]
async fn export_waits_for_a_slow_reader() {
    const ENTRIES: usize = 200;
    let control = ControlPlane::start_process().await;
    for number in 0..ENTRIES {
        control.create_role(&format!("role {number}"), &[]).await;
    }
    let export = control.prepare(&["audit", "export"]).stdout(Stdio::piped()).spawn().unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let output = export.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(std::str::from_utf8(&output.stdout).unwrap().lines().count() > ENTRIES);
}
