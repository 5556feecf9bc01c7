//! The calls that were counted in one window.

use crate::ephemeral::rate_limit::QuotaStatus;
use std::{collections::VecDeque, time::Duration};

/// The calls within a window, in microseconds since boot, oldest first.
#[derive(Debug, Default)]
pub(super) struct CallLog {
    /// Length of the window in microseconds.
    window: u64,
    calls: VecDeque<u64>,
}

impl CallLog {
    pub(super) fn remove_expired(&mut self, now: u64) {
        while self.calls.front().is_some_and(|first| now.saturating_sub(*first) >= self.window) {
            self.calls.pop_front();
        }
    }

    pub(super) fn count(&mut self, window: u64, now: u64) {
        self.window = window;
        self.calls.push_back(now);
    }

    pub(super) fn status(&self, max_calls: u32, now: u64) -> QuotaStatus {
        let until_expiry = |call: &u64| call.saturating_add(self.window).saturating_sub(now);
        let remaining = max_calls.saturating_sub(u32::try_from(self.calls.len()).unwrap_or(u32::MAX));
        let oldest_expires_in = self.calls.front().map(until_expiry);
        QuotaStatus { remaining, reset_after: Duration::from_micros(oldest_expires_in.unwrap_or_default()) }
    }
}

pub(super) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
