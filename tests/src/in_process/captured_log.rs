//! The log of a server that runs in the process of the test.

use std::{
    cell::RefCell,
    io::{self, Write},
    sync::{Arc, Mutex, PoisonError},
};
use tracing::{Dispatch, dispatcher::DefaultGuard, level_filters::LevelFilter};

/// Number of lines that a failed test prints.
const LAST_LINES: usize = 40;

thread_local! {
    /// Keeps the subscriber of a thread until the thread ends.
    static SUBSCRIBER: RefCell<Option<DefaultGuard>> = const { RefCell::new(None) };
}

/// What the threads of a server have logged.
#[derive(Clone, Default)]
pub struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl CapturedLog {
    /// A function that each thread of the server calls when it starts.
    pub fn capture_of_threads(&self) -> impl Fn() + Send + Sync + 'static {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt().with_max_level(LevelFilter::INFO).with_ansi(false);
        let dispatch = Dispatch::new(subscriber.with_writer(move || log.clone()).finish());
        move || SUBSCRIBER.set(Some(tracing::dispatcher::set_default(&dispatch)))
    }

    /// The log so far.
    pub fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Prints the end of the log, for a failed test.
    pub fn print_last_lines(&self) {
        let text = self.text();
        let lines: Vec<_> = text.lines().collect();
        eprintln!("---- last lines of a server\n{}", lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"));
    }
}

impl Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
