//! The engines on which control planes of tests run: what `--dev` comes with, or those of a fleet, if
//! `TEST_ENGINES` is `fleet`.
//!
//! These are PostgreSQL and Redis, one of each for the whole test process, started when the first test needs them; each
//! control plane has a database of its own there.

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

/// A database for one control plane, which goes when this is dropped.
pub struct Lease {
    url: String,
}

struct Fleet {
    postgres: Postgres,
    redis: Redis,
    returned: Sender<String>,
    // PostgreSQL has its own.
    _janitor: Child,
}

/// Whether tests run on the engines of a fleet.
pub fn use_postgres_and_redis() -> bool {
    match std::env::var("TEST_ENGINES").as_deref() {
        Err(_) | Ok("" | "embedded") => false,
        Ok("fleet") => true,
        Ok(other) => panic!("TEST_ENGINES={other}: it is `embedded` or `fleet`"),
    }
}

/// What health and metrics call the database of a control plane that a test starts without naming one.
pub fn database_name() -> &'static str {
    if use_postgres_and_redis() { "postgresql" } else { "sqlite" }
}

/// What health calls that which counts calls for limits.
pub fn counter_name() -> &'static str {
    if use_postgres_and_redis() { "redis" } else { "memory" }
}

/// The URL of the Redis, if tests run on the engines of a fleet.
pub fn redis_url() -> Option<String> {
    use_postgres_and_redis().then(|| fleet().redis.url())
}

/// A fresh database, if tests run on the engines of a fleet.
pub async fn lease() -> Option<Lease> {
    if !use_postgres_and_redis() {
        return None;
    }
    Some(Lease { url: fleet().postgres.database().await })
}

/// The same for whoever starts again and again in the same folder: always the same database, until the process ends.
pub async fn database_of(folder: &Path) -> Option<String> {
    let note = folder.join("database-of-this-test");
    if let Ok(noted) = std::fs::read_to_string(&note) {
        return Some(noted);
    }
    let url = use_postgres_and_redis().then(|| fleet().postgres.database())?.await;
    std::fs::write(note, &url).expect("the folder can be written");
    Some(url)
}

impl Lease {
    /// Where the database is.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // At the end of the process nobody takes it back, and it goes with the whole server.
        let _nobody_there = fleet().returned.send(std::mem::take(&mut self.url));
    }
}

fn fleet() -> &'static Fleet {
    static FLEET: OnceLock<Fleet> = OnceLock::new();
    FLEET.get_or_init(|| {
        let ((told, ready), (returned, taken_back)) = (channel(), channel());
        // A thread of its own, that outlives every test: what it starts ends with it.
        thread::spawn(move || keep(&told, &taken_back));
        let (postgres, redis) = ready.recv().expect("they start");
        let janitor = janitor(redis.folder());
        Fleet { postgres, redis, returned, _janitor: janitor }
    })
}

fn keep(told: &Sender<(Postgres, Redis)>, taken_back: &Receiver<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let started = runtime.block_on(async { (Postgres::start().await, Redis::start().await) });
    assert!(told.send(started).is_ok(), "somebody waits");
    for url in taken_back {
        runtime.block_on(fleet().postgres.drop_database(&url));
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

    /// A binary and a module of it, for each that contains tests.
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
