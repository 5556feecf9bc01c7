//! Lists with more entries than the server counts: all entries can be read, and no page reads all of them.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_process::{Clock as _, SystemClock};
use countersign_tests::{Agent, ControlPlane, Database, Postgres, Shell, bulk::numbers, http::items};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Number of entries that each list gets in the database.
const ENTRIES: usize = 10_300;

/// Number of entries that the server counts.
const COUNTED: usize = 10_000;

/// Number of entries that the server searches for those that match a filter.
const SEARCHED: usize = 5_000;

/// SQL for the digits of an id: different for each `n`, and smaller than the digits of ids that the control plane generates.
const DIGITS: &str = "'0000000000' || substr(CAST(10000000000000000 + n AS TEXT), 2)";

/// How much older than all others the inserted entries are, in microseconds: a day, after which housekeeping keeps them still.
const AGE: i64 = 24 * 60 * 60 * 1_000_000;

/// Inserts entries of all kinds. In the oldest entry, the agent is suspended or the audited action is `role.revoked`, unlike in all
/// others. Always ten entries have the same time.
async fn insert_entries(control: &ControlPlane, agent: &str, role: &str) {
    let mut database = Database::connect_to_write(control).await;
    let service = control.service();
    let time = format!("{} + n / 10", SystemClock.now().micros() - AGE);
    for sql in [
        format!(
            "INSERT INTO trust_feedback (id, agent_id, service_id, score, reason, metadata, created_at) \
             SELECT 'feedback_' || {DIGITS}, '{agent}', '{service}', 50000000, '', '{{}}', {time} FROM numbers"
        ),
        format!(
            "INSERT INTO audit_entries (chain, sequence, at, action, actor_kind, agent_id, details, previous_hash, hash, mac) \
             SELECT '{service}', 1000000 + n, {time}, CASE WHEN n = 1 THEN 'role.revoked' ELSE 'role.created' END, 'system', \
             '{agent}', '{{}}', '', '', '' FROM numbers"
        ),
        format!(
            "INSERT INTO agents (id, email, name, public_key, public_key_hash, status, cutoff, trust, metadata, created_at, \
             updated_at) SELECT 'agent_' || {DIGITS}, a.email, 'agent ' || n, a.public_key, a.public_key_hash, \
             CASE WHEN n = 1 THEN 'suspended' ELSE 'active' END, a.cutoff, a.trust, a.metadata, a.created_at, a.updated_at \
             FROM numbers JOIN agents a ON a.id = '{agent}'"
        ),
        format!(
            "INSERT INTO assignments (agent_id, role_id, service_id, assigned_at) \
             SELECT 'agent_' || {DIGITS}, '{role}', '{service}', {time} FROM numbers"
        ),
        format!(
            "INSERT INTO services (id, owner_issuer, owner_subject, name, created_at) \
             SELECT 'svc_' || {DIGITS}, '', '', 'other', {time} FROM numbers"
        ),
        format!(
            "INSERT INTO roles (id, service_id, name, description, permissions, created_revision, created_at) \
             SELECT 'role_' || {DIGITS}, 'svc_' || {DIGITS}, 'member', '', '[]', 0, {time} FROM numbers"
        ),
        format!(
            "INSERT INTO assignments (agent_id, role_id, service_id, assigned_at) \
             SELECT '{agent}', 'role_' || {DIGITS}, 'svc_' || {DIGITS}, {time} FROM numbers"
        ),
    ] {
        database.execute(&format!("{} {sql}", numbers(1, i64::try_from(ENTRIES).unwrap()))).await;
    }
}

/// Follows the cursors of a list. Returns all entries and the first page.
async fn read_all(control: &ControlPlane, credential: &str, path: &str) -> (Vec<Value>, Value) {
    let separator = if path.contains('?') { '&' } else { '?' };
    let (mut entries, mut first, mut cursor) = (Vec::new(), Value::Null, String::new());
    loop {
        let request = format!("{path}{separator}limit=200{cursor}");
        let page = control.api.get_as(credential, &request).await.expect(200);
        let pagination = &page["pagination"];
        assert_eq!(pagination["offset"], entries.len(), "{request}: {pagination}");
        entries.extend_from_slice(items(&page));
        assert!(pagination["total"].as_u64().unwrap() >= entries.len() as u64, "{request}: {pagination}");
        let next = pagination["nextCursor"].as_str().map(|next| format!("&cursor={next}"));
        assert_eq!(pagination["hasMore"], next.is_some(), "{request}: {pagination}");
        if first.is_null() {
            first = page;
        }
        let Some(next) = next else { return (entries, first) };
        cursor = next;
    }
}

fn assert_each_once(entries: &[Value], id: impl Fn(&Value) -> String, count: usize) {
    let ids: BTreeSet<_> = entries.iter().map(id).collect();
    assert_eq!((entries.len(), ids.len()), (count, count));
}

fn assert_total(page: &Value, total: usize) {
    let pagination = &page["pagination"];
    assert_eq!((&pagination["total"], &pagination["totalIsLowerBound"]), (&json!(total), &json!(true)), "{pagination}");
}

