//! `audit archive` moves old entries to a file, and `audit verify` verifies files and database together.

use super::tampering::{assert_reported, copy_entry_sql, restore, save, write_entries};
use countersign_tests::{ControlPlane, Database, Postgres};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// A date after all entries.
const LATER: &str = "2100-01-01";

/// A time before all entries.
const EARLIER: &str = "2000-01-01T00:00:00Z";

fn archive(control: &ControlPlane, before: &str, file: &Path) -> Result<String, String> {
    let output = control.command(&["audit", "archive", "--before", before, "--output", file.to_str().unwrap()]);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// Runs `audit verify` with archives. Returns its output and whether it succeeded.
fn verify_with(control: &ControlPlane, archives: &[&PathBuf]) -> (String, bool) {
    let arguments = archives.iter().flat_map(|file| ["--archive", file.to_str().unwrap()]);
    let output = control.command(&["audit", "verify"].into_iter().chain(arguments).collect::<Vec<_>>());
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (text, output.status.success())
}

fn export(control: &ControlPlane) -> BTreeSet<String> {
    let output = control.command(&["audit", "export"]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn lines(file: &Path) -> BTreeSet<String> {
    fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect()
}

async fn sequences(database: &mut Database, chain: &str) -> Vec<String> {
    let sql = format!("SELECT CAST(sequence AS TEXT) FROM audit_entries WHERE chain = '{chain}' ORDER BY sequence");
    database.text_column(&sql).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn archives_and_database_have_all_entries_and_are_verified_together() {
    let postgres = Postgres::start().await;
    for mut control in ControlPlane::start_on_both_engines(&postgres).await {
        let other = write_entries(&control).await;
        let mut database = Database::connect_to_write(&control).await;
        let [first, second, third] = [1, 2, 3].map(|number| control.folder().join(format!("archive-{number}.jsonl")));
        let all = export(&control);
        let report = archive(&control, EARLIER, &first).unwrap();
        assert!(report.contains("no file was written") && !first.exists(), "{report}");
        assert_eq!(export(&control), all);

        let report = archive(&control, LATER, &first).unwrap();
        assert!(report.contains("SHA-256 of the file: "), "{report}");
        assert_eq!(sequences(&mut database, control.service()).await, ["5"], "the last entry remains");
        let remaining = export(&control);
        assert!(lines(&first).is_disjoint(&remaining) && lines(&first).union(&remaining).count() > all.len());
        assert!(all.is_subset(&lines(&first).union(&remaining).cloned().collect()));
        control.assert_audit_intact();
        let (report, valid) = verify_with(&control, &[&first]);
        assert!(valid && report.contains("ok, 5 entries, 4 of them archived"), "{report}");
        assert!(archive(&control, LATER, &first).unwrap_err().contains("exists"), "an archive is not overwritten");
        let archived = control.audit_entries("&action=audit.archived").await;
        let sha256 = hex::encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &fs::read(&first).unwrap()));
        assert_eq!(archived[0]["details"]["sha256"], sha256, "{archived:?}");

        control.create_role("three", &[]).await;
        control.terminate().await;
        control.restart().await;
        control.create_role("four", &[]).await;
        archive(&control, LATER, &second).unwrap();
        assert_eq!(sequences(&mut database, control.service()).await, ["7"]);
        control.assert_audit_intact();
        assert!(verify_with(&control, &[&first, &second]).1);
        for incomplete in [&[&first][..], &[&second], &[&second, &first], &[&first, &second, &second]] {
            let (report, valid) = verify_with(&control, incomplete);
            assert!(!valid && (report.contains("do not end") || report.contains("does not follow")), "{report}");
        }
        let content = fs::read_to_string(&first).unwrap();
        fs::write(&third, content.replacen("role.created", "role.deleted", 1)).unwrap();
        let (report, valid) = verify_with(&control, &[&third, &second]);
        assert!(!valid && report.contains("does not match its hash"), "{report}");

        // Only the archive shows that a service was deleted from the database together with its chain.
        for (table, column) in [
            ("audit_entries", "chain"),
            ("audit_heads", "chain"),
            ("audit_floors", "chain"),
            ("service_keys", "service_id"),
            ("services", "id"),
        ] {
            database.execute(&format!("DELETE FROM {table} WHERE {column} = '{other}'")).await;
        }
        control.assert_audit_intact();
        let (report, valid) = verify_with(&control, &[&first, &second]);
        assert!(!valid && report.contains(&format!("{other}: the archives have entries")), "{report}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_archive_loses_nothing_and_is_completed_by_the_next_one() {
    let postgres = Postgres::start().await;
    for control in ControlPlane::start_on_both_engines(&postgres).await {
        write_entries(&control).await;
        let (mut database, service) = (Database::connect_to_write(&control).await, control.service());
        let [first, second] = [1, 2].map(|number| control.folder().join(format!("archive-{number}.jsonl")));
        // An earlier run has been killed while it wrote the file, and left this part of it.
        fs::write(control.folder().join("archive-1.jsonl.part"), "incomplete").unwrap();
        database.execute("CREATE TABLE saved AS SELECT * FROM audit_entries").await;
        archive(&control, LATER, &first).unwrap();
        // Restores some entries, as if the run had been killed while it deleted them.
        let restore = "INSERT INTO audit_entries SELECT * FROM saved WHERE sequence > 1 \
                       AND sequence <= (SELECT length FROM audit_floors f WHERE f.chain = saved.chain)";
        database.execute(restore).await;
        assert_eq!(sequences(&mut database, service).await, ["2", "3", "4", "5"]);
        control.assert_audit_intact();
        assert!(verify_with(&control, &[&first]).1);
        let entry = |sequence: u8| format!("chain = '{service}' AND sequence = {sequence}");
        database.execute(&format!("UPDATE audit_entries SET at = at + 1 WHERE {}", entry(3))).await;
        assert_reported(&control, &format!("{service}: broken at entry 3: "));
        let refused = archive(&control, LATER, &second).unwrap_err();
        assert!(refused.contains("Nothing was archived") && !second.exists(), "{refused}");
        database.execute(&format!("DELETE FROM audit_entries WHERE {}", entry(3))).await;
        assert_reported(&control, &format!("{service}: broken at entry 3: the entry is missing"));
        database.execute(&format!("DELETE FROM audit_entries WHERE {}", entry(2))).await;
        control.assert_audit_intact();

        let report = archive(&control, EARLIER, &second).unwrap();
        assert!(report.contains("Deleted from the database: ") && !report.contains(": 0 archived"), "{report}");
        assert_eq!(sequences(&mut database, service).await, ["5"]);
        assert!(verify_with(&control, &[&first]).1 && !second.exists());
        let left: Vec<_> = fs::read_dir(control.folder()).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert!(!left.iter().any(|name| name.to_str().unwrap().contains(".part")), "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_verify_reports_tampering_with_archived_chains() {
    let postgres = Postgres::start().await;
    for control in ControlPlane::start_on_both_engines(&postgres).await {
        let other = write_entries(&control).await;
        archive(&control, LATER, &control.folder().join("archive.jsonl")).unwrap();
        control.create_role("three", &[]).await;
        let (mut database, service) = (Database::connect_to_write(&control).await, control.service());
        save(&mut database, ["audit_entries", "audit_floors"]).await;
        let floor = |change: &str| format!("UPDATE audit_floors SET {change} WHERE chain = '{service}'");
        let changed = "broken at entry 1: the record of its archived entries was changed";
        for (statement, expected) in [
            (format!("DELETE FROM audit_floors WHERE chain = '{service}'"), "broken at entry 1: the entry is missing"),
            (floor("length = 5"), changed),
            (floor("length = 0"), changed),
            (floor("hash = 'x'"), changed),
            (floor(&format!("mac = (SELECT mac FROM audit_floors WHERE chain = '{other}')")), changed),
            (
                format!("DELETE FROM audit_entries WHERE chain = '{service}' AND sequence = 5"),
                "broken at entry 5: the entry is missing",
            ),
            (
                copy_entry_sql(&format!("chain = '{service}' AND sequence = 5"), "chain", "4"),
                "broken at entry 4: its content does not match its hash",
            ),
        ] {
            database.execute(&statement).await;
            assert_reported(&control, &format!("{service}: {expected}"));
            restore(&mut database, ["audit_entries", "audit_floors"]).await;
            control.assert_audit_intact();
        }
    }
}
