//! A real PostgreSQL, in a temporary folder, for as long as the test lasts.

use crate::{
    process::{Process, eventually, free_port},
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

/// Whom the server runs as if we are root, which it refuses to be: Debian's package makes this user.
const SERVER_USER: &str = "postgres";

/// Collates as many a managed server does, and not by bytes: whoever relies on an order must say which.
const CLUSTER: [&str; 6] = [
    "--auth=trust",
    "--username=postgres",
    "--no-sync",
    "--encoding=UTF8",
    "--locale-provider=icu",
    "--icu-locale=en-US",
];

/// It does not wait for the disk: what a crash of the machine leaves behind is not what is tested here.
/// What its processes share lies in its folder, so that nothing is left anywhere else when they are killed.
const SETTINGS: [&str; 5] = [
    "listen_addresses=127.0.0.1",
    "fsync=off",
    "max_connections=600",
    "shared_buffers=32MB",
    "dynamic_shared_memory_type=mmap",
];

/// Kilobytes that must be free in memory for the cluster and its databases to lie there.
const ROOM: u64 = 2 * 1024 * 1024;

/// Waits until the test process has ended, however that was, and leaves nothing of the server behind.
const JANITOR: &str = r#"
cat >/dev/null
if read -r server <"$0/data/postmaster.pid"; then
    kill -CONT "$server" && kill -QUIT "$server" && sleep 0.2
    for _ in 1 2 3 4 5 6 7; do kill -0 "$server" && sleep 1; done
    kill -KILL "$server"
fi
rm -rf "$0"
"#;

/// A running server; whoever is on this machine may connect.
pub struct Postgres {
    process: Process,
    port: u16,
    made: AtomicU32,
    janitor: Child,
    folder: TempDir,
}

impl Postgres {
    /// Makes a cluster and starts a server for it.
    pub async fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("countersign-postgres-").tempdir_in(memory()).expect("a folder");
        let (data, port) = (folder.path().join("data"), free_port());
        std::fs::create_dir(&data).expect("a folder");
        give_away(folder.path());
        let made = as_server("initdb").args(CLUSTER).arg("--pgdata").arg(&data).output().expect("initdb runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let (process, janitor) = (launch(folder.path(), port), janitor(folder.path()));
        let postgres = Self { process, port, made: AtomicU32::new(0), janitor, folder };
        sqlx::any::install_default_drivers();
        postgres.answers().await;
        postgres
    }

    /// Waits until it takes connections.
    pub async fn answers(&self) {
        let connect = async || AnyConnection::connect(&self.url("postgres")).await.ok();
        eventually("PostgreSQL answers", connect, || self.process.log()).await;
    }

    /// Stops all its processes in the middle of whatever they do: connections stay open, and nobody answers.
    pub fn pause(&self) {
        // The first one first: it makes the others.
        self.process.signal("STOP");
        self.signal_others("STOP");
    }

    /// Lets them go on.
    pub fn resume(&self) {
        self.signal_others("CONT");
        self.process.signal("CONT");
    }

    /// Ends all its processes at once, as if the machine had failed.
    pub fn kill(&mut self) {
        self.process.signal("STOP");
        self.signal_others("KILL");
        self.process.kill();
    }

    /// Starts it again after that, on the same port and data.
    pub async fn restart(&mut self) {
        self.process = launch(self.folder.path(), self.port);
        self.answers().await;
    }

    /// Starts it again as one that only follows another server, and waits for what that one writes.
    pub async fn become_standby(&mut self) {
        self.kill();
        let signal = self.folder.path().join("data/standby.signal");
        std::fs::write(&signal, "").expect("its folder is there");
        give_away(&signal);
        self.restart().await;
    }

    /// Its address.
    pub fn address(&self) -> std::net::SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// Makes a folder that the server may write to.
    pub fn make_folder_at(&self, folder: &Path) {
        std::fs::create_dir(folder).expect("a folder");
        give_away(folder);
    }

    /// Stops the processes behind connections to a database that nobody uses at this moment; says how many.
    pub async fn pause_idle(&self, url: &str) -> usize {
        let name = url.rsplit('/').next().expect("a name");
        let sql = format!("SELECT pid FROM pg_stat_activity WHERE datname = '{name}' AND state = 'idle'");
        let mut connection = AnyConnection::connect(&self.url("postgres")).await.expect("PostgreSQL answers");
        let idle = sqlx::query_scalar::<_, i32>(sqlx::AssertSqlSafe(sql)).fetch_all(&mut connection).await;
        let idle = idle.expect("it says who is there");
        for process in &idle {
            signal(*process, "STOP");
        }
        idle.len()
    }

    /// Runs a statement as the one who may do all, outside of any of the databases.
    pub async fn run(&self, sql: String) {
        let mut connection = AnyConnection::connect(&self.url("postgres")).await.expect("PostgreSQL answers");
        connection.execute(sqlx::AssertSqlSafe(sql)).await.expect("it is done");
    }

    fn signal_others(&self, name: &str) {
        for process in children(self.process.id()) {
            signal(process, name);
        }
    }

    /// Makes an empty database and gives its URL.
    pub async fn database(&self) -> String {
        self.database_with("").await
    }

    /// The same with what `CREATE DATABASE` takes.
    pub async fn database_with(&self, options: &str) -> String {
        let name = format!("countersign_{}", self.made.fetch_add(1, Ordering::SeqCst));
        self.run(format!("CREATE DATABASE {name} {options}")).await;
        self.url(&name)
    }

    /// Takes a database away, whoever is still connected.
    pub async fn drop_database(&self, url: &str) {
        let name = url.rsplit('/').next().expect("a name");
        self.run(format!("DROP DATABASE {name} WITH (FORCE)")).await;
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Its processes share memory, which a kill would leave behind.
        self.resume();
        self.process.signal("QUIT");
        self.process.wait();
        drop(self.janitor.stdin.take());
        let _status = self.janitor.wait();
    }
}

fn launch(folder: &Path, port: u16) -> Process {
    let mut server = as_server("postgres");
    server.arg("-D").arg(folder.join("data")).args(["-p", &port.to_string(), "-k"]).arg(folder);
    for setting in SETTINGS {
        server.args(["-c", setting]);
    }
    Process::start(server, &folder.join("log"))
}

/// Clears a folder away at the end of this process, or when its input is closed. In a group of its own: whoever
/// interrupts the tests does not interrupt it.
pub(crate) fn janitor(folder: &Path) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", JANITOR]).arg(folder).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.process_group(0).spawn().expect("sh exists")
}

/// In memory where there is such a place, with room.
fn memory() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let free = Command::new("df").args(["-k", "--output=avail"]).arg(memory).output().expect("df exists").stdout;
    let free = String::from_utf8_lossy(&free).lines().last().and_then(|line| line.trim().parse::<u64>().ok());
    if free.is_some_and(|free| free >= ROOM) { memory.to_owned() } else { std::env::temp_dir() }
}

fn signal(process: i32, name: &str) {
    // It may have ended by itself.
    let _gone = Command::new("kill").args(["-s", name, &process.to_string()]).output();
}

/// The processes that this one has started.
fn children(parent: u32) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").expect("this is Linux").flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |process: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // Behind its name, which may hold anything: its state, and who started it.
        let of = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        of == Some(parent)
    };
    numbers.filter(is_child).collect()
}

/// Makes a folder the server's.
fn give_away(folder: &Path) {
    if is_root() {
        let owned = Command::new("chown").args(["-R", SERVER_USER]).arg(folder).status();
        assert!(owned.expect("chown exists").success());
    }
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
