//! Libraries that a process loads to have a wrong clock (libfaketime) or failing system calls (libfiu).

use crate::{process::eventually, tools};
use std::{fs, path::PathBuf};
use tempfile::TempDir;

/// A wall clock that a test sets while processes run. The clock that measures durations stays correct.
pub struct WrongClock {
    folder: TempDir,
}

impl WrongClock {
    /// A clock that differs from the real time by these seconds.
    pub fn new(offset_seconds: i64) -> Self {
        let clock = Self { folder: tempfile::tempdir().expect("a temporary folder can be created") };
        clock.set(offset_seconds);
        clock
    }

    /// Moves the clock of all processes that use it.
    pub fn set(&self, offset_seconds: i64) {
        let (file, new) = (self.file(), self.folder.path().join("new"));
        fs::write(&new, format!("{offset_seconds:+}s\n")).expect("the file can be written");
        // Processes must never read a file that is partly written.
        fs::rename(new, file).expect("the file can be renamed");
    }

    /// The environment of a process with this clock.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let library = tools::fault_library("faketime/libfaketimeMT.so.1");
        vec![
            ("LD_PRELOAD", library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file().display().to_string()),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ]
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }
}

/// System calls of a process that fail while a test wants them to.
pub struct FailingCalls {
    folder: TempDir,
}

/// The error of the operating system for a defective disk (`EIO`).
const INPUT_OUTPUT_ERROR: u32 = 5;

impl FailingCalls {
    /// The environment of the process.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let library = |name: &str| tools::fault_library(name).display().to_string();
        let folder = tools::fault_library("libfiu.so.0").with_file_name("");
        vec![
            ("LD_LIBRARY_PATH", folder.display().to_string()),
            ("LD_PRELOAD", format!("{} {}", library("fiu/fiu_run_preload.so"), library("fiu/fiu_posix_preload.so"))),
            ("FIU_CTRL_FIFO", self.folder.path().join("control").display().to_string()),
        ]
    }

    /// Lets a kind of call fail with an input/output error, such as `posix/io/sync/*`.
    pub async fn enable(&self, process: u32, calls: &str) {
        self.control(process, &format!("enable name={calls},failinfo={INPUT_OUTPUT_ERROR}")).await;
    }

    /// Lets a kind of call succeed again.
    pub async fn disable(&self, process: u32, calls: &str) {
        self.control(process, &format!("disable name={calls}")).await;
    }

    /// Sends a command to the library in the process, which answers `0`.
    async fn control(&self, process: u32, command: &str) {
        let pipe = |end: &str| self.folder.path().join(format!("control-{process}.{end}"));
        let exists = async || pipe("out").exists().then_some(());
        eventually("libfiu listens", exists, String::new).await;
        let (input, output, command) = (pipe("in"), pipe("out"), format!("{command}\n"));
        let exchange = move || {
            // Opening a pipe waits until the other side opens it, so write in another thread.
            let write = std::thread::spawn(move || fs::write(input, command));
            let answer = fs::read_to_string(output).expect("the library answers");
            write.join().expect("the thread does not panic").expect("the library reads the command");
            answer
        };
        let answer = tokio::task::spawn_blocking(exchange).await.expect("the task does not panic");
        assert_eq!(answer.trim(), "0", "libfiu refused a command");
    }
}

impl Default for FailingCalls {
    /// No system call fails yet.
    fn default() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder can be created") }
    }
}
