//! Reloads files whose content changes while the process runs, such as TLS certificates.
//!
//! The files are read at an interval and compared by content. File-system notifications would miss the usual ways to
//! replace a file: Kubernetes replaces a symbolic link of a parent directory, and other tools rename a new file over the old one.
//!
//! Invariants:
//! - New content is used only after two reads in a row found it. A file may be read while it is written, and the first half of a
//!   certificate chain is valid by itself.
//! - Content that cannot be used replaces nothing. We retry at each interval, because two files of a pair change one by one.
//! - The log reports a failure once, until the failure changes.

use crate::{Clock, telemetry::MetricFactory};
use aws_lc_rs::digest::{Context, SHA256};
use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec};
use std::{
    convert::Infallible,
    fs::File,
    io::{self, Read},
    mem,
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};
use tokio::{sync::oneshot, time::timeout};
use zeroize::Zeroizing;

/// The interval at which files are read.
pub const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// A read that takes this long is logged once. In the metrics, it counts as a failure each time this interval has passed.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum size of a file in bytes. A bundle of all public certificate authorities is smaller.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// The contents of the files, in the order of their paths.
pub type FileContents = Vec<Zeroizing<Vec<u8>>>;

/// Puts new contents into use. Returns a description of them for the log, or why they cannot be used.
pub type LoadContents = Box<dyn FnMut(&FileContents) -> Result<String, String> + Send>;

/// Files that belong together, such as a certificate and its private key, and whose contents are in use.
#[derive(Debug)]
pub struct LoadedFiles {
    /// The setting that names the files, for the log and the metrics.
    setting: String,
    paths: Vec<PathBuf>,
    in_use: ContentDigest,
}

impl LoadedFiles {
    /// The files that a setting names, with the contents in use.
    pub fn new(setting: impl Into<String>, files: &[(&Path, &[u8])]) -> Self {
        let (paths, contents): (Vec<_>, Vec<_>) =
            files.iter().map(|(path, content)| (path.to_path_buf(), *content)).unzip();
        Self { setting: setting.into(), paths, in_use: ContentDigest::of(&contents) }
    }
}

/// A digest of the contents of files that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ContentDigest(Vec<u8>);

impl ContentDigest {
    /// The digest of the contents of files, in the order of their paths.
    fn of(contents: &[impl AsRef<[u8]>]) -> Self {
        let mut digest = Context::new(&SHA256);
        for content in contents {
            let content = content.as_ref();
            // The length makes the encoding injective: bytes cannot move from one file to the next.
            digest.update(&(content.len() as u64).to_be_bytes());
            digest.update(content);
        }
        Self(digest.finish().as_ref().to_vec())
    }
}

/// The metrics of reloaded files.
#[derive(Debug, Clone)]
pub struct FileReloadMetrics {
    reloads: IntCounterVec,
    loaded_at: GaugeVec,
}

impl FileReloadMetrics {
    /// Creates the metrics.
    pub fn new(factory: &MetricFactory) -> prometheus::Result<Self> {
        let reloads = "Attempts to load changed files, by setting and result";
        let loaded_at = "When the used content of files was loaded, in Unix seconds";
        Ok(Self {
            reloads: factory.counter_vec("file_reloads_total", reloads, &["setting", "result"])?,
            loaded_at: factory.float_gauge_vec("file_loaded_timestamp_seconds", loaded_at, &["setting"])?,
        })
    }
}

/// Reads files at an interval, and loads them when their content has changed.
pub struct FileReloader {
    files: LoadedFiles,
    load: LoadContents,
    clock: Arc<dyn Clock>,
    /// [`READ_TIMEOUT`], except in tests.
    read_timeout: Duration,
    /// The content at the last read.
    last_read: ContentDigest,
    /// The last reported failure, until the files can be loaded or have the content in use again.
    failure: Option<String>,
    succeeded: IntCounter,
    failed: IntCounter,
    loaded_at: Gauge,
}

