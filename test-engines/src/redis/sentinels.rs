//! Redis Sentinels that monitor a master under the name `limits` and fail over quickly.

use super::{Redis, TlsFiles, client_at, launch, listen_lines, temporary_folder, to_strings};
use crate::process::{Process, eventually, free_port};
use futures_util::future::join_all;
use std::sync::Arc;
use tempfile::TempDir;

/// A Sentinel process.
pub struct Sentinel {
    process: Process,
    port: u16,
    tls_files: Option<Arc<TlsFiles>>,
    credentials: Option<(String, String)>,
    _folder: TempDir,
}

impl Sentinel {
    /// Starts a single Sentinel without authentication.
    pub async fn start(master: &Redis) -> Self {
        let sentinel = Self::spawn(master, 1, &[], None);
        sentinel.wait_for_servers(1, 0).await;
        sentinel
    }

    /// Starts three Sentinels with a quorum of two for a master with two replicas. Clients of the Sentinels must
    /// authenticate as the given user, who has only the documented permissions.
    pub async fn start_three(master: &Redis, (user, password): (&str, &str)) -> Vec<Self> {
        let acl = format!("user {user} on >{password} {PERMISSIONS}");
        // The password with which the Sentinels authenticate to each other.
        let lines = [acl.as_str(), "requirepass sentinel-password"];
        let credentials = Some((String::new(), "sentinel-password".to_owned()));
        let sentinels: Vec<_> = (0..3).map(|_| Self::spawn(master, 2, &lines, credentials.clone())).collect();
        join_all(sentinels.iter().map(|sentinel| sentinel.wait_for_servers(2, 2))).await;
        sentinels
    }

    fn spawn(master: &Redis, quorum: u8, lines: &[&str], credentials: Option<(String, String)>) -> Self {
        let (folder, port) = (temporary_folder(), free_port());
        let tls_files = master.tls_files.clone();
        let listen_lines = listen_lines(&folder, port, tls_files.as_deref());
        let hostname_settings = ["sentinel resolve-hostnames yes", "sentinel announce-hostnames yes"];
        let monitor_lines = [
            format!("sentinel monitor limits {} {} {quorum}", master.host(), master.port),
            // With less than 1000, a Sentinel on a busy machine would mark the new master as down before their handshake completes.
            "sentinel down-after-milliseconds limits 1000".to_owned(),
            "sentinel failover-timeout limits 3000".to_owned(),
        ];
        let hostname_lines = if master.host() == "localhost" { to_strings(&hostname_settings) } else { Vec::new() };
        let configuration = [&listen_lines[..], &hostname_lines, &to_strings(lines), &monitor_lines].concat();
        let process = launch(&["--sentinel"], folder.path(), &configuration);
        Self { process, port, tls_files, credentials, _folder: folder }
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

    async fn wait_for_servers(&self, replicas: usize, other_sentinels: usize) {
        let expected = format!("slaves={replicas},sentinels={}", other_sentinels + 1);
        let discovered = async || self.info().await.ok().filter(|info| info.contains(&expected)).map(drop);
        eventually("the Sentinel has discovered all servers", discovered, || self.process.log()).await;
    }

    async fn info(&self) -> redis::RedisResult<String> {
        let url = match &self.credentials {
            Some((user, password)) => self.url().replace("://", &format!("://{user}:{password}@")),
            None => self.url(),
        };
        let mut connection = client_at(url, self.tls_files.as_deref()).get_multiplexed_async_connection().await?;
        redis::cmd("INFO").arg("sentinel").query_async(&mut connection).await
    }
}

/// The minimum permissions of a client, as documented in docs/run/redis.md.
const PERMISSIONS: &str = "-@all +role +sentinel|masters";
