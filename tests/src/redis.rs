//! A real Redis, in a temporary folder, for as long as the test lasts.

use crate::{
    process::{Process, eventually, free_port},
    tools,
};
use redis::{Client, FromRedisValue, TlsCertificates};
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tempfile::TempDir;

/// What all of them are started with: nothing is saved unless a test asks for it.
const ALWAYS: [&str; 6] =
    ["bind 127.0.0.1", "protected-mode no", "appendonly no", "daemonize no", "dbfilename dump", "loglevel notice"];

/// How long a command may take: one that is paused answers never.
const PATIENCE: Duration = Duration::from_secs(5);

/// A running server, or one that was killed and may come back.
pub struct Redis {
    process: Process,
    port: u16,
    configuration: Vec<String>,
    password: Option<String>,
    authority: Option<String>,
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
        let port = free_port();
        Self::begin(folder(), port, &[&[format!("port {port}")], &owned(lines)[..]].concat(), None, None).await
    }

    /// Starts one that asks for a password.
    pub async fn start_with_password(password: &str) -> Self {
        let port = free_port();
        let lines = [format!("port {port}"), format!("requirepass \"{password}\"")];
        Self::begin(folder(), port, &lines, Some(password.to_owned()), None).await
    }

    /// Starts one that speaks TLS only, for `localhost`, with a certificate of its own authority.
    pub async fn start_with_tls() -> Self {
        let (folder, port) = (folder(), free_port());
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let (certificate, key) = (folder.path().join("certificate.pem"), folder.path().join("key.pem"));
        std::fs::write(&certificate, pair.cert.pem()).expect("a file can be written");
        std::fs::write(&key, pair.signing_key.serialize_pem()).expect("a file can be written");
        let lines = [
            "port 0".to_owned(),
            format!("tls-port {port}"),
            format!("tls-cert-file {}", certificate.display()),
            format!("tls-key-file {}", key.display()),
            "tls-auth-clients no".to_owned(),
        ];
        Self::begin(folder, port, &lines, None, Some(pair.cert.pem())).await
    }

    /// Starts a cluster of one, which has all slots, with lines of its configuration.
    pub async fn start_cluster_with(lines: &[&str]) -> Self {
        let (port, bus) = (free_port(), free_port());
        let own = [
            format!("port {port}"),
            format!("cluster-port {bus}"),
            "cluster-enabled yes".to_owned(),
            "cluster-announce-ip 127.0.0.1".to_owned(),
        ];
        let redis = Self::begin(folder(), port, &[&own[..], &owned(lines)].concat(), None, None).await;
        redis.command::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
        let ready =
            async || redis.command::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok").then_some(());
        eventually("the cluster is whole", ready, || redis.process.log()).await;
        redis
    }

    /// Starts one that copies another, with lines of its configuration.
    pub async fn start_replica_of(master: &Self, lines: &[&str]) -> Self {
        let copies = format!("replicaof 127.0.0.1 {}", master.port);
        let replica = Self::start_with(&[&[copies.as_str()], lines].concat()).await;
        let synced = async || {
            replica.command::<String>(&["INFO", "replication"]).await.contains("master_link_status:up").then_some(())
        };
        eventually("the replica has a copy", synced, || replica.process.log()).await;
        replica
    }

    async fn begin(
        folder: TempDir,
        port: u16,
        lines: &[String],
        password: Option<String>,
        authority: Option<String>,
    ) -> Self {
        let always = ALWAYS.iter().map(ToString::to_string).chain([format!("dir {}", folder.path().display())]);
        let configuration: Vec<_> = always.chain(["save \"\"".to_owned()]).chain(lines.iter().cloned()).collect();
        let process = launch(folder.path(), &configuration);
        let redis = Self { process, port, configuration, password, authority, folder };
        redis.answers().await;
        redis
    }

    /// Its URL.
    pub fn url(&self) -> String {
        let password = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        match self.authority {
            Some(_) => format!("rediss://{password}localhost:{}", self.port),
            None => format!("redis://{password}127.0.0.1:{}", self.port),
        }
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The file with the authority of its certificate.
    pub fn authority(&self) -> PathBuf {
        self.folder.path().join("certificate.pem")
    }

    /// Sends a command.
    pub async fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_command(words).await.unwrap_or_else(|error| panic!("{words:?}: {error}\n{}", self.process.log()))
    }

    /// Sends a command, which may fail.
    pub async fn try_command<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let root_cert = self.authority.as_ref().map(|pem| pem.as_bytes().to_vec());
        let client = match root_cert {
            None => Client::open(self.url())?,
            root_cert => Client::build_with_tls(self.url(), TlsCertificates { client_tls: None, root_cert })?,
        };
        let asked = async {
            let mut connection = client.get_multiplexed_async_connection().await?;
            redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await
        };
        let late = (redis::ErrorKind::Io, "no answer");
        tokio::time::timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(late.into()))
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

/// A Sentinel that watches a Redis under the name `limits`, alone, and is quick to give it up.
pub struct Sentinel {
    process: Process,
    port: u16,
    _folder: TempDir,
}

impl Sentinel {
    /// Starts it.
    pub async fn watching(master: &Redis) -> Self {
        let (folder, port) = (folder(), free_port());
        let configuration = [
            "bind 127.0.0.1".to_owned(),
            "protected-mode no".to_owned(),
            format!("port {port}"),
            format!("dir {}", folder.path().display()),
            format!("sentinel monitor limits 127.0.0.1 {} 1", master.port),
            "sentinel down-after-milliseconds limits 500".to_owned(),
            "sentinel failover-timeout limits 3000".to_owned(),
        ];
        let process = launch_as(&["--sentinel"], folder.path(), &configuration);
        let sentinel = Self { process, port, _folder: folder };
        let knows = async || sentinel.knows_a_replica().await.then_some(());
        eventually("Sentinel knows a replica", knows, || sentinel.process.log()).await;
        sentinel
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    async fn knows_a_replica(&self) -> bool {
        let asked = async {
            let mut connection = Client::open(self.url())?.get_multiplexed_async_connection().await?;
            redis::cmd("INFO").arg("sentinel").query_async::<String>(&mut connection).await
        };
        asked.await.is_ok_and(|told| told.contains("slaves=1"))
    }
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