impl FileReloader {
    /// A reloader of files. `load` puts new contents into use.
    pub fn new(files: LoadedFiles, load: LoadContents, metrics: &FileReloadMetrics, clock: Arc<dyn Clock>) -> Self {
        let setting = files.setting.as_str();
        let reloader = Self {
            succeeded: metrics.reloads.with_label_values(&[setting, "ok"]),
            failed: metrics.reloads.with_label_values(&[setting, "failed"]),
            loaded_at: metrics.loaded_at.with_label_values(&[setting]),
            last_read: files.in_use.clone(),
            files,
            load,
            clock,
            read_timeout: READ_TIMEOUT,
            failure: None,
        };
        reloader.set_loaded_at();
        reloader
    }

    /// Reads the files at an interval; never returns.
    ///
    /// Each read has a thread of its own, so that a file system that does not respond delays no task. A blocking task of the
    /// runtime would also delay the end of the process, which waits for it. The next read begins only after the last one has ended,
    /// so there is at most one such thread.
    pub async fn run(self, interval: Duration) -> Infallible {
        let (setting, failed, read_timeout) = (self.files.setting.clone(), self.failed.clone(), self.read_timeout);
        let reloader = Arc::new(Mutex::new(self));
        loop {
            tokio::time::sleep(interval).await;
            let (sender, mut finished) = oneshot::channel::<Infallible>();
            let polled = Arc::clone(&reloader);
            let poll = move || {
                lock(&polled).poll();
                drop(sender);
            };
            match thread::Builder::new().name("file-reload".to_owned()).spawn(poll) {
                Ok(thread) => {
                    // The channel closes when the poll has ended.
                    let mut is_reported = false;
                    while timeout(read_timeout, &mut finished).await.is_err() {
                        failed.inc();
                        if !mem::replace(&mut is_reported, true) {
                            tracing::error!(
                                setting,
                                "the files cannot be read, because the file system does not respond"
                            );
                        }
                    }
                    if is_reported {
                        tracing::info!(setting, "the file system responds again");
                    }
                    if let Err(panic) = thread.join() {
                        resume_unwind(panic);
                    }
                }
                Err(error) => lock(&reloader).report_failure(format!("no thread can be started: {error}")),
            }
        }
    }

    /// Reads the files once. Loads them if their content is not the content in use, and is the same as at the last read.
    pub fn poll(&mut self) {
        let contents = match self.read() {
            Ok(contents) => contents,
            Err(error) => return self.report_failure(error),
        };
        let digest = ContentDigest::of(&contents);
        if digest == self.files.in_use {
            if self.failure.take().is_some() {
                tracing::info!(setting = self.files.setting, "the files have the content in use again");
            }
            return;
        }
        if mem::replace(&mut self.last_read, digest.clone()) != digest {
            return;
        }
        match (self.load)(&contents) {
            Ok(description) => {
                self.files.in_use = digest;
                self.failure = None;
                self.succeeded.inc();
                self.set_loaded_at();
                tracing::info!(setting = self.files.setting, loaded = description, "reloaded changed files");
            }
            Err(error) => self.report_failure(error),
        }
    }

    fn read(&self) -> Result<FileContents, String> {
        let read = |path: &PathBuf| read_file(path).map_err(|error| format!("{}: {error}", path.display()));
        self.files.paths.iter().map(read).collect()
    }

    fn report_failure(&mut self, error: String) {
        self.failed.inc();
        if self.failure.as_ref() != Some(&error) {
            tracing::error!(
                setting = self.files.setting,
                error,
                "changed files cannot be loaded; their previous content stays in use until they can"
            );
            self.failure = Some(error);
        }
    }

    fn set_loaded_at(&self) {
        self.loaded_at.set(self.clock.now().as_seconds());
    }
}

fn lock(reloader: &Mutex<FileReloader>) -> MutexGuard<'_, FileReloader> {
    reloader.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_file(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut content = Zeroizing::new(Vec::new());
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {MAX_FILE_BYTES} bytes")));
    }
    Ok(content)
}

#[cfg(test)]
mod tests;
