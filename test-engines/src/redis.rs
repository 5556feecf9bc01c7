//! Starts a Redis server in a temporary folder.

mod cluster;
mod sentinels;
mod tls_files;

pub use cluster::RedisCluster;
pub use sentinels::Sentinel;
pub use tls_files::TlsFiles;

use crate::{
    process::{Process, eventually, free_port},
    tools,
};
use redis::{Client, FromRedisValue};
use std::{path::Path, process::Command, sync::Arc, time::Duration};
use tempfile::TempDir;

/// Configuration of every server. Persistence is off by default.
const BASE_CONFIGURATION: [&str; 6] =
    ["appendonly no", "save \"\"", "daemonize no", "dbfilename dump", "loglevel notice", "repl-diskless-sync-delay 0"];

/// Timeout of a command, because a paused server never responds.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A Redis server, which can be restarted after [`Redis::kill`].
pub struct Redis {
    process: Process,
    port: u16,
    /// Port of the cluster bus.
    bus_port: u16,
    configuration: Vec<String>,
    password: Option<String>,
    tls_files: Option<Arc<TlsFiles>>,
    // After `process`, so that it is dropped later: the process writes to the folder until it ends.
    folder: TempDir,
}

impl Redis {
    /// Starts a server.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server with configuration lines such as `maxmemory 2mb`.
    pub async fn start_with(lines: &[&str]) -> Self {
        Self::start_configured(&to_strings(lines), None, None).await
    }

    /// Starts a server with a password.
    pub async fn start_with_password(password: &str) -> Self {
        Self::start_configured(&[format!("requirepass \"{password}\"")], Some(password.to_owned()), None).await
    }

    /// Starts a server that accepts only TLS with a client certificate of the same CA.
    pub async fn start_with_tls(tls_files: &Arc<TlsFiles>, lines: &[&str]) -> Self {
        Self::start_configured(&to_strings(lines), None, Some(tls_files.clone())).await
    }

    /// Starts a cluster of one node with all slots, with additional configuration lines.
    pub async fn start_cluster_with(lines: &[&str]) -> Self {
        Self::start_single_node_cluster(lines, None).await
    }

    /// Starts a cluster of one node with TLS only.
    pub async fn start_cluster_with_tls(tls_files: &Arc<TlsFiles>) -> Self {
        Self::start_single_node_cluster(&["tls-cluster yes"], Some(tls_files.clone())).await
    }

    async fn start_single_node_cluster(lines: &[&str], tls_files: Option<Arc<TlsFiles>>) -> Self {
        let redis = Self::start_node(&[&["cluster-enabled yes"], lines].concat(), tls_files).await;
        redis.command::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
        let ready =
            async || redis.command::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok").then_some(());
        eventually("the cluster state is ok", ready, || redis.process.log()).await;
        redis
    }

    async fn start_node(lines: &[&str], tls_files: Option<Arc<TlsFiles>>) -> Self {
        Self::start_configured(
            &[to_strings(lines), to_strings(&["cluster-announce-ip 127.0.0.1"])].concat(),
            None,
            tls_files,
        )
        .await
    }

    /// Starts a replica of a master, with additional configuration lines.
    pub async fn start_replica_of(master: &Self, lines: &[&str]) -> Self {
        let host = master.host();
        let replication_lines = [format!("replicaof {host} {}", master.port), format!("replica-announce-ip {host}")];
        let replica = Self::start_configured(
            &[&replication_lines[..], &to_strings(lines)].concat(),
            None,
            master.tls_files.clone(),
        )
        .await;
        let synced = async || {
            replica.command::<String>(&["INFO", "replication"]).await.contains("master_link_status:up").then_some(())
        };
        eventually("the replica is synchronized", synced, || replica.process.log()).await;
        replica
    }

    async fn start_configured(lines: &[String], password: Option<String>, tls_files: Option<Arc<TlsFiles>>) -> Self {
        let (folder, port, bus_port) = (temporary_folder(), free_port(), free_port());
        let bus_line = [format!("cluster-port {bus_port}")];
        let listen_lines = listen_lines(&folder, port, tls_files.as_deref());
        let configuration = [&to_strings(&BASE_CONFIGURATION)[..], &listen_lines, &bus_line, lines].concat();
        let process = launch(&[], folder.path(), &configuration);
        let redis = Self { process, port, bus_port, configuration, password, tls_files, folder };
        redis.wait_until_ready().await;
        redis
    }

