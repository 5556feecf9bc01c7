//! Selects the engines of control planes under test: SQLite and in-process counters, or PostgreSQL and Redis if
//! `TEST_ENGINES` is `fleet`.
//!
//! The first test that needs PostgreSQL and Redis starts one server of each for the test process; each control plane
//! gets its own database.

use crate::{Postgres, Redis, postgres::janitor};
use std::{
    path::Path,
    process::Child,
    sync::{
        OnceLock,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

/// A database for one control plane. Dropping it drops the database.
pub struct DatabaseLease {
    url: String,
}

struct SharedServers {
    postgres: Postgres,
    redis: Redis,
    dropped: Sender<String>,
    // PostgreSQL starts its own janitor.
    _janitor: Child,
}

/// Whether control planes use PostgreSQL and Redis.
pub fn use_postgres_and_redis() -> bool {
    match std::env::var("TEST_ENGINES").as_deref() {
        Err(_) | Ok("" | "embedded") => false,
        Ok("fleet") => true,
        Ok(other) => panic!("TEST_ENGINES={other}: it is `embedded` or `fleet`"),
    }
}

/// The database backend that health and metrics report.
pub fn database_name() -> &'static str {
    if use_postgres_and_redis() { "postgresql" } else { "sqlite" }
}

/// The rate-limit backend that health reports.
pub fn counter_name() -> &'static str {
    if use_postgres_and_redis() { "redis" } else { "memory" }
}

/// The Redis URL, if control planes use Redis.
pub fn redis_url() -> Option<String> {
    use_postgres_and_redis().then(|| shared_servers().redis.url())
}

/// A new database, if control planes use PostgreSQL.
pub async fn lease() -> Option<DatabaseLease> {
    if !use_postgres_and_redis() {
        return None;
    }
    Some(DatabaseLease { url: shared_servers().postgres.database().await })
}

/// The database of a folder, if control planes use PostgreSQL: the same one for every start in that folder.
pub async fn database_of(folder: &Path) -> Option<String> {
    let url_file = folder.join("database-of-this-test");
    if let Ok(url) = std::fs::read_to_string(&url_file) {
        return Some(url);
    }
    let url = use_postgres_and_redis().then(|| shared_servers().postgres.database())?.await;
    std::fs::write(url_file, &url).expect("the folder can be written");
    Some(url)
}

impl DatabaseLease {
    /// The database URL.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for DatabaseLease {
    fn drop(&mut self) {
        // When the process ends there is no receiver; the janitor then removes the whole server.
        let _nobody_there = shared_servers().dropped.send(std::mem::take(&mut self.url));
    }
}

fn shared_servers() -> &'static SharedServers {
    static SERVERS: OnceLock<SharedServers> = OnceLock::new();
    SERVERS.get_or_init(|| {
        let ((started_servers, ready), (dropped, dropped_urls)) = (channel(), channel());
        // In its own thread, because the servers end with the thread that started them (`--pdeathsig`).
        thread::spawn(move || run_servers(&started_servers, &dropped_urls));
        let (postgres, redis) = ready.recv().expect("they start");
        let janitor = janitor(redis.folder());
        SharedServers { postgres, redis, dropped, _janitor: janitor }
    })
}

fn run_servers(started_servers: &Sender<(Postgres, Redis)>, dropped_urls: &Receiver<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let started = runtime.block_on(async { (Postgres::start().await, Redis::start().await) });
    assert!(started_servers.send(started).is_ok(), "the receiver waits");
    for url in dropped_urls {
        runtime.block_on(shared_servers().postgres.drop_database(&url));
    }
}

#[cfg(test)]
mod tests {
    use crate::tools;
    use std::{collections::BTreeSet, fs, path::Path};

    fn has_tests(path: &Path) -> bool {
        if path.is_dir() {
            return fs::read_dir(path).unwrap().any(|entry| has_tests(&entry.unwrap().path()));
        }
        let source = path.extension().is_some_and(|extension| extension == "rs").then(|| fs::read_to_string(path));
        source.is_some_and(|source| {
            ["#[test]", "#[tokio::test"].iter().any(|mark| source.as_ref().unwrap().contains(mark))
        })
    }

    /// Every binary and module that contains tests.
    fn modules_with_tests() -> BTreeSet<(String, String)> {
        let mut modules = BTreeSet::new();
        let stem = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
        for entry in fs::read_dir(tools::root().join("tests/tests")).unwrap() {
            let binary = entry.unwrap().path();
            if binary.is_file() {
                modules.insert((stem(&binary), "main".to_owned()));
                continue;
            }
            let paths = fs::read_dir(&binary).unwrap().map(|entry| entry.unwrap().path());
            modules.extend(paths.filter(|path| has_tests(path)).map(|path| (stem(&binary), stem(&path))));
        }
        modules
    }

    #[test]
    fn list_of_suites_names_every_module_with_tests_once() {
        let list = fs::read_to_string(tools::root().join("tests/suites.txt")).unwrap();
        let mut listed = BTreeSet::new();
        for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let [binary, module, engines] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
            assert!(["both", "once"].contains(&engines), "{line}");
            assert!(listed.insert((binary.to_owned(), module.to_owned())), "listed twice: {line}");
        }
        assert_eq!(listed, modules_with_tests(), "left: tests/suites.txt, right: tests/tests");
    }
}
