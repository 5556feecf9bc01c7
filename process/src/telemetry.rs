//! Structured logs on standard error, and the metrics every process has.

use prometheus::{Registry, core::Collector};
use serde::Deserialize;
use tracing_subscriber::{EnvFilter, fmt};

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line, for programs.
    Json,
}

/// The settings of `[log]`.
#[derive(Debug, Clone, Deserialize)]
pub struct LogSettings {
    /// `text` or `json`.
    pub format: LogFormat,
    /// A filter such as `info` or `info,countersign_control_plane=debug`.
    pub level: String,
}

impl LogSettings {
    /// What is wrong with them.
    pub fn validation_error(&self) -> Option<String> {
        self.filter().err()
    }

    fn filter(&self) -> Result<EnvFilter, String> {
        // The library of Redis says what becomes of each of its tries, which are many while Redis is lost: we say it once.
        // What is said later of the same holds; of nothing, errors are logged.
        EnvFilter::try_new(format!("error,redis=off,{}", self.level)).map_err(|error| format!("log.level: {error}"))
    }
}

/// Installs the log. A second call in the same process changes nothing.
pub fn init(settings: &LogSettings) -> Result<(), String> {
    let filter = settings.filter()?;
    // A log that cannot be written is lost and nothing else: by default the library reports that on the
    // same standard error, and panics when this fails too.
    let lines = fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
    let _already_installed = match settings.format {
        LogFormat::Text => lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    Ok(())
}

/// A registry with the figures of the process and of the build: `<prefix>_build_info{version}`.
pub fn registry(prefix: &str, version: &str) -> Result<Registry, prometheus::Error> {
    let registry = Registry::new();
    let build = prometheus::IntGaugeVec::new(
        prometheus::opts!(format!("{prefix}_build_info"), "Always 1; the labels say which build runs"),
        &["version"],
    )?;
    build.with_label_values(&[version]).set(1);
    register(&registry, build)?;
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    Ok(registry)
}

/// Registers a collector and gives it back.
pub fn register<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}
