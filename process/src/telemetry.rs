//! Structured logs on standard error, and the metrics of the process.

use prometheus::{Registry, core::Collector};
use serde::Deserialize;
use tracing_subscriber::{EnvFilter, fmt};

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines of plain text.
    Text,
    /// Lines that each contain a JSON object.
    Json,
}

/// The settings of the table `[log]`.
#[derive(Debug, Clone, Deserialize)]
pub struct LogSettings {
    /// The format of log lines.
    pub format: LogFormat,
    /// The filter of log lines, such as `info` or `info,countersign_control_plane=debug`.
    pub level: String,
}

impl LogSettings {
    /// The error message for an invalid `level`; `None` if `level` is valid.
    pub fn validation_error(&self) -> Option<String> {
        self.filter().err()
    }

    fn filter(&self) -> Result<EnvFilter, String> {
        // While Redis is down, the Redis client logs every attempt to connect. The control plane itself logs the loss
        // of Redis, once. Later filter directives override earlier directives, so the setting `level` can enable the
        // log of the Redis client. The directive `error` applies to log targets for which `level` has no directive.
        EnvFilter::try_new(format!("error,redis=off,{}", self.level)).map_err(|error| format!("log.level: {error}"))
    }
}

/// Installs the global log subscriber. A second call in the same process has no effect.
pub fn init(settings: &LogSettings) -> Result<(), String> {
    let filter = settings.filter()?;
    // A log line that cannot be written is dropped. With internal errors enabled, the log library would report the
    // failed write on standard error, and panic if the report fails too.
    let subscriber = fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
    let _already_installed = match settings.format {
        LogFormat::Text => subscriber.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => subscriber.json().flatten_event(true).try_init(),
    };
    Ok(())
}

/// Creates a registry with the metrics of the process and the gauge `<prefix>_build_info{version}`.
pub fn registry(prefix: &str, version: &str) -> Result<Registry, prometheus::Error> {
    let registry = Registry::new();
    let build = prometheus::IntGaugeVec::new(
        prometheus::opts!(format!("{prefix}_build_info"), "Always 1; the labels describe the build"),
        &["version"],
    )?;
    build.with_label_values(&[version]).set(1);
    register(&registry, build)?;
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    Ok(registry)
}

/// Registers a collector and returns it.
pub fn register<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}
