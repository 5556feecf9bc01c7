//! Selects the database engine and the rate-limit engine of control planes under test: SQLite and in-process counters,
//! or PostgreSQL and Redis if `TEST_ENGINES` is `fleet`.
//!
//! The first test that needs PostgreSQL and Redis starts one server of each for the test process; each control plane
//! uses its own database. With PostgreSQL and Redis, a control plane under test is two replicas.

use crate::{Postgres, Redis, postgres::start_cleanup_process};
use std::{
    path::Path,
    process::Child,
    sync::{
        OnceLock,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

/// A database for one control plane. Dropping the lease drops the database.
pub struct DatabaseLease {
    /// The database URL.
    pub url: String,
}

struct SharedServers {
    postgres: Postgres,
    redis: Redis,
    unused_urls: Sender<String>,
    // The process that removes the folder of Redis. The test server of PostgreSQL starts its own cleanup process.
    _cleanup: Child,
}

/// Whether control planes use PostgreSQL and Redis.
pub fn use_postgres_and_redis() -> bool {
    match std::env::var("TEST_ENGINES").as_deref() {
        Err(_) | Ok("" | "embedded") => false,
        Ok("fleet") => true,
        Ok(other) => panic!("TEST_ENGINES is `{other}`, but must be `embedded` or `fleet`"),
    }
}

/// The database backend that health and metrics report.
pub fn database_backend() -> &'static str {
    if use_postgres_and_redis() { "postgresql" } else { "sqlite" }
}

/// The rate-limit backend that health reports.
pub fn rate_limit_backend() -> &'static str {
    if use_postgres_and_redis() { "redis" } else { "memory" }
}

/// The Redis URL, if control planes use Redis.
pub fn redis_url() -> Option<String> {
    use_postgres_and_redis().then(|| shared_servers().redis.url())
}

/// Creates a database if control planes use PostgreSQL.
pub async fn lease() -> Option<DatabaseLease> {
    if !use_postgres_and_redis() {
        return None;
    }
    Some(DatabaseLease { url: shared_servers().postgres.create_database().await })
}

/// Adds the engines of `TEST_ENGINES`: a new database if the settings name none, and Redis if they name neither a database nor
/// Redis. Also returns the new database.
pub async fn add_to(mut settings: Vec<String>) -> (Vec<String>, Option<DatabaseLease>) {
    let is_set = |key: &str| settings.iter().any(|setting| setting.starts_with(key));
    let (database, redis) = (is_set("database.url="), is_set("redis.url="));
    let lease = if database { None } else { lease().await };
    settings.extend(lease.iter().map(|lease| format!("database.url={}", lease.url)));
    if !database && !redis {
        settings.extend(redis_url().map(|url| format!("redis.url={url}")));
    }
    (settings, lease)
}

/// The PostgreSQL database URL for servers with this data folder, or `None` if control planes use SQLite. Every server
/// that starts in the same data folder gets the same database.
pub async fn database_for_folder(folder: &Path) -> Option<String> {
    let url_file = folder.join("database-url");
    if let Ok(url) = std::fs::read_to_string(&url_file) {
        return Some(url);
    }
    let url = use_postgres_and_redis().then(|| shared_servers().postgres.create_database())?.await;
    std::fs::write(url_file, &url).expect("the folder can be written");
    Some(url)
}

impl Drop for DatabaseLease {
    fn drop(&mut self) {
        // Sending the URL of the unused database fails when the test process ends, because the receiver of the channel
        // is gone; the cleanup process then removes the whole PostgreSQL server.
        let _receiver_gone = shared_servers().unused_urls.send(std::mem::take(&mut self.url));
    }
}

fn shared_servers() -> &'static SharedServers {
    static SERVERS: OnceLock<SharedServers> = OnceLock::new();
    SERVERS.get_or_init(|| {
        let ((started_servers, ready), (unused_sender, unused_urls)) = (channel(), channel());
        // A thread of its own starts PostgreSQL and Redis, because a server ends with the thread that started it (`--pdeathsig`).
        thread::spawn(move || run_servers(&started_servers, &unused_urls));
        let (postgres, redis) = ready.recv().expect("PostgreSQL and Redis start");
        let cleanup = start_cleanup_process(redis.folder());
        SharedServers { postgres, redis, unused_urls: unused_sender, _cleanup: cleanup }
    })
}

fn run_servers(started_servers: &Sender<(Postgres, Redis)>, unused_urls: &Receiver<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the runtime can be built");
    let started = runtime.block_on(async { (Postgres::start().await, Redis::start().await) });
    assert!(started_servers.send(started).is_ok(), "the receiver waits");
    for url in unused_urls {
        runtime.block_on(shared_servers().postgres.drop_database(&url));
    }
}
