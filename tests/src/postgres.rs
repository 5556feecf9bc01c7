//! A real PostgreSQL, in a temporary folder, for as long as the test lasts.

use crate::{
    process::{Process, eventually, free_port},
    tools,
};
use sqlx::{AnyConnection, Connection, Executor};
use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};
use tempfile::TempDir;

/// Whom the server runs as if we are root, which it refuses to be: Debian's package makes this user.
const SERVER_USER: &str = "postgres";

/// A running server; whoever is on this machine may connect.
pub struct Postgres {
    process: Process,
    port: u16,
    made: AtomicU32,
    _folder: TempDir,
}

impl Postgres {
    /// Makes a cluster and starts a server for it.
    ///
    /// It does not wait for the disk: what a crash of the machine leaves behind is not what is tested here.
    pub async fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("countersign-postgres-").tempdir_in(memory()).expect("a folder");
        let (data, port) = (folder.path().join("data"), free_port());
        std::fs::create_dir(&data).expect("a folder");
        if is_root() {
            let owned = Command::new("chown").args(["-R", SERVER_USER]).arg(folder.path()).status();
            assert!(owned.expect("chown exists").success());
        }
        let mut initdb = as_server("initdb");
        initdb.args(["--auth=trust", "--username=postgres", "--no-sync", "--pgdata"]).arg(&data);
        let made = initdb.output().expect("initdb runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut server = as_server("postgres");
        server.arg("-D").arg(&data).args(["-p", &port.to_string(), "-k"]).arg(folder.path());
        for setting in ["listen_addresses=127.0.0.1", "fsync=off", "max_connections=300", "shared_buffers=32MB"] {
            server.args(["-c", setting]);
        }
        let process = Process::start(server, &folder.path().join("log"));
        let postgres = Self { process, port, made: AtomicU32::new(0), _folder: folder };
        let connect = async || AnyConnection::connect(&postgres.url("postgres")).await.ok();
        sqlx::any::install_default_drivers();
        eventually("PostgreSQL answers", connect, || postgres.process.log()).await;
        postgres
    }

    /// Makes an empty database and gives its URL.
    pub async fn database(&self) -> String {
        let name = format!("countersign_{}", self.made.fetch_add(1, Ordering::SeqCst));
        let mut connection = AnyConnection::connect(&self.url("postgres")).await.expect("PostgreSQL answers");
        connection.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.expect("a database");
        self.url(&name)
    }

    /// Takes a database away, whoever is still connected.
    pub async fn drop_database(&self, url: &str) {
        let name = url.rsplit('/').next().expect("a name");
        let mut connection = AnyConnection::connect(&self.url("postgres")).await.expect("PostgreSQL answers");
        let sql = format!("DROP DATABASE {name} WITH (FORCE)");
        connection.execute(sqlx::AssertSqlSafe(sql)).await.expect("it can be dropped");
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Its processes share memory, which a kill would leave behind.
        self.process.signal("QUIT");
        self.process.wait();
    }
}

/// In memory where there is such a place.
fn memory() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

/// It ends with the thread that started it, also if that is killed.
fn as_server(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "QUIT"]);
    if is_root() {
        command.args(["--reuid", SERVER_USER, "--regid", SERVER_USER, "--init-groups"]);
    }
    command.arg(tools::postgres(program)).current_dir("/");
    command
}

fn is_root() -> bool {
    let who = Command::new("id").arg("-u").output().expect("id exists");
    who.stdout.trim_ascii() == b"0"
}
