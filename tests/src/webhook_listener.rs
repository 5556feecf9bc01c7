//! `countersign -o json webhook listen` as a receiver of webhooks, and what it prints.

use crate::{
    Shell,
    process::{Process, eventually},
};
use serde_json::Value;
use std::process::ExitStatus;

/// Somebody who listens.
pub struct WebhookListener {
    process: Process,
    /// Where.
    pub url: String,
    /// The target that was made for it, if one was.
    pub target: Option<String>,
}

impl WebhookListener {
    /// Starts it, and waits until it listens.
    pub async fn start(shell: &Shell, more: &[&str]) -> Self {
        let command = shell.command(&[&["-o", "json", "webhook", "listen"], more].concat());
        let mut process = Process::start(command, &shell.new_path("listen"));
        let first = eventually(
            "it listens",
            async || {
                process.assert_running();
                said(&process.log()).into_iter().next()
            },
            || "it says nothing".to_owned(),
        )
        .await;
        let text = |name: &str| first[name].as_str().map(str::to_owned);
        Self { process, url: text("listening").expect("it says where"), target: text("webhookId") }
    }

    /// What has arrived so far.
    pub fn arrived(&self) -> Vec<Value> {
        said(&self.process.log()).into_iter().skip(1).collect()
    }

    /// What arrived, when it is as much as this.
    pub async fn arrivals(&self, count: usize) -> Vec<Value> {
        let enough = async || Some(self.arrived()).filter(|arrived| arrived.len() >= count);
        eventually("enough arrived", enough, || self.log()).await
    }

    /// All that it wrote, errors too.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Waits until it ends by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        self.process.ended().await
    }

    /// Asks it to stop, by the name of a signal, and waits until it has.
    pub async fn stop(&mut self, signal: &str) -> ExitStatus {
        self.process.signal(signal);
        self.process.ended().await
    }
}

/// The lines that are whole objects; an error that follows is laid out over several.
fn said(log: &str) -> Vec<Value> {
    let whole = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.filter_map(|line| serde_json::from_str(line).ok()).filter(Value::is_object).collect()
}
