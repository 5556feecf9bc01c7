//! `audit verify` detects changes by an attacker who can write the database but does not have the master key, and names
//! the first broken entry.

use aws_lc_rs::digest::{SHA256, digest};
use countersign_tests::{Agent, ControlPlane, Database, Postgres};
use futures_util::future::join_all;

/// Saves copies of tables in the database.
pub(super) async fn save(database: &mut Database, tables: [&str; 2]) {
    for table in tables {
        database.execute(&format!("CREATE TABLE saved_{table} AS SELECT * FROM {table}")).await;
    }
}

/// Replaces the rows of tables with those that were saved.
pub(super) async fn restore(database: &mut Database, tables: [&str; 2]) {
    for table in tables {
        database.execute(&format!("DELETE FROM {table}")).await;
        database.execute(&format!("INSERT INTO {table} SELECT * FROM saved_{table}")).await;
    }
}

/// Writes entries to the audit chains of two services and of the Countersign deployment. Returns the id of the second service.
pub(super) async fn write_entries(control: &ControlPlane) -> String {
    let role = control.create_role("one", &["a"]).await;
    control.create_role("two", &["b"]).await;
    let agent = Agent::register(control, "agent").await;
    control.assign(&agent.id, &role).await;
    let (other, _) = control.create_service(serde_json::json!({ "name": "other" })).await;
    control.assert_audit_intact();
    other
}

/// Asserts that `audit verify` fails and prints the text `expected`.
#[track_caller]
pub(super) fn assert_reported(control: &ControlPlane, expected: &str) {
    let (report, valid) = control.verify_audit();
    assert!(!valid && report.contains(expected), "expected {expected}\n{report}");
}

/// Statements that tamper with the database, with the expected report: chain, entry and reason.
fn tampering_cases(service: &str, other: &str) -> Vec<(String, String)> {
    let entry = |sequence: u8| format!("chain = '{service}' AND sequence = {sequence}");
    let report = |sequence: u8, reason: &str| format!("{service}: broken at entry {sequence}: {reason}");
    let (changed, missing) = ("its content does not match its hash", "the entry is missing");
    let (unlinked, forged) = ("its previous hash is not", "its MAC was not made with the master key");
    let end = "the end of the chain does not match its head";
    let zeros = "0".repeat(64);
    let mut tampering_cases = vec![
        (format!("DELETE FROM audit_entries WHERE {}", entry(3)), report(3, missing)),
        (format!("DELETE FROM audit_entries WHERE {}", entry(1)), report(1, missing)),
        (format!("UPDATE audit_entries SET hash = '{zeros}' WHERE {}", entry(2)), report(2, changed)),
        (format!("UPDATE audit_entries SET mac = '{zeros}' WHERE {}", entry(2)), report(2, forged)),
        // The last entry of a chain is removed, without and with a change of the chain's head (its length and last hash).
        (format!("DELETE FROM audit_entries WHERE {}", entry(5)), report(5, end)),
        (
            format!(
                "DELETE FROM audit_entries WHERE {}; UPDATE audit_heads SET length = 4, \
                 hash = (SELECT hash FROM audit_entries WHERE {four}), mac = (SELECT mac FROM audit_entries WHERE {four}) \
                 WHERE chain = '{service}'",
                entry(5),
                four = entry(4)
            ),
            report(5, end),
        ),
        (format!("DELETE FROM audit_heads WHERE chain = '{service}'"), report(6, end)),
        (
            format!(
                "DELETE FROM audit_heads WHERE chain = '{service}'; DELETE FROM audit_entries WHERE chain = '{service}'"
            ),
            report(1, missing),
        ),
        // Two entries of a chain are swapped.
        (
            format!(
                "UPDATE audit_entries SET sequence = 99 WHERE {}; UPDATE audit_entries SET sequence = 2 WHERE {}; \
                 UPDATE audit_entries SET sequence = 3 WHERE chain = '{service}' AND sequence = 99",
                entry(2),
                entry(3)
            ),
            report(2, changed),
        ),
        // A copy of an entry is appended to a chain, or inserted before its first entry.
        (copy_entry_sql(&entry(5), "chain", "6"), report(6, changed)),
        (copy_entry_sql(&entry(5), "chain", "0"), report(1, missing)),
        // The last entry is moved to the end of another chain, which breaks both chains.
        (format!("UPDATE audit_entries SET chain = '{other}', sequence = 3 WHERE {}", entry(5)), report(5, end)),
        (
            format!("UPDATE audit_entries SET chain = '{other}', sequence = 3 WHERE {}", entry(5)),
            format!("{other}: broken at entry 3: {changed}"),
        ),
        // An entry is replaced by an entry of another chain.
        (
            format!(
                "DELETE FROM audit_entries WHERE {}; UPDATE audit_entries SET chain = '{service}' WHERE chain = 'deployment' AND sequence = 2",
                entry(2)
            ),
            report(2, changed),
        ),
        (format!("UPDATE audit_entries SET previous_hash = '' WHERE {}", entry(2)), report(2, changed)),
    ];
    let columns = ["action", "actor_kind", "actor_issuer", "actor_id", "address", "request_id", "agent_id", "details"];
    let set = |column| (format!("UPDATE audit_entries SET {column} = 'x' WHERE {}", entry(4)), report(4, changed));
    tampering_cases.extend(columns.map(set));
    tampering_cases.push((format!("UPDATE audit_entries SET at = at + 1 WHERE {}", entry(4)), report(4, changed)));
    tampering_cases.push((forge_entry_sql(&entry(2), service), report(2, unlinked)));
    tampering_cases
}

