//! `backup`: the embedded database in one file, beside a server that goes on writing.

use super::{does, number, open_file, refuses, texts};
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

fn path_of(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_owned()
}

/// Whoever is answered before the backup begins is in it, and nobody waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_under_load_contains_all_acknowledged_changes() {
    let (control, folder) = (ControlPlane::start().await, tempfile::tempdir().unwrap());
    let (answered, stop) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicBool::new(false)));
    let write = |writer: usize| {
        let (api, keys, human) = (control.api.clone(), control.path("/keys"), control.human().to_owned());
        let (answered, stop) = (answered.clone(), stop.clone());
        tokio::spawn(async move {
            for number in 0.. {
                if stop.load(Ordering::SeqCst) {
                    return number;
                }
                let name = format!("{writer}-{number}");
                let request = api.request("POST", &keys).bearer_auth(&human);
                HttpResponse::send(request.json(&json!({ "name": name, "scope": "sync" }))).await.expect(201);
                answered.lock().unwrap().insert(name);
            }
            unreachable!("numbers do not end")
        })
    };
    let writers: Vec<_> = (0..4).map(write).collect();
    for round in 0..5 {
        let enough = async || (answered.lock().unwrap().len() >= 10 * (round + 1)).then_some(());
        eventually("writers get on", enough, || control.log()).await;
        let before = answered.lock().unwrap().clone();
        let file = path_of(folder.path(), &format!("{round}.backup"));
        let said = tokio::task::block_in_place(|| does(&control, &["backup", &file]));
        let after = answered.lock().unwrap().len();
        assert!(said.contains("checked") && said.contains("master.key"), "{said}");
        let mut copy = open_file(Path::new(&file)).await;
        let kept: BTreeSet<String> = texts(&mut copy, "SELECT name FROM service_keys").await.into_iter().collect();
        assert!(before.is_subset(&kept), "round {round}: {:?}", before.difference(&kept));
        assert_eq!(texts(&mut copy, "PRAGMA integrity_check").await, ["ok"]);
        assert_eq!(texts(&mut copy, "SELECT set_aside_as FROM deployment").await, ["backup"]);
        let links = number(&mut copy, "SELECT COUNT(*) FROM audit_links WHERE act = 'service_key.created'").await;
        assert_eq!(usize::try_from(links).unwrap(), kept.len(), "every act and its link");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        eprintln!("round {round}: {} keys before, {} in it, {after} after", before.len(), kept.len());
    }
    stop.store(true, Ordering::SeqCst);
    for writer in writers {
        assert!(writer.await.unwrap() > 0);
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 5, "nothing but backups: {left:?}");
}

#[tokio::test]
async fn backup_overwrites_nothing_and_leaves_no_partial_file() {
    let (mut control, folder) = (ControlPlane::start().await, tempfile::tempdir().unwrap());
    let there = path_of(folder.path(), "there");
    std::fs::write(&there, "something dear").unwrap();
    refuses(&control, &["backup", &there], &["already exists"]);
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "something dear");
    std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
    refuses(&control, &["backup", &path_of(folder.path(), "link")], &["already exists"]);
    refuses(&control, &["backup", &path_of(folder.path(), "no/such/folder")], &["No such file"]);
    // What a killed backup leaves does not matter.
    std::fs::write(folder.path().join("next.partial"), "half").unwrap();
    does(&control, &["backup", &path_of(folder.path(), "next")]);
    // Also while nobody serves.
    control.terminate().await;
    does(&control, &["backup", &path_of(folder.path(), "stopped")]);
    // A damaged database gives no backup.
    let database = control.folder().join("countersign.db");
    let mut bytes = std::fs::read(&database).unwrap();
    for byte in &mut bytes[4096 * 3..4096 * 9] {
        *byte ^= 0x5a;
    }
    std::fs::write(&database, bytes).unwrap();
    refuses(&control, &["backup", &path_of(folder.path(), "damaged")], &["countersign.db", "malformed"]);
    let names: BTreeSet<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names, ["link", "next", "stopped", "there"].map(String::from).into());
}

#[tokio::test]
async fn backup_without_a_database_and_on_postgresql_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut control = ControlPlane::start().await;
    control.kill();
    let nowhere = format!("data_dir={}", folder.path().display());
    let file = path_of(folder.path(), "backup");
    refuses(&control, &["--set", &nowhere, "backup", &file], &["no database to back up"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let postgres = Postgres::start().await;
    let url = format!("database.url={}", postgres.database().await.replace("postgres@", "postgres:hunter2@"));
    let said = refuses(&control, &["--set", &url, "backup", &file], &["pg_dump"]);
    assert!(!said.contains("hunter2"));
}
