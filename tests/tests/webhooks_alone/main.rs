//! Webhooks under crashes and in numbers: what needs the machine to itself, so one test runs after the other.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]
#![expect(clippy::print_stdout, reason = "what is measured here is worth reading")]

mod backlog;
mod chaos;
mod latency;

use tokio::sync::{Mutex, MutexGuard};

static ALONE: Mutex<()> = Mutex::const_new(());

/// Waits until no other test runs here.
async fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().await
}