/// SQL that copies an entry to another chain or sequence number.
pub(super) fn copy_entry_sql(condition: &str, chain: &str, sequence: &str) -> String {
    let columns = "at, action, actor_kind, actor_issuer, actor_id, address, request_id, agent_id, object_kind, object_id, \
                details, previous_hash, hash, mac";
    format!(
        "INSERT INTO audit_entries (chain, sequence, {columns}) SELECT {chain}, {sequence}, {columns} FROM audit_entries WHERE {condition}"
    )
}

/// SQL that replaces an entry with a forged one, which has a correct hash but a wrong MAC and previous hash.
fn forge_entry_sql(condition: &str, service: &str) -> String {
    let fields = ["countersign audit entry v1", service, "2", "1", "role.created", "system"];
    let field = |text: &&str| format!("{}:{text},", text.len());
    let encoded: String = fields.iter().map(field).collect();
    let hash = hex::encode(digest(&SHA256, format!("{encoded}-,-,-,-,-,-,-,2:{{}},0:,").as_bytes()));
    format!(
        "UPDATE audit_entries SET at = 1, action = 'role.created', actor_kind = 'system', actor_issuer = NULL, actor_id = NULL, \
         address = NULL, request_id = NULL, agent_id = NULL, object_kind = NULL, object_id = NULL, details = '{{}}', \
         previous_hash = '', hash = '{hash}' WHERE {condition}"
    )
}

#[tokio::test]
async fn audit_verify_reports_every_kind_of_tampering() {
    let postgres = Postgres::start().await;
    for mut control in ControlPlane::start_on_both_engines(&postgres).await {
        let other = write_entries(&control).await;
        control.kill();
        let mut database = Database::connect_to_write(&control).await;
        save(&mut database, ["audit_entries", "audit_heads"]).await;
        for (statement, expected) in tampering_cases(control.service(), &other) {
            database.execute(&statement).await;
            assert_reported(&control, &expected);
            restore(&mut database, ["audit_entries", "audit_heads"]).await;
            control.assert_audit_intact();
        }
    }
}

/// After tampering, the server still writes new entries, but the new entries do not hide that the chain was truncated.
#[tokio::test]
async fn later_entries_do_not_repair_a_tampered_chain() {
    let postgres = Postgres::start().await;
    for control in ControlPlane::start_on_both_engines(&postgres).await {
        let other = write_entries(&control).await;
        let mut database = Database::connect_to_write(&control).await;
        let service = control.service();
        database.execute(&format!("DELETE FROM audit_entries WHERE chain = '{service}' AND sequence = 5")).await;
        let last = format!("SELECT hash FROM audit_entries WHERE chain = '{service}' AND sequence = 4");
        let reset_head = format!("UPDATE audit_heads SET length = 4, hash = ({last}) WHERE chain = '{service}'");
        database.execute(&reset_head).await;
        database.execute(&format!("DELETE FROM audit_heads WHERE chain = '{other}'")).await;
        control.create_role("three", &[]).await;
        control.create_key(&other, "sync").await;
        assert_reported(&control, &format!("{service}: broken at entry 6: "));
        assert_reported(&control, &format!("{other}: broken at entry 4: "));
        assert_reported(&control, "deployment: ok, ");
        assert!(
            control.log().contains("run `audit verify`"),
            "the log reports the tampering when the next entry is written"
        );
    }
}

/// Tampering with the end of a chain does not block management actions, and `audit verify` reports it permanently.
#[tokio::test]
async fn actions_are_still_audited_after_tampering_with_the_end_of_a_chain() {
    let postgres = Postgres::start().await;
    for control in ControlPlane::start_on_both_engines(&postgres).await {
        write_entries(&control).await;
        let (mut database, service) = (Database::connect_to_write(&control).await, control.service());
        let last =
            format!("chain = '{service}' AND sequence = (SELECT length FROM audit_heads WHERE chain = '{service}')");
        let head = |length: &str| format!("UPDATE audit_heads SET length = {length} WHERE chain = '{service}'");
        for (number, statement) in
            [copy_entry_sql(&last, "chain", "sequence + 1"), head("1"), head("9223372036854775807"), head("-1")]
                .into_iter()
                .enumerate()
        {
            database.execute(&statement).await;
            control.create_role(&format!("after-{number}"), &[]).await;
            assert_reported(&control, &format!("{service}: broken at entry "));
        }
        database.execute(&format!("DELETE FROM audit_entries WHERE chain = '{service}' AND sequence > 5")).await;
        control.create_role("last", &[]).await;
        assert_reported(&control, &format!("{service}: broken at entry 7: "));
    }
}

