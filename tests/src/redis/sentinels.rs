//! Sentinels, which watch a Redis under the name `limits`, and are quick to give it up.

use super::{Redis, TlsFiles, client_at, folder, launch_as, listens, owned};
use crate::process::{Process, eventually, free_port};
use futures_util::future::join_all;
use std::sync::Arc;
use tempfile::TempDir;

/// One of them.
pub struct Sentinel {
    process: Process,
    port: u16,
    tls_files: Option<Arc<TlsFiles>>,
    asker: Option<(String, String)>,
    _folder: TempDir,
}

impl Sentinel {
    /// Starts one that is alone, and answers everybody.
    pub async fn watching(master: &Redis) -> Self {
        let sentinel = Self::begin(master, 1, &[], None);
        sentinel.knows(1, 0).await;
        sentinel
    }

    /// Starts three, of which two must agree, for a master with two replicas. Who asks must be this user, who may do
    /// no more than it takes.
    pub async fn three_watching(master: &Redis, (user, password): (&str, &str)) -> Vec<Self> {
        let may = format!("user {user} on >{password} {MAY}");
        // What they say among themselves.
        let lines = [may.as_str(), "requirepass among-themselves"];
        let asker = Some((String::new(), "among-themselves".to_owned()));
        let sentinels: Vec<_> = (0..3).map(|_| Self::begin(master, 2, &lines, asker.clone())).collect();
        join_all(sentinels.iter().map(|sentinel| sentinel.knows(2, 2))).await;
        sentinels
    }

    fn begin(master: &Redis, quorum: u8, lines: &[&str], asker: Option<(String, String)>) -> Self {
        let (folder, port) = (folder(), free_port());
        let tls_files = master.tls_files.clone();
        let listens = listens(&folder, port, tls_files.as_deref());
        let by_name = ["sentinel resolve-hostnames yes", "sentinel announce-hostnames yes"];
        let watched = [
            format!("sentinel monitor limits {} {} {quorum}", master.host(), master.port),
            // Less, and on a busy machine they give up the new master too, before they have shaken hands with it.
            "sentinel down-after-milliseconds limits 1000".to_owned(),
            "sentinel failover-timeout limits 3000".to_owned(),
        ];
        let names = if master.host() == "localhost" { owned(&by_name) } else { Vec::new() };
        let configuration = [&listens[..], &names, &owned(lines), &watched].concat();
        let process = launch_as(&["--sentinel"], folder.path(), &configuration);
        Self { process, port, tls_files, asker, _folder: folder }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        match &self.tls_files {
            Some(tls_files) => format!("rediss://{}:{}", tls_files.host(), self.port),
            None => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.process.log()
    }

    async fn knows(&self, replicas: usize, others: usize) {
        let all = format!("slaves={replicas},sentinels={}", others + 1);
        let knows = async || self.told().await.ok().filter(|told| told.contains(&all)).map(drop);
        eventually("Sentinel knows everybody", knows, || self.process.log()).await;
    }

    async fn told(&self) -> redis::RedisResult<String> {
        let url = match &self.asker {
            Some((user, password)) => self.url().replace("://", &format!("://{user}:{password}@")),
            None => self.url(),
        };
        let mut connection = client_at(url, self.tls_files.as_deref()).get_multiplexed_async_connection().await?;
        redis::cmd("INFO").arg("sentinel").query_async(&mut connection).await
    }
}

/// As README says it to operators.
const MAY: &str = "-@all +role +sentinel|masters";
