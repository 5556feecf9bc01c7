//! Logs a lasting problem only once a minute, so that the same line does not fill the log.

use crate::{Clock, SystemClock};
use std::time::Duration;

/// The shortest time between two lines.
const INTERVAL: Duration = Duration::from_mins(1);

/// When a line was logged last.
#[derive(Debug, Default)]
pub(super) struct RareLine(Option<Duration>);

impl RareLine {
    /// Whether the line is to be logged now: at most once a minute.
    pub(super) fn is_due(&mut self) -> bool {
        let now = SystemClock.since_boot();
        let is_due = self.0.is_none_or(|logged_at| now.saturating_sub(logged_at) >= INTERVAL);
        if is_due {
            self.0 = Some(now);
        }
        is_due
    }
}
