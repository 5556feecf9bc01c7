//! Redis Sentinels that monitor a master under the name `limits` and fail over quickly.

use super::{Redis, TlsFiles, client_at, folder, launch_as, listen_lines, to_strings};
use crate::process::{Process, eventually, free_port};
use futures_util::future::join_all;
use std::sync::Arc;
use tempfile::TempDir;

/// A Sentinel process.
pub struct Sentinel {
    process: Process,
    port: u16,
    tls_files: Option<Arc<TlsFiles>>,
    asker: Option<(String, String)>,
    _folder: TempDir,
}

impl Sentinel {
    /// Starts a single Sentinel without authentication.
    pub async fn watching(master: &Redis) -> Self {
        let sentinel = Self::begin(master, 1, &[], None);
        sentinel.knows(1, 0).await;
        sentinel
    }

    /// Starts three Sentinels with a quorum of two for a master with two replicas. Clients must authenticate as this
    /// user, who has the minimum of permissions.
    pub async fn three_watching(master: &Redis, (user, password): (&str, &str)) -> Vec<Self> {
        let acl = format!("user {user} on >{password} {PERMISSIONS}");
        // Password among the Sentinels.
        let lines = [acl.as_str(), "requirepass among-themselves"];
        let asker = Some((String::new(), "among-themselves".to_owned()));
        let sentinels: Vec<_> = (0..3).map(|_| Self::begin(master, 2, &lines, asker.clone())).collect();
        join_all(sentinels.iter().map(|sentinel| sentinel.knows(2, 2))).await;
        sentinels
    }

    fn begin(master: &Redis, quorum: u8, lines: &[&str], asker: Option<(String, String)>) -> Self {
        let (folder, port) = (folder(), free_port());
        let tls_files = master.tls_files.clone();
        let listen_lines = listen_lines(&folder, port, tls_files.as_deref());
        let by_name = ["sentinel resolve-hostnames yes", "sentinel announce-hostnames yes"];
        let watched = [
            format!("sentinel monitor limits {} {} {quorum}", master.host(), master.port),
            // With a shorter time, a busy machine also gives up the new master before the handshake with it.
            "sentinel down-after-milliseconds limits 1000".to_owned(),
            "sentinel failover-timeout limits 3000".to_owned(),
        ];
        let names = if master.host() == "localhost" { to_strings(&by_name) } else { Vec::new() };
        let configuration = [&listen_lines[..], &names, &to_strings(lines), &watched].concat();
        let process = launch_as(&["--sentinel"], folder.path(), &configuration);
        Self { process, port, tls_files, asker, _folder: folder }
    }

    /// URL of the Sentinel.
    pub fn url(&self) -> String {
        match &self.tls_files {
            Some(tls_files) => format!("rediss://{}:{}", tls_files.host(), self.port),
            None => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// The log so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    async fn knows(&self, replicas: usize, others: usize) {
        let all = format!("slaves={replicas},sentinels={}", others + 1);
        let knows = async || self.info().await.ok().filter(|info| info.contains(&all)).map(drop);
        eventually("Sentinel knows all servers", knows, || self.process.log()).await;
    }

    async fn info(&self) -> redis::RedisResult<String> {
        let url = match &self.asker {
            Some((user, password)) => self.url().replace("://", &format!("://{user}:{password}@")),
            None => self.url(),
        };
        let mut connection = client_at(url, self.tls_files.as_deref()).get_multiplexed_async_connection().await?;
        redis::cmd("INFO").arg("sentinel").query_async(&mut connection).await
    }
}

/// The permissions that the documentation names.
const PERMISSIONS: &str = "-@all +role +sentinel|masters";
