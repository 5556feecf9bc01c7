//! Starts a PostgreSQL server in a temporary folder.

use crate::{
    process::{Process, eventually, free_port, signal, stat_number},
    tools,
};
use sqlx::{AnyConnection, Connection, Executor};
use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};
use tempfile::TempDir;

/// The user that runs the server if the tests run as root, because PostgreSQL refuses to run as root. Debian's package creates it.
const SERVER_USER: &str = "postgres";

/// Options of `initdb`. Like many managed servers, it gets an ICU locale, so that tests find queries that need byte order but
/// specify no collation.
const INITDB_OPTIONS: [&str; 6] = [
    "--auth=trust",
    "--username=postgres",
    "--no-sync",
    "--encoding=UTF8",
    "--locale-provider=icu",
    "--icu-locale=en-US",
];

/// Settings of PostgreSQL. The shared memory is in the data folder, so that a killed server leaves nothing elsewhere.
const SETTINGS: [&str; 4] =
    ["listen_addresses=127.0.0.1", "max_connections=600", "shared_buffers=32MB", "dynamic_shared_memory_type=mmap"];

/// Whether committed transactions survive a crash of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// Transactions do not survive a crash, and the data is in memory if possible.
    None,
    /// Transactions survive a crash, as in production.
    Disk,
}

/// The data folder is in `/dev/shm` if this much memory is free there.
const REQUIRED_SHM_KIB: u64 = 2 * 1024 * 1024;

/// Waits until stdin is closed, because the test process has ended. Then stops the server and removes its folder (`$0`).
const CLEANUP_SCRIPT: &str = r#"
cat >/dev/null
if read -r server <"$0/data/postmaster.pid"; then
    kill -CONT "$server" && kill -QUIT "$server" && sleep 0.2
    for _ in 1 2 3 4 5 6 7; do kill -0 "$server" && sleep 1; done
    kill -KILL "$server"
fi
rm -rf "$0"
"#;

/// A server that trusts every local connection.
pub struct Postgres {
    process: Process,
    port: u16,
    durability: Durability,
    created_databases: AtomicU32,
    cleanup: Child,
    folder: TempDir,
}

impl Postgres {
    /// Starts a server whose data need not survive a crash of the machine.
    pub async fn start() -> Self {
        Self::start_with(Durability::None, ram_folder()).await
    }

    /// Starts a server on disk, with the durability of production.
    pub async fn start_durable() -> Self {
        Self::start_with(Durability::Disk, std::env::temp_dir()).await
    }

