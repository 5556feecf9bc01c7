//! Structured logs on standard error, and the metrics of the process.

mod metric_factory;

pub use metric_factory::MetricFactory;

use crate::log_lines::{self, LogWriter};
use prometheus::{
    IntCounter, Opts, Registry,
    core::{Collector, Desc},
    opts,
    proto::MetricFamily,
};
use serde::Deserialize;
use std::{
    backtrace::{Backtrace, BacktraceStatus},
    panic::{self, PanicHookInfo},
    thread,
    time::Duration,
};
use tracing_subscriber::{EnvFilter, filter::LevelFilter, fmt};

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum LogFormat {
    /// Lines of plain text.
    Text,
    /// Lines that each contain a JSON object.
    Json,
}

impl TryFrom<String> for LogFormat {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("`{}` must be `json` or `text`", text.escape_debug())),
        }
    }
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
        if let Some(word) = self.unknown_level() {
            let word = word.escape_debug();
            return Err(format!(
                "log.level: `{word}` must be off, error, warn, info, debug or trace; for one module, write `{word}=debug`"
            ));
        }
        // The clients of Redis and PostgreSQL would log every failed attempt to connect. The control plane itself logs the loss of
        // both, at most once a minute. Later directives override earlier ones, so `level` can enable these logs. `error` applies
        // to targets for which `level` has no directive.
        let filter = EnvFilter::try_new(format!("error,redis=off,sqlx_core::pool=off,{}", self.level));
        filter.map_err(|error| format!("log.level: `{}`: {error}", self.level.escape_debug()))
    }

    /// The first directive that is a single word and no level. The log library takes it for the name of a module, so a misspelt
    /// level would disable the log. A `level` with brackets (for spans) is not checked: commas in brackets separate no directives.
    fn unknown_level(&self) -> Option<&str> {
        let words = self.level.split(',').map(str::trim).filter(|word| !word.is_empty() && !word.contains('='));
        words.filter(|_| !self.level.contains('[')).find(|word| word.parse::<LevelFilter>().is_err())
    }
}

/// How long a panic waits at most until it is written to the log, because the process may abort after it.
const PANIC_FLUSH_TIMEOUT: Duration = Duration::from_millis(100);

/// Installs the global log subscriber, and logs panics. A second call in the same process has no effect. `main` must keep a
/// [`crate::FlushAtExit`], so that the last lines are written.
pub fn init(settings: &LogSettings) -> Result<(), String> {
    let filter = settings.filter()?;
    log_lines::start().map_err(|error| format!("the thread that writes the log: {error}"))?;
    // A log line that cannot be written is dropped. With internal errors enabled, the log library would report that on standard error,
    // and panic if the report fails, too.
    let subscriber = fmt().with_env_filter(filter).with_writer(|| LogWriter).log_internal_errors(false);
    let installed = match settings.format {
        LogFormat::Text => subscriber.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => subscriber.json().flatten_event(true).try_init(),
    };
    if installed.is_ok() {
        // Rust's own hook writes to standard error itself, and would wait if nobody reads it.
        panic::set_hook(Box::new(log_panic));
    }
    Ok(())
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or("the panic has no message");
    let location = panic.location().map(ToString::to_string);
    // The backtrace is captured only if RUST_BACKTRACE is set.
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(location, thread = thread::current().name(), backtrace, "panicked: {message}");
    log_lines::flush(PANIC_FLUSH_TIMEOUT);
}

/// Creates a registry with the metrics of the process, the gauge `<prefix>_build_info{version}` and the counter
/// `<prefix>_log_lines_dropped_total`.
pub fn registry(prefix: &str, version: &str) -> Result<Registry, prometheus::Error> {
    let registry = Registry::new();
    let factory = MetricFactory { registry: &registry, prefix };
    let build = factory.gauge_vec("build_info", "Always 1; the labels describe the build", &["version"])?;
    build.with_label_values(&[version]).set(1);
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    registry.register(Box::new(DroppedLogLines::new(prefix)?))?;
    Ok(registry)
}

/// Defines an enum of the values of a metric label: `ALL` lists them, so that their time series can be created at zero, and
/// `as_str` is the text of the label.
#[macro_export]
macro_rules! label_values {
    ($(#[$enum_meta:meta])* pub enum $name:ident { $($(#[$value_meta:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$enum_meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$value_meta])* $value,)+
        }

        impl $name {
            /// All values of the label.
            pub const ALL: &'static [Self] = &[$(Self::$value,)+];

            /// The text of the label.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$value => $text,)+ }
            }
        }
    };
}

/// Registers a collector and returns it.
fn register<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

/// The number of log lines that were not written, read whenever metrics are collected.
struct DroppedLogLines {
    options: Opts,
    description: Desc,
}

impl DroppedLogLines {
    fn new(prefix: &str) -> Result<Self, prometheus::Error> {
        let help = "Log lines that were not written, because the reader of the log was too slow or a write failed";
        let options = opts!(format!("{prefix}_log_lines_dropped_total"), help);
        let description = Desc::new(options.fq_name(), options.help.clone(), Vec::new(), options.const_labels.clone())?;
        Ok(Self { options, description })
    }
}

impl Collector for DroppedLogLines {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.description]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let counter = IntCounter::with_opts(self.options.clone());
        counter.map_or_else(
            |_| Vec::new(),
            |counter| {
                counter.inc_by(log_lines::dropped());
                counter.collect()
            },
        )
    }
}