#[tokio::test]
async fn long_lists_can_be_read_completely() {
    let postgres = Postgres::start().await;
    let setting = format!("database.url={}", postgres.create_database().await);
    for settings in ["database.url=", &setting] {
        let control = ControlPlane::start_with(&[settings]).await;
        let agent = Agent::register(&control, "Agent").await;
        let role = control.assign_new_role(&agent.id, "reader", &[]).await;
        insert_entries(&control, &agent.id, &role).await;
        lists_are_complete(&control, &agent.id, &role).await;
        filters_find_single_entries(&control, &agent.id, &role).await;
        cursors_give_no_access(&control, &agent.id).await;
    }
}

async fn lists_are_complete(control: &ControlPlane, agent: &str, role: &str) {
    let (history, human) = (format!("/trust/agents/{agent}/history"), control.human());
    let id = |name: &'static str| move |entry: &Value| entry[name].to_string();
    let (feedback, first) = read_all(control, control.key(), &history).await;
    assert_each_once(&feedback, id("id"), ENTRIES);
    assert_total(&first, COUNTED);
    assert!(feedback.is_sorted_by_key(|entry| std::cmp::Reverse(entry["id"].to_string())), "newest first");
    for path in [control.path("/agents"), control.path(&format!("/agents?role={role}"))] {
        let (agents, first) = read_all(control, control.key(), &path).await;
        assert_each_once(&agents, id("id"), ENTRIES + 1);
        assert_total(&first, SEARCHED);
    }
    let (services, first) = read_all(control, human, &format!("/agents/{agent}/services")).await;
    assert_each_once(&services, id("serviceId"), ENTRIES + 1);
    assert_total(&first, SEARCHED);
    assert!(services.iter().all(|service| service["roles"].as_array().unwrap().len() == 1));
    let position = |entry: &Value| format!("{} {}", entry["serviceId"], entry["sequence"]);
    for (path, others) in
        [(format!("/audit?serviceId={}", control.service()), 4), (format!("/audit?agentId={agent}"), 2)]
    {
        let (entries, first) = read_all(control, human, &path).await;
        assert_each_once(&entries, position, ENTRIES + others);
        assert_total(&first, COUNTED);
    }
    let page = control.api.get_as(control.key(), &format!("{history}?offset={COUNTED}&limit=7")).await.expect(200);
    assert_eq!(page["data"], json!(feedback[COUNTED..COUNTED + 7]));
    assert_total(&page, COUNTED + 7);
    let shell = Shell::with_env(control, &["URL", "CA", "SERVICE_ID", "HUMAN_TOKEN"]);
    let listed = shell.json(&["role", "holders"]);
    assert_eq!(listed.as_array().unwrap().len(), ENTRIES + 1);
}

/// The server searches only a part of a list for each page, so a page can be empty although a later one has entries.
async fn filters_find_single_entries(control: &ControlPlane, agent: &str, role: &str) {
    let service = control.service();
    for filter in [
        "",
        &format!("&agentId={agent}"),
        &format!("&serviceId={service}"),
        &format!("&serviceId={service}&agentId={agent}"),
    ] {
        let path = format!("/audit?action=role.revoked{filter}");
        let (entries, first) = read_all(control, control.human(), &path).await;
        assert_eq!(entries.len(), 1, "{path}");
        assert_total(&first, 0);
    }
    for filter in [String::new(), format!("&role={role}")] {
        let path = control.path(&format!("/agents?status=suspended{filter}"));
        let (agents, first) = read_all(control, control.key(), &path).await;
        assert_eq!(agents.len(), 1, "{path}");
        assert_total(&first, 0);
    }
    let shell = Shell::with_env(control, &["URL", "CA", "SERVICE_ID", "HUMAN_TOKEN"]);
    let listed = shell.json(&["audit", "list", "--action", "role.revoked", "--limit", "1"]);
    assert_eq!(listed.as_array().unwrap().len(), 1);
}

/// A cursor selects entries only within the list of the request.
async fn cursors_give_no_access(control: &ControlPlane, agent: &str) {
    let owner = control.mint_human("olga");
    let (service, _) = control.create_service_of(&owner, json!({ "name": "olga's" })).await;
    let all = control.api.get_as(control.human(), "/audit?limit=1").await.expect(200);
    let cursor = all["pagination"]["nextCursor"].as_str().unwrap();
    let path = format!("/audit?serviceId={service}&cursor={cursor}");
    let own = control.api.get_as(&owner, &path).await.expect(200);
    assert!(items(&own).iter().all(|entry| entry["serviceId"] == service), "{own}");
    let other = control.api.get_as(&owner, &format!("/audit?cursor={cursor}")).await;
    assert_eq!(other.error().2, "not_yours");
    let foreign = control.api.get_as(control.key(), &format!("/trust/agents/{agent}/history?cursor={cursor}")).await;
    assert_eq!(foreign.error().1, "VALIDATION_ERROR");
}
