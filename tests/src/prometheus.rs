//! Starts Prometheus, and runs its linter `promtool`.

use crate::{
    http::HttpClient,
    process::{Process, eventually, free_port},
    tools,
};
use std::{
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};
use tempfile::TempDir;

/// A Prometheus process.
pub struct Prometheus {
    process: Process,
    client: HttpClient,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts Prometheus with these scrape jobs (name, address) and a scrape interval of 200 ms.
    pub async fn start(targets: &[(&str, &str)]) -> Self {
        Self::start_with_rules(targets, &[]).await
    }

    /// Like `start`, with these files of rules, which are evaluated every 200 ms.
    pub async fn start_with_rules(targets: &[(&str, &str)], rules: &[PathBuf]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let jobs = targets.iter().map(|(job, address)| {
            let address = address.trim_start_matches("http://");
            format!("  - job_name: {job}\n    static_configs:\n      - targets: [\"{address}\"]\n")
        });
        let config = format!(
            "global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}}\n\
             rule_files: {rules:?}\nscrape_configs:\n{}",
            jobs.collect::<String>()
        );
        let (file, port) = (folder.path().join("prometheus.yml"), free_port());
        std::fs::write(&file, config).expect("the file can be written");
        let mut command = Command::new(tools::program("prometheus"));
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let process = Process::start(command, &folder.path().join("log"));
        let prometheus =
            Self { process, client: HttpClient::plain(format!("http://127.0.0.1:{port}")), _folder: folder };
        for (job, _) in targets {
            prometheus.wait_for_value(&format!("up{{job=\"{job}\"}}"), 1.0).await;
        }
        prometheus
    }

    /// The value of a `PromQL` expression; `None` without a response or a matching series.
    pub async fn query(&self, expression: &str) -> Option<f64> {
        self.query_all(expression).await?.first().copied()
    }

    /// The values of all series that a `PromQL` expression gives, `None` if there is no response.
    pub async fn query_all(&self, expression: &str) -> Option<Vec<f64>> {
        let query: String = form_urlencoded::byte_serialize(expression.as_bytes()).collect();
        let request = self.client.request("GET", &format!("/api/v1/query?query={query}"));
        let body: serde_json::Value = request.send().await.ok()?.json().await.ok()?;
        assert_ne!(body["status"], "error", "{expression}: {body}");
        body["data"]["result"].as_array()?.iter().map(|series| series["value"][1].as_str()?.parse().ok()).collect()
    }

    /// The loaded rules of all groups, as Prometheus describes them.
    pub async fn rules(&self) -> Vec<serde_json::Value> {
        let body = self.client.get("/api/v1/rules").await.expect(200);
        let groups = body["data"]["groups"].as_array().expect("there are groups");
        groups.iter().flat_map(|group| group["rules"].as_array().expect("a group has rules").clone()).collect()
    }

    /// Waits until an expression has this value.
    pub async fn wait_for_value(&self, expression: &str, expected: f64) {
        let last = std::cell::Cell::new(None);
        eventually(
            expression,
            async || {
                last.set(self.query(expression).await);
                last.get().filter(|value| (value - expected).abs() < 1e-9)
            },
            || format!("expected {expected}, last value {:?}\n{}", last.get(), self.process.log()),
        )
        .await;
    }
}

/// Runs `promtool` in the root of the checkout. Panics if it finds an error.
pub fn promtool(arguments: &[&str]) {
    let mut command = Command::new(tools::program("promtool"));
    let output = command.args(arguments).current_dir(tools::root()).output().expect("promtool runs");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
}

/// Runs `promtool check metrics` and returns its findings, which are empty for valid metrics.
pub fn lint(metrics: &str) -> String {
    let mut command = Command::new(tools::program("promtool"));
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool runs");
    child.stdin.take().expect("stdin is piped").write_all(metrics.as_bytes()).expect("promtool reads its input");
    let output = child.wait_with_output().expect("promtool ends");
    let findings = [output.stdout, output.stderr].concat();
    let findings = String::from_utf8_lossy(&findings).into_owned();
    if output.status.success() { findings } else { format!("{}: {findings}", output.status) }
}