/// If other audit chains exist, a missing chain of the Countersign deployment is not started again, because a new chain
/// would hide the removed entries.
#[tokio::test]
async fn removed_deployment_chain_is_not_started_again() {
    let postgres = Postgres::start().await;
    for mut control in ControlPlane::start_on_both_engines(&postgres).await {
        write_entries(&control).await;
        control.kill();
        let mut database = Database::connect_to_write(&control).await;
        database.execute("DELETE FROM audit_entries WHERE chain = 'deployment'").await;
        database.execute("DELETE FROM audit_heads WHERE chain = 'deployment'").await;
        control.restart().await;
        assert!(control.log().contains("this audit chain was removed"), "{}", control.log());
        assert_reported(&control, "deployment: broken at entry 1: the entry is missing");
        Agent::register(&control, "later").await;
        assert_reported(&control, "deployment: broken at entry 1: a chain cannot start");
    }
}

/// The first start with a database without an audit log creates the chains of the audit log. Later starts do not create
/// the chains again.
#[tokio::test]
async fn audit_of_an_existing_database_starts_once() {
    let postgres = Postgres::start().await;
    for mut control in ControlPlane::start_on_both_engines(&postgres).await {
        write_entries(&control).await;
        control.kill();
        let mut database = Database::connect_to_write(&control).await;
        database.execute("DELETE FROM audit_entries; DELETE FROM audit_heads").await;
        let (report, valid) = control.verify_audit();
        assert!(!valid && report.lines().count() == 3 && !report.contains(": ok, "), "{report}");
        control.restart().await;
        control.assert_audit_intact();
        let first_entries = control.audit_entries("&action=audit.began").await;
        assert_eq!((first_entries.len(), &first_entries[0]["actor"]["kind"]), (3, &serde_json::json!("system")));
        control.kill();
        database.execute(&format!("DELETE FROM audit_entries WHERE chain = '{}'", control.service())).await;
        database.execute(&format!("DELETE FROM audit_heads WHERE chain = '{}'", control.service())).await;
        control.restart().await;
        assert_reported(&control, &format!("{}: broken at entry 1: ", control.service()));
    }
}

#[tokio::test]
async fn audit_verify_requires_the_right_master_key() {
    let mut control = ControlPlane::start_process().await;
    control.kill();
    let refused = control.command(&["--set", &format!("secrets.master_key={}", "ab".repeat(32)), "audit", "verify"]);
    assert!(!refused.status.success() && refused.stdout.is_empty());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("master key"), "{refused:?}");
    let empty_folder = tempfile::tempdir().unwrap();
    let setting = format!("data_dir={}", empty_folder.path().display());
    assert!(!control.command(&["--set", &setting, "audit", "verify"]).status.success());
    assert_eq!(std::fs::read_dir(empty_folder.path()).unwrap().count(), 0, "verification creates no file");
}

/// `audit verify` reads a chain in pages of 500 entries.
#[tokio::test]
async fn audit_verify_checks_a_long_chain_to_its_end() {
    let control = ControlPlane::start_process_with(&["quotas.keys_per_service=2000"]).await;
    for _ in 0..21 {
        join_all((0..50).map(|_| control.create_key(control.service(), "sync"))).await;
    }
    let (report, valid) = control.verify_audit();
    // The chain has 1052 entries: one about the creation of the service, one about its first key, and 1050 about further keys.
    assert!(valid && report.contains(&format!("{}: ok, 1052 entries, ", control.service())), "{report}");
    let exported = control.command(&["audit", "export", "--service", control.service()]);
    let lines = String::from_utf8(exported.stdout).unwrap();
    assert_eq!(lines.lines().count(), 1052);
    let mut database = Database::connect_to_write(&control).await;
    for sequence in [1001, 501, 500] {
        let condition = format!("chain = '{}' AND sequence = {sequence}", control.service());
        database.execute(&format!("UPDATE audit_entries SET action = 'x' WHERE {condition}")).await;
        assert_reported(&control, &format!(": broken at entry {sequence}: "));
    }
    let exported = control.command(&["audit", "export", "--service", control.service()]);
    assert_eq!(exported.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(exported.stdout).unwrap().lines().count(),
        499,
        "the export ends before the first broken entry"
    );
}
