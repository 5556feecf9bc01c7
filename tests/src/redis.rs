//! A real Redis, in a temporary folder, for as long as the test lasts.

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

/// What all of them are started with: nothing is saved unless a test asks for it.
const ALWAYS: [&str; 6] =
    ["appendonly no", "save \"\"", "daemonize no", "dbfilename dump", "loglevel notice", "repl-diskless-sync-delay 0"];

/// How long a command may take: one that is paused answers never.
const PATIENCE: Duration = Duration::from_secs(5);

/// A running server, or one that was killed and may come back.
pub struct Redis {
    process: Process,
    port: u16,
    /// Where nodes of a cluster speak among themselves.
    bus: u16,
    configuration: Vec<String>,
    password: Option<String>,
    tls_files: Option<Arc<TlsFiles>>,
    // After the process: it ends before its folder does.
    folder: TempDir,
}

impl Redis {
    /// Starts one.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts one with lines of its configuration, such as `maxmemory 2mb`.
    pub async fn start_with(lines: &[&str]) -> Self {
        Self::begin(&owned(lines), None, None).await
    }

    /// Starts one that asks for a password.
    pub async fn start_with_password(password: &str) -> Self {
        Self::begin(&[format!("requirepass \"{password}\"")], Some(password.to_owned()), None).await
    }

    /// Starts one that speaks TLS only, and with whoever shows a certificate of the same authority.
    pub async fn start_with_tls(tls_files: &Arc<TlsFiles>, lines: &[&str]) -> Self {
        Self::begin(&owned(lines), None, Some(tls_files.clone())).await
    }

    /// Starts a cluster of one, which has all slots, with lines of its configuration.
    pub async fn start_cluster_with(lines: &[&str]) -> Self {
        Self::begin_cluster(lines, None).await
    }

    /// The same, with TLS only.
    pub async fn start_cluster_with_tls(tls_files: &Arc<TlsFiles>) -> Self {
        Self::begin_cluster(&["tls-cluster yes"], Some(tls_files.clone())).await
    }

    async fn begin_cluster(lines: &[&str], tls_files: Option<Arc<TlsFiles>>) -> Self {
        let redis = Self::start_node(&[&["cluster-enabled yes"], lines].concat(), tls_files).await;
        redis.command::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
        let ready =
            async || redis.command::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok").then_some(());
        eventually("the cluster is whole", ready, || redis.process.log()).await;
        redis
    }

    async fn start_node(lines: &[&str], tls_files: Option<Arc<TlsFiles>>) -> Self {
        Self::begin(&[owned(lines), owned(&["cluster-announce-ip 127.0.0.1"])].concat(), None, tls_files).await
    }

    /// Starts one that copies another, with lines of its configuration.
    pub async fn start_replica_of(master: &Self, lines: &[&str]) -> Self {
        let host = master.host();
        let copies = [format!("replicaof {host} {}", master.port), format!("replica-announce-ip {host}")];
        let replica = Self::begin(&[&copies[..], &owned(lines)].concat(), None, master.tls_files.clone()).await;
        let synced = async || {
            replica.command::<String>(&["INFO", "replication"]).await.contains("master_link_status:up").then_some(())
        };
        eventually("the replica has a copy", synced, || replica.process.log()).await;
        replica
    }

    async fn begin(lines: &[String], password: Option<String>, tls_files: Option<Arc<TlsFiles>>) -> Self {
        let (folder, port, bus) = (folder(), free_port(), free_port());
        let bus_line = [format!("cluster-port {bus}")];
        let listens = listens(&folder, port, tls_files.as_deref());
        let configuration = [&owned(&ALWAYS)[..], &listens, &bus_line, lines].concat();
        let process = launch(folder.path(), &configuration);
        let redis = Self { process, port, bus, configuration, password, tls_files, folder };
        redis.answers().await;
        redis
    }

    /// Its URL.
    pub fn url(&self) -> String {
        let password = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        let scheme = if self.tls_files.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{password}{}:{}", self.host(), self.port)
    }

    fn host(&self) -> &str {
        self.tls_files.as_ref().map_or("127.0.0.1", |tls_files| tls_files.host())
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends a command.
    pub async fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_command(words).await.unwrap_or_else(|error| panic!("{words:?}: {error}\n{}", self.process.log()))
    }

    /// Sends a command, which may fail.
    pub async fn try_command<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let client = self.client();
        let asked = async {
            let mut connection = client.get_multiplexed_async_connection().await?;
            redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await
        };
        let late = (redis::ErrorKind::Io, "no answer");
        tokio::time::timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(late.into()))
    }

    /// Who may do everything there.
    pub fn client(&self) -> Client {
        client_at(self.url(), self.tls_files.as_deref())
    }

    /// Stops it in the middle of whatever it does: it stays connected, and does not answer.
    pub fn pause(&self) {
        self.process.signal("STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.process.signal("CONT");
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same port; with what was dumped last, if anything was.
    pub async fn restart(&mut self) {
        self.process.kill();
        self.process = launch(self.folder.path(), &self.configuration);
        self.answers().await;
    }

    /// Empties it.
    pub async fn flush(&self) {
        self.command::<()>(&["FLUSHALL"]).await;
    }

    /// Everything that it holds now.
    pub async fn dump(&self) -> Vec<u8> {
        self.command::<()>(&["SAVE"]).await;
        let file = self.folder.path().join("dump");
        let dump = std::fs::read(&file).expect("it was saved");
        // A restart shall not find it.
        std::fs::remove_file(file).expect("it was there");
        dump
    }

    /// Ends it as a crash would and starts it with what it held when it was dumped.
    pub async fn restore(&mut self, dump: &[u8]) {
        self.process.kill();
        let file = self.folder.path().join("dump");
        std::fs::write(&file, dump).expect("a file can be written");
        self.restart().await;
        std::fs::remove_file(file).expect("it was there");
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.process.log()
    }

    async fn answers(&self) {
        let answers = async || self.try_command::<String>(&["PING"]).await.ok();
        eventually("Redis answers", answers, || self.process.log()).await;
    }
}

/// Where a server or a Sentinel keeps its files, and how it is spoken to.
fn listens(folder: &TempDir, port: u16, tls_files: Option<&TlsFiles>) -> Vec<String> {
    let folder = format!("dir {}", folder.path().display());
    let mut lines = vec!["bind 127.0.0.1".to_owned(), "protected-mode no".to_owned(), folder];
    lines.extend(tls_files.map_or_else(|| vec![format!("port {port}")], |tls_files| tls_files.lines(port)));
    lines
}

fn client_at(url: String, tls_files: Option<&TlsFiles>) -> Client {
    let client = match tls_files {
        None => Client::open(url),
        Some(tls_files) => Client::build_with_tls(url, tls_files.certificates()),
    };
    client.expect("a URL")
}

fn folder() -> TempDir {
    tempfile::Builder::new().prefix("countersign-redis-").tempdir().expect("a folder")
}

fn owned(lines: &[&str]) -> Vec<String> {
    lines.iter().map(ToString::to_string).collect()
}

fn launch(folder: &Path, configuration: &[String]) -> Process {
    launch_as(&[], folder, configuration)
}

/// It ends with the thread that started it, also if that is killed.
fn launch_as(arguments: &[&str], folder: &Path, configuration: &[String]) -> Process {
    let file = folder.join("redis.conf");
    std::fs::write(&file, configuration.join("\n") + "\n").expect("a file can be written");
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(tools::redis()).arg(&file).args(arguments);
    Process::start(command, &folder.join("log"))
}
