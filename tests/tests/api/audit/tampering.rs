//! Whoever can write the database, but has not the master key, is found out: the first broken link is named.

use super::{assert_whole, links, on_both, verify};
use aws_lc_rs::digest::{SHA256, digest};
use countersign_tests::{Agent, ControlPlane, Postgres};
use futures_util::future::join_all;
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};

/// The database, open for whatever anybody might do to it.
async fn open(control: &ControlPlane) -> AnyConnection {
    sqlx::any::install_default_drivers();
    AnyConnection::connect(&control.database_url()).await.expect("the database opens")
}

async fn run(database: &mut AnyConnection, sql: &str) {
    let done = database.execute(AssertSqlSafe(sql)).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Chains of a service and of the deployment with some links each; another service.
async fn fill(control: &ControlPlane) -> String {
    let role = control.create_role("one", &["a"]).await;
    control.create_role("two", &["b"]).await;
    let agent = Agent::register(control, "agent").await;
    control.assign(&agent.id, &role).await;
    let (other, _) = control.create_service(serde_json::json!({ "name": "other" })).await;
    assert_whole(control);
    other
}

/// What is done to the database, and what must be said: of which chain, at which link, and why.
fn deeds(service: &str, other: &str) -> Vec<(String, String)> {
    let at = |sequence: u8| format!("chain = '{service}' AND sequence = {sequence}");
    let said = |sequence: u8, why: &str| format!("{service}: broken at entry {sequence}: {why}");
    let (changed, missing) = ("its content does not match its hash", "the entry is missing");
    let (unlinked, forged) = ("its previous hash is not", "its MAC was not made with the master key");
    let end = "the end of the chain does not match its head";
    let mut deeds = vec![
        (format!("DELETE FROM audit_links WHERE {}", at(3)), said(3, missing)),
        (format!("DELETE FROM audit_links WHERE {}", at(1)), said(1, missing)),
        (format!("UPDATE audit_links SET hash = '{}' WHERE {}", "0".repeat(64), at(2)), said(2, changed)),
        (format!("UPDATE audit_links SET mac = '{}' WHERE {}", "0".repeat(64), at(2)), said(2, forged)),
        // The tail, without and with the head set back.
        (format!("DELETE FROM audit_links WHERE {}", at(5)), said(5, end)),
        (
            format!(
                "DELETE FROM audit_links WHERE {}; UPDATE audit_heads SET length = 4, \
                 hash = (SELECT hash FROM audit_links WHERE {four}), mac = (SELECT mac FROM audit_links WHERE {four}) \
                 WHERE chain = '{service}'",
                at(5),
                four = at(4)
            ),
            said(5, end),
        ),
        (format!("DELETE FROM audit_heads WHERE chain = '{service}'"), said(6, end)),
        (
            format!(
                "DELETE FROM audit_heads WHERE chain = '{service}'; DELETE FROM audit_links WHERE chain = '{service}'"
            ),
            said(1, missing),
        ),
        // Two links change places.
        (
            format!(
                "UPDATE audit_links SET sequence = 99 WHERE {}; UPDATE audit_links SET sequence = 2 WHERE {}; \
                 UPDATE audit_links SET sequence = 3 WHERE chain = '{service}' AND sequence = 99",
                at(2),
                at(3)
            ),
            said(2, changed),
        ),
        // A copy of a link, as a sixth; a link of before the beginning.
        (copy(&at(5), "chain", "6"), said(6, changed)),
        (copy(&at(5), "chain", "0"), said(1, missing)),
        // The last link goes to the end of another chain, and both lack something.
        (format!("UPDATE audit_links SET chain = '{other}', sequence = 3 WHERE {}", at(5)), said(5, end)),
        (
            format!("UPDATE audit_links SET chain = '{other}', sequence = 3 WHERE {}", at(5)),
            format!("{other}: broken at entry 3: {changed}"),
        ),
        // A link of another chain in the place of one, whole.
        (
            format!(
                "DELETE FROM audit_links WHERE {}; UPDATE audit_links SET chain = '{service}' WHERE chain = 'deployment' AND sequence = 2",
                at(2)
            ),
            said(2, changed),
        ),
        (format!("UPDATE audit_links SET previous = '' WHERE {}", at(2)), said(2, changed)),
    ];
    let columns = ["act", "actor_kind", "actor_issuer", "actor_id", "address", "request_id", "agent_id", "details"];
    for column in columns {
        deeds.push((format!("UPDATE audit_links SET {column} = 'x' WHERE {}", at(4)), said(4, changed)));
    }
    deeds.push((format!("UPDATE audit_links SET at = at + 1 WHERE {}", at(4)), said(4, changed)));
    deeds.push((rehash(&at(2), service), said(2, unlinked)));
    deeds
}

/// A copy of a link with other values for where it is.
fn copy(which: &str, chain: &str, sequence: &str) -> String {
    let rest = "at, act, actor_kind, actor_issuer, actor_id, address, request_id, agent_id, object_kind, object_id, \
                details, previous, hash, mac";
    format!(
        "INSERT INTO audit_links (chain, sequence, {rest}) SELECT {chain}, {sequence}, {rest} FROM audit_links WHERE {which}"
    )
}

/// A link that somebody hashed anew, as anybody can: it fits itself, and nothing else.
fn rehash(which: &str, service: &str) -> String {
    let fields = ["countersign audit link v1", service, "2", "1", "role.created", "system"];
    let field = |text: &&str| format!("{}:{text},", text.len());
    let written: String = fields.iter().map(field).collect();
    let hash = hex::encode(digest(&SHA256, format!("{written}-,-,-,-,-,-,-,2:{{}},0:,").as_bytes()));
    format!(
        "UPDATE audit_links SET at = 1, act = 'role.created', actor_kind = 'system', actor_issuer = NULL, actor_id = NULL, \
         address = NULL, request_id = NULL, agent_id = NULL, object_kind = NULL, object_id = NULL, details = '{{}}', \
         previous = '', hash = '{hash}' WHERE {which}"
    )
}

#[tokio::test]
async fn audit_verify_reports_every_kind_of_tampering() {
    let postgres = Postgres::start().await;
    for mut control in on_both(&postgres).await {
        let other = fill(&control).await;
        control.kill();
        let mut database = open(&control).await;
        for table in ["audit_links", "audit_heads"] {
            run(&mut database, &format!("CREATE TABLE kept_{table} AS SELECT * FROM {table}")).await;
        }
        for (deed, expected) in deeds(control.service(), &other) {
            run(&mut database, &deed).await;
            let (said, good) = verify(&control);
            assert!(
                !good && said.lines().any(|line| line.starts_with(&expected)),
                "{deed}\nmust say {expected}\n{said}"
            );
            for table in ["audit_links", "audit_heads"] {
                run(&mut database, &format!("DELETE FROM {table}")).await;
                run(&mut database, &format!("INSERT INTO {table} SELECT * FROM kept_{table}")).await;
            }
            assert_whole(&control);
        }
    }
}

/// Acts go on, but nothing that is written later makes good what was done to the end of a chain.
#[tokio::test]
async fn later_entries_do_not_repair_a_tampered_chain() {
    let postgres = Postgres::start().await;
    for control in on_both(&postgres).await {
        let other = fill(&control).await;
        let mut database = open(&control).await;
        let service = control.service();
        run(&mut database, &format!("DELETE FROM audit_links WHERE chain = '{service}' AND sequence = 5")).await;
        let last = format!("SELECT hash FROM audit_links WHERE chain = '{service}' AND sequence = 4");
        let back = format!("UPDATE audit_heads SET length = 4, hash = ({last}) WHERE chain = '{service}'");
        run(&mut database, &back).await;
        run(&mut database, &format!("DELETE FROM audit_heads WHERE chain = '{other}'")).await;
        control.create_role("three", &[]).await;
        control.create_key(&other, "sync").await;
        let (said, good) = verify(&control);
        assert!(!good && said.contains(&format!("{service}: broken at entry 6: ")), "{said}");
        assert!(said.contains(&format!("{other}: broken at entry 4: ")) && said.contains("deployment: ok, "), "{said}");
        assert!(control.log().contains("run `audit verify`"), "the log says it at once");
    }
}

/// Whatever was done to the end of a chain, acts go on, and it is noticed for ever.
#[tokio::test]
async fn actions_are_still_recorded_after_tampering_with_the_end_of_a_chain() {
    let postgres = Postgres::start().await;
    for control in on_both(&postgres).await {
        fill(&control).await;
        let (mut database, service) = (open(&control).await, control.service());
        let last =
            format!("chain = '{service}' AND sequence = (SELECT length FROM audit_heads WHERE chain = '{service}')");
        let head = |length: &str| format!("UPDATE audit_heads SET length = {length} WHERE chain = '{service}'");
        for (number, deed) in [copy(&last, "chain", "sequence + 1"), head("1"), head("9223372036854775807"), head("-1")]
            .into_iter()
            .enumerate()
        {
            run(&mut database, &deed).await;
            control.create_role(&format!("after-{number}"), &[]).await;
            let (said, good) = verify(&control);
            assert!(!good && said.contains(&format!("{service}: broken at entry ")), "{deed}\n{said}");
        }
        run(&mut database, &format!("DELETE FROM audit_links WHERE chain = '{service}' AND sequence > 5")).await;
        control.create_role("last", &[]).await;
        let (said, good) = verify(&control);
        assert!(!good && said.contains(&format!("{service}: broken at entry 7: ")), "{said}");
    }
}

/// The chain of the deployment is not begun anew beside others, which would hide what was in it.
#[tokio::test]
async fn removed_deployment_chain_is_not_started_again() {
    let postgres = Postgres::start().await;
    for mut control in on_both(&postgres).await {
        fill(&control).await;
        control.kill();
        let mut database = open(&control).await;
        run(&mut database, "DELETE FROM audit_links WHERE chain = 'deployment'").await;
        run(&mut database, "DELETE FROM audit_heads WHERE chain = 'deployment'").await;
        control.restart().await;
        assert!(control.log().contains("this audit chain was removed"), "{}", control.log());
        let (said, good) = verify(&control);
        assert!(!good && said.contains("deployment: broken at entry 1: the entry is missing"), "{said}");
        Agent::register(&control, "later").await;
        let (said, good) = verify(&control);
        assert!(!good && said.contains("deployment: broken at entry 1: no chain starts"), "{said}");
    }
}

/// A database of before the audit: it begins, for what is there, once.
#[tokio::test]
async fn audit_of_an_existing_database_starts_once() {
    let postgres = Postgres::start().await;
    for mut control in on_both(&postgres).await {
        fill(&control).await;
        control.kill();
        let mut database = open(&control).await;
        run(&mut database, "DELETE FROM audit_links; DELETE FROM audit_heads").await;
        let (said, good) = verify(&control);
        assert!(!good && said.lines().count() == 3 && !said.contains(": ok, "), "{said}");
        control.restart().await;
        assert_whole(&control);
        let began = links(&control, "&action=audit.began").await;
        assert_eq!((began.len(), &began[0]["actor"]["kind"]), (3, &serde_json::json!("system")));
        control.kill();
        run(&mut database, &format!("DELETE FROM audit_links WHERE chain = '{}'", control.service())).await;
        run(&mut database, &format!("DELETE FROM audit_heads WHERE chain = '{}'", control.service())).await;
        control.restart().await;
        let (said, good) = verify(&control);
        assert!(!good && said.contains(&format!("{}: broken at entry 1: ", control.service())), "{said}");
    }
}

#[tokio::test]
async fn audit_verify_requires_the_right_master_key() {
    let mut control = ControlPlane::start().await;
    control.kill();
    let refused = control.command(&["--set", &format!("secrets.master_key={}", "ab".repeat(32)), "audit", "verify"]);
    assert!(!refused.status.success() && refused.stdout.is_empty());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("master key"), "{refused:?}");
    let nowhere = tempfile::tempdir().unwrap();
    let setting = format!("data_dir={}", nowhere.path().display());
    assert!(!control.command(&["--set", &setting, "audit", "verify"]).status.success());
    assert_eq!(std::fs::read_dir(nowhere.path()).unwrap().count(), 0, "nothing is made by looking");
}

