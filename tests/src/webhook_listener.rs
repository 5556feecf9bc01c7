//! Runs `countersign -o json webhook listen` and reads its output.

use crate::{
    Shell,
    process::{Process, eventually},
};
use serde_json::Value;
use std::process::ExitStatus;

/// A running listener.
pub struct WebhookListener {
    process: Process,
    /// URL of the listener.
    pub url: String,
    /// Id of the webhook target, if the command created one.
    pub target: Option<String>,
}

impl WebhookListener {
    /// Starts the command and waits until it listens.
    pub async fn start(shell: &Shell, arguments: &[&str]) -> Self {
        let command = shell.command(&[&["-o", "json", "webhook", "listen"], arguments].concat());
        let mut process = Process::start(command, &shell.new_path("listen"));
        let first = eventually(
            "the command prints its first line",
            async || {
                process.assert_running();
                json_lines(&process.log()).into_iter().next()
            },
            || "the command printed nothing".to_owned(),
        )
        .await;
        let text = |name: &str| first[name].as_str().map(str::to_owned);
        Self { process, url: text("listening").expect("the first line has the URL"), target: text("webhookId") }
    }

    /// The events printed so far.
    pub fn events(&self) -> Vec<Value> {
        json_lines(&self.process.log()).into_iter().filter(|line| line.get("eventId").is_some()).collect()
    }

    /// Waits for this number of events.
    pub async fn wait_for_events(&self, count: usize) -> Vec<Value> {
        let events_when_received = async || Some(self.events()).filter(|events| events.len() >= count);
        eventually(&format!("the listener prints {count} events"), events_when_received, || self.log()).await
    }

    /// All output, including errors.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Waits for the exit.
    pub async fn wait_for_exit(&mut self) -> ExitStatus {
        self.process.wait_for_exit().await
    }

    /// Sends a signal and waits for the exit.
    pub async fn stop(&mut self, signal: &str) -> ExitStatus {
        self.process.signal(signal);
        self.process.wait_for_exit().await
    }
}

/// Parses the complete lines that are JSON objects: the announcement, events and messages.
fn json_lines(log: &str) -> Vec<Value> {
    let complete_lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    complete_lines.filter_map(|line| serde_json::from_str(line).ok()).filter(Value::is_object).collect()
}