    async fn start_with(durability: Durability, folder: PathBuf) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("countersign-postgres-")
            .tempdir_in(folder)
            .expect("the folder can be created");
        let (data, port) = (folder.path().join("data"), free_port());
        std::fs::create_dir(&data).expect("the folder can be created");
        chown_to_server_user(folder.path());
        let created = command_as_server_user(&tools::postgres("initdb"))
            .args(INITDB_OPTIONS)
            .arg("--pgdata")
            .arg(&data)
            .output()
            .expect("initdb runs");
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
        let (process, cleanup) = (launch(folder.path(), port, durability), start_cleanup_process(folder.path()));
        let postgres = Self { process, port, durability, created_databases: AtomicU32::new(0), cleanup, folder };
        sqlx::any::install_default_drivers();
        postgres.wait_until_ready().await;
        postgres
    }

    /// The id of the main process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the server accepts connections.
    pub async fn wait_until_ready(&self) {
        let connect = async || AnyConnection::connect(&self.url("postgres")).await.ok();
        eventually("PostgreSQL accepts connections", connect, || self.process.log()).await;
    }

    /// Stops all server processes with SIGSTOP. Connections stay open, but no query gets a response.
    pub fn pause(&self) {
        // We stop the postmaster first, because it starts the other server processes.
        self.process.signal("STOP");
        self.signal_others("STOP");
    }

    /// Continues all server processes.
    pub fn resume(&self) {
        self.signal_others("CONT");
        self.process.signal("CONT");
    }

    /// Kills all server processes at once.
    pub fn kill(&mut self) {
        self.process.signal("STOP");
        self.signal_others("KILL");
        self.process.kill();
    }

    /// Restarts on the same port and data after [`Postgres::kill`].
    pub async fn restart(&mut self) {
        self.process = launch(self.folder.path(), self.port, self.durability);
        self.wait_until_ready().await;
    }

    /// Restarts as a hot standby without a primary: read-only.
    pub async fn become_standby(&mut self) {
        self.kill();
        let signal = self.folder.path().join("data/standby.signal");
        std::fs::write(&signal, "").expect("the data folder exists");
        chown_to_server_user(&signal);
        self.restart().await;
    }

    /// Address of the server.
    pub fn address(&self) -> std::net::SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// Creates a folder that the server may write to.
    pub fn create_writable_folder(&self, folder: &Path) {
        std::fs::create_dir(folder).expect("the folder can be created");
        chown_to_server_user(folder);
    }

    /// Stops the server processes of idle connections to a database with SIGSTOP, and returns their number.
    pub async fn pause_idle_backends(&self, url: &str) -> usize {
        let name = url.rsplit('/').next().expect("the URL has a database name");
        let sql = format!("SELECT pid FROM pg_stat_activity WHERE datname = '{name}' AND state = 'idle'");
        let mut connection = self.connect().await;
        let idle = sqlx::query_scalar::<_, i32>(sqlx::AssertSqlSafe(sql)).fetch_all(&mut connection).await;
        let idle = idle.expect("pg_stat_activity is readable");
        for process in &idle {
            signal(u32::try_from(*process).expect("a process id is positive"), "STOP");
        }
        idle.len()
    }

    /// Runs a statement as superuser in the database `postgres`.
    pub async fn execute(&self, sql: String) {
        self.connect().await.execute(sqlx::AssertSqlSafe(sql)).await.expect("the statement succeeds");
    }

    async fn connect(&self) -> AnyConnection {
        AnyConnection::connect(&self.url("postgres")).await.expect("PostgreSQL accepts connections")
    }

    fn signal_others(&self, name: &str) {
        for process in child_processes(self.process.id()) {
            signal(process, name);
        }
    }

    /// Creates an empty database, and returns its URL.
    pub async fn create_database(&self) -> String {
        self.create_database_with("").await
    }

    /// Creates an empty database with options of `CREATE DATABASE`, and returns its URL.
    pub async fn create_database_with(&self, options: &str) -> String {
        let name = format!("countersign_{}", self.created_databases.fetch_add(1, Ordering::SeqCst));
        self.execute(format!("CREATE DATABASE {name} {options}")).await;
        self.url(&name)
    }

    /// Drops a database and its connections.
    pub async fn drop_database(&self, url: &str) {
        let name = url.rsplit('/').next().expect("the URL has a database name");
        self.execute(format!("DROP DATABASE {name} WITH (FORCE)")).await;
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // SIGKILL would leave the shared memory of the server behind, so we send SIGQUIT.
        self.resume();
        self.process.signal("QUIT");
        self.process.wait();
        drop(self.cleanup.stdin.take());
        let _status = self.cleanup.wait();
    }
}

fn launch(folder: &Path, port: u16, durability: Durability) -> Process {
    let mut server = command_as_server_user(&tools::postgres("postgres"));
    server.arg("-D").arg(folder.join("data")).args(["-p", &port.to_string(), "-k"]).arg(folder);
    for setting in SETTINGS.into_iter().chain((durability == Durability::None).then_some("fsync=off")) {
        server.args(["-c", setting]);
    }
    Process::start(server, &folder.join("log"))
}

/// Starts a process that removes `folder` when the test process ends, or closes its stdin. It has its own process group, so that an
/// interrupt of the tests does not reach it.
pub fn start_cleanup_process(folder: &Path) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", CLEANUP_SCRIPT]).arg(folder).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.process_group(0).spawn().expect("`sh` is installed")
}

/// `/dev/shm` if it has enough space, else the temporary folder.
fn ram_folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let free =
        Command::new("df").args(["-k", "--output=avail"]).arg(memory).output().expect("`df` is installed").stdout;
    let free = String::from_utf8_lossy(&free).lines().last().and_then(|line| line.trim().parse::<u64>().ok());
    if free.is_some_and(|free| free >= REQUIRED_SHM_KIB) { memory.to_owned() } else { std::env::temp_dir() }
}

/// Child processes of a process.
pub fn child_processes(parent: u32) -> Vec<u32> {
    let proc_entries = std::fs::read_dir("/proc").expect("/proc is readable").flatten();
    let numbers = proc_entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter(|process| stat_number(*process, 1) == Some(parent)).collect()
}

/// Makes the server's user the owner of a folder, if the tests run as root.
pub fn chown_to_server_user(folder: &Path) {
    if is_root() {
        let owned = Command::new("chown").args(["-R", SERVER_USER]).arg(folder).status();
        assert!(owned.expect("`chown` is installed").success());
    }
}

/// A command that runs as the server's user. Its process gets SIGQUIT when the thread that started it ends, even if the test process is
/// killed.
pub fn command_as_server_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "QUIT"]);
    if is_root() {
        command.args(["--reuid", SERVER_USER, "--regid", SERVER_USER, "--init-groups"]);
    }
    command.arg(program).current_dir("/");
    command
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().expect("`id` is installed");
    output.stdout.trim_ascii() == b"0"
}