/// A chain is read in strides of five hundred links.
#[tokio::test]
async fn audit_verify_checks_a_long_chain_to_its_end() {
    let control = ControlPlane::start().await;
    for _ in 0..21 {
        join_all((0..50).map(|_| control.create_key(control.service(), "sync"))).await;
    }
    let (said, good) = verify(&control);
    // Before them, the service was made, and its first key.
    assert!(good && said.contains(&format!("{}: ok, 1052 entries, ", control.service())), "{said}");
    let exported = control.command(&["audit", "export", "--service", control.service()]);
    let lines = String::from_utf8(exported.stdout).unwrap();
    assert_eq!(lines.lines().count(), 1052);
    let mut database = open(&control).await;
    for sequence in [1001, 501, 500] {
        let which = format!("chain = '{}' AND sequence = {sequence}", control.service());
        run(&mut database, &format!("UPDATE audit_links SET act = 'x' WHERE {which}")).await;
        let (said, good) = verify(&control);
        assert!(!good && said.contains(&format!(": broken at entry {sequence}: ")), "{said}");
    }
    let exported = control.command(&["audit", "export", "--service", control.service()]);
    assert_eq!(exported.status.code(), Some(1));
    assert_eq!(String::from_utf8(exported.stdout).unwrap().lines().count(), 499, "up to the first that is broken");
}