    /// URL of the server.
    pub fn url(&self) -> String {
        let password = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        let scheme = if self.tls_files.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{password}{}:{}", self.host(), self.port)
    }

    fn host(&self) -> &str {
        self.tls_files.as_ref().map_or("127.0.0.1", |tls_files| tls_files.host())
    }

    /// The data folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs a command.
    pub async fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_command(words).await.unwrap_or_else(|error| panic!("{words:?}: {error}\n{}", self.process.log()))
    }

    /// Runs a command that may fail.
    pub async fn try_command<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let client = self.client();
        let response = async {
            let mut connection = client.get_multiplexed_async_connection().await?;
            redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await
        };
        let timeout = (redis::ErrorKind::Io, "no response");
        tokio::time::timeout(TIMEOUT, response).await.unwrap_or_else(|_| Err(timeout.into()))
    }

    /// A client with all permissions.
    pub fn client(&self) -> Client {
        client_at(self.url(), self.tls_files.as_deref())
    }

    /// Stops the process with SIGSTOP. Connections to the stopped process stay open, but no command gets a response.
    pub fn pause(&self) {
        self.process.signal("STOP");
    }

    /// Continues the process.
    pub fn resume(&self) {
        self.process.signal("CONT");
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Restarts on the same port, with the data of the last dump, if any.
    pub async fn restart(&mut self) {
        self.process.kill();
        self.process = launch(&[], self.folder.path(), &self.configuration);
        self.wait_until_ready().await;
    }

    /// Deletes all keys.
    pub async fn flush(&self) {
        self.command::<()>(&["FLUSHALL"]).await;
    }

    /// Saves all data to disk and returns the dump file.
    pub async fn dump(&self) -> Vec<u8> {
        self.command::<()>(&["SAVE"]).await;
        let file = self.folder.path().join("dump");
        let dump = std::fs::read(&file).expect("SAVE wrote the dump file");
        // The dump file is removed, because a restart of Redis must not load it.
        std::fs::remove_file(file).expect("the dump file exists");
        dump
    }

    /// Kills the process and restarts it with the data of a dump.
    pub async fn restore(&mut self, dump: &[u8]) {
        self.process.kill();
        let file = self.folder.path().join("dump");
        std::fs::write(&file, dump).expect("the file can be written");
        self.restart().await;
        std::fs::remove_file(file).expect("the dump file exists");
    }

    /// The log so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    async fn wait_until_ready(&self) {
        let ping = async || self.try_command::<String>(&["PING"]).await.ok();
        eventually("Redis responds to PING", ping, || self.process.log()).await;
    }
}

/// Configuration lines for the folder and the port of a server or Sentinel.
fn listen_lines(folder: &TempDir, port: u16, tls_files: Option<&TlsFiles>) -> Vec<String> {
    let folder = format!("dir {}", folder.path().display());
    let mut lines = vec!["bind 127.0.0.1".to_owned(), "protected-mode no".to_owned(), folder];
    lines.extend(tls_files.map_or_else(|| vec![format!("port {port}")], |tls_files| tls_files.server_lines(port)));
    lines
}

fn client_at(url: String, tls_files: Option<&TlsFiles>) -> Client {
    let client = match tls_files {
        None => Client::open(url),
        Some(tls_files) => Client::build_with_tls(url, tls_files.certificates()),
    };
    client.expect("the URL is valid")
}

fn temporary_folder() -> TempDir {
    tempfile::Builder::new().prefix("countersign-redis-").tempdir().expect("the folder can be created")
}

fn to_strings(lines: &[&str]) -> Vec<String> {
    lines.iter().map(ToString::to_string).collect()
}

/// Starts a Redis process that is killed when the thread that started it ends, even if the test process is killed.
fn launch(arguments: &[&str], folder: &Path, configuration: &[String]) -> Process {
    let file = folder.join("redis.conf");
    std::fs::write(&file, configuration.join("\n") + "\n").expect("the file can be written");
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(tools::program("redis-server")).arg(&file).args(arguments);
    Process::start(command, &folder.join("log"))
}
