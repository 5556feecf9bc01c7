//! Starts nginx with a test configuration.

use crate::{
    http::{HttpClient, HttpResponse},
    process::{Process, eventually, free_port},
    tools,
};
use std::{path::Path, process::Command};
use tempfile::TempDir;

/// An nginx process.
pub struct Nginx {
    // Declared before the folder: if the test panics, dropping the process prints the log in the folder.
    _process: Process,
    _folder: TempDir,
    /// HTTP client of the listener.
    pub listener: HttpClient,
    /// Port of the listener, on loopback.
    pub port: u16,
}

impl Nginx {
    /// Starts nginx. `site` gets the address of the listener and the folder of nginx, and returns the settings of the block `http`.
    pub async fn start(site: impl FnOnce(&str, &Path) -> String) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let port = free_port();
        let address = format!("127.0.0.1:{port}");
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {};\n", path(name)))
            .concat();
        let config = format!(
            "user root;\npid {};\nerror_log stderr crit;\nworker_processes 1;\ndaemon off;\nevents {{}}\n\
             http {{\naccess_log off;\n{temporary}{}\n}}\n",
            path("pid"),
            site(&address, folder.path())
        );
        std::fs::write(path("nginx.conf"), config).expect("the configuration can be written");
        let mut command = Command::new(tools::program("nginx"));
        command.args(["-p", &path(""), "-c", &path("nginx.conf"), "-e", "stderr"]);
        let mut process = Process::start(command, &folder.path().join("log"));
        let listener = HttpClient::plain(format!("http://{address}"));
        let ready = async || {
            process.assert_running();
            HttpResponse::try_send(listener.request("GET", "/health")).await
        };
        eventually("nginx listens", ready, String::new).await;
        Self { _process: process, _folder: folder, listener, port }
    }
}
