//! Tests that the server answers and stops although the reader of its log, or a file that it reads, hangs.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{ControlPlane, HttpClient, HttpResponse, Issuer, eventually, tools};
use std::{
    fs::OpenOptions,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};
use tempfile::TempDir;
use tokio::task::JoinSet;

/// Number of clients that send requests at the same time.
const CLIENTS: usize = 20;

/// Number of requests of each client. Their log lines are much longer than the buffer of a pipe.
const REQUESTS: usize = 200;

/// How long all requests may take together, with a margin for busy machines.
const DEADLINE: Duration = Duration::from_mins(2);

/// `O_NONBLOCK` of Linux: opening a named pipe for writing fails unless a reader has opened it.
const NON_BLOCKING: i32 = 0o4000;

/// A server in a process that the test kills at its end.
struct Server {
    child: Child,
    folder: TempDir,
}

impl Server {
    fn start(stderr: Stdio, settings: &[String]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(tools::binary("countersign-control-plane"));
        command.args(["--dev", "--set", &format!("data_dir={}", folder.path().display())]);
        let ports = ["api", "sync", "admin"].map(|port| format!("listen.{port}=127.0.0.1:0"));
        for setting in ports.iter().chain(settings) {
            command.args(["--set", setting]);
        }
        Self { child: command.stderr(stderr).spawn().unwrap(), folder }
    }

    /// HTTP clients of the API and of the admin port.
    async fn clients(&self) -> (HttpClient, HttpClient) {
        let env = self.folder.path().join("dev.env");
        let env = eventually("dev.env exists", async || std::fs::read_to_string(&env).ok(), String::new).await;
        let value = |name: &str| env.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
        let authority = std::fs::read(value("COUNTERSIGN_CA=")).unwrap();
        let api = HttpClient::trusting(value("COUNTERSIGN_URL="), &authority);
        let admin = HttpClient::plain(value("COUNTERSIGN_ADMIN_URL="));
        let ready = async || {
            let response = HttpResponse::try_send(admin.request("GET", "/readyz")).await?;
            (response.status == 200).then_some(())
        };
        eventually("the server is ready", ready, String::new).await;
        (api, admin)
    }

    async fn terminate(&mut self) -> ExitStatus {
        assert!(Command::new("kill").arg(self.child.id().to_string()).status().unwrap().success());
        eventually("the server stops", async || self.child.try_wait().unwrap(), String::new).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

async fn dropped_lines(admin: &HttpClient) -> Option<f64> {
    admin.metric("countersign_log_lines_dropped_total ").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_the_log_that_stops_does_not_stop_the_server() {
    // The pipe of the log stays open, and nobody reads it.
    let mut server = Server::start(Stdio::piped(), &[]);
    let (api, admin) = server.clients().await;
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let api = api.clone();
        clients.spawn(async move {
            for _ in 0..REQUESTS {
                api.get("/nope").await.expect(404);
            }
        });
    }
    tokio::time::timeout(DEADLINE, clients.join_all()).await.expect("the server answers");
    api.get("/health").await.expect(200);
    admin.get("/livez").await.expect(200);
    assert_eq!(dropped_lines(&admin).await, Some(0.0), "the lines fit into the buffer");
    assert!(server.terminate().await.success());
}

#[tokio::test]
async fn lines_of_a_closed_log_are_counted() {
    let mut server = Server::start(Stdio::piped(), &[]);
    let (api, admin) = server.clients().await;
    drop(server.child.stderr.take());
    let counted = async || {
        api.get("/health").await.expect(200);
        (dropped_lines(&admin).await > Some(2.0)).then_some(())
    };
    eventually("lines are counted", counted, String::new).await;
    assert!(server.terminate().await.success());
}

#[tokio::test]
async fn sighup_does_not_stop_a_server_without_a_terminal() {
    let control = ControlPlane::start_one_with(&[]).await;
    control.signal("HUP");
    control.wait_for_log("SIGHUP is ignored").await;
    control.api.get("/health").await.expect(200);
}

/// Makes a named pipe to which nobody writes, and waits until the server reads it.
async fn wait_for_reader(pipe: &Path) -> std::fs::File {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(NON_BLOCKING);
    eventually("the server opens the file", async || options.open(pipe).ok(), String::new).await
}

#[tokio::test]
async fn a_read_of_a_file_that_hangs_does_not_delay_the_end_of_the_process() {
    let (issuer, folder) = (Issuer::start(&[]).await, tempfile::tempdir().unwrap());
    let pipe = folder.path().join("jwks.json");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let settings = issuer.settings("corp", &[("jwks", pipe.to_str().unwrap())]);
    let mut server = Server::start(Stdio::null(), &settings);
    let _writer = wait_for_reader(&pipe).await;
    assert!(server.terminate().await.success());
}
