//! Tests of `backup`, which copies the embedded database to one file while a server writes to it.

use super::{assert_refused, files_in, open_file, path_in, succeed};
use countersign_tests::{ControlPlane, HttpResponse, Postgres, eventually};
use serde_json::json;
use std::{
    collections::BTreeSet,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

/// The backup contains every change that was acknowledged before it started, and does not block requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_under_load_contains_all_acknowledged_changes() {
    let control = ControlPlane::start_process_with(&["quotas.keys_per_service=1000000"]).await;
    let folder = tempfile::tempdir().unwrap();
    let (acknowledged, stop) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicBool::new(false)));
    let write = |writer: usize| {
        let (api, keys, human) = (control.api.clone(), control.path("/keys"), control.human().to_owned());
        let (acknowledged, stop) = (acknowledged.clone(), stop.clone());
        tokio::spawn(async move {
            for number in 0.. {
                if stop.load(Ordering::SeqCst) {
                    return number;
                }
                let name = format!("{writer}-{number}");
                let request = api.request("POST", &keys).bearer_auth(&human);
                HttpResponse::send(request.json(&json!({ "name": name, "scope": "sync" }))).await.expect(201);
                acknowledged.lock().unwrap().insert(name);
            }
            unreachable!("the range is infinite")
        })
    };
    let writers: Vec<_> = (0..4).map(write).collect();
    for round in 0..5 {
        let progressed = async || (acknowledged.lock().unwrap().len() >= 10 * (round + 1)).then_some(());
        eventually("the writers make progress", progressed, || control.log()).await;
        let before = acknowledged.lock().unwrap().clone();
        let file = path_in(&folder, &format!("{round}.backup"));
        let message = tokio::task::block_in_place(|| succeed(&control, &["backup", &file]));
        let after = acknowledged.lock().unwrap().len();
        assert!(message.contains("validated") && message.contains("master.key"), "{message}");
        let mut copy = open_file(Path::new(&file)).await;
        let backed_up: BTreeSet<String> = copy.text_column("SELECT name FROM service_keys").await.into_iter().collect();
        assert!(before.is_subset(&backed_up), "round {round}: {:?}", before.difference(&backed_up));
        assert_eq!(copy.text_column("PRAGMA integrity_check").await, ["ok"]);
        assert_eq!(copy.text_column("SELECT quarantine_reason FROM deployment").await, ["backup"]);
        let entries = copy.number("SELECT COUNT(*) FROM audit_entries WHERE action = 'service_key.created'").await;
        assert_eq!(usize::try_from(entries).unwrap(), backed_up.len(), "every key has its audit entry");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        eprintln!("round {round}: {} keys before, {} in the backup, {after} after", before.len(), backed_up.len());
    }
    stop.store(true, Ordering::SeqCst);
    for writer in writers {
        assert!(writer.await.unwrap() > 0);
    }
    let remaining = files_in(folder.path());
    assert_eq!(remaining.len(), 5, "the folder contains only backups: {remaining:?}");
}

#[tokio::test]
async fn backup_overwrites_nothing_and_leaves_no_partial_file() {
    let (mut control, folder) = (ControlPlane::start_process().await, tempfile::tempdir().unwrap());
    let existing = path_in(&folder, "existing");
    std::fs::write(&existing, "existing content").unwrap();
    assert_refused(&control, &["backup", &existing], &["already exists"]);
    assert_eq!(std::fs::read_to_string(&existing).unwrap(), "existing content");
    std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
    assert_refused(&control, &["backup", &path_in(&folder, "link")], &["already exists"]);
    assert_refused(&control, &["backup", &path_in(&folder, "no/such/folder")], &["No such file"]);
    let without_effect = control.command(&["backup", &path_in(&folder, "new"), "--keep", "2"]);
    assert_eq!(without_effect.status.code(), Some(2), "--keep needs a directory: {without_effect:?}");
    // The partial file of a killed backup is ignored.
    std::fs::write(folder.path().join("next.partial"), "half").unwrap();
    succeed(&control, &["backup", &path_in(&folder, "next")]);
    // A backup also works without a running server.
    control.terminate().await;
    succeed(&control, &["backup", &path_in(&folder, "stopped")]);
    // A backup of a damaged database is refused.
    let database = control.folder().join("countersign.db");
    let mut bytes = std::fs::read(&database).unwrap();
    for byte in &mut bytes[4096 * 3..4096 * 9] {
        *byte ^= 0x5a;
    }
    std::fs::write(&database, bytes).unwrap();
    assert_refused(&control, &["backup", &path_in(&folder, "damaged")], &["countersign.db", "malformed"]);
    assert_eq!(files_in(folder.path()), ["link", "next", "stopped", "existing"].map(String::from).into());
}

#[tokio::test]
async fn backup_without_a_database_and_on_postgresql_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut control = ControlPlane::start_process().await;
    control.kill();
    let empty_folder = format!("data_dir={}", folder.path().display());
    let file = path_in(&folder, "backup");
    assert_refused(&control, &["--set", &empty_folder, "backup", &file], &["no database to back up"]);
    assert_eq!(files_in(folder.path()), BTreeSet::new());
    let postgres = Postgres::start().await;
    let url = format!("database.url={}", postgres.create_database().await.replace("postgres@", "postgres:hunter2@"));
    let message = assert_refused(&control, &["--set", &url, "backup", &file], &["pg_dump"]);
    assert!(!message.contains("hunter2"));
}
