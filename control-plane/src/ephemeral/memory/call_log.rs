//! The calls that were counted in one window.

use crate::ephemeral::rate_limit::{Quota, QuotaStatus};
use std::{collections::VecDeque, time::Duration};

/// The calls within a window, in microseconds since boot, oldest first.
#[derive(Debug, Default)]
pub(super) struct CallLog {
    /// Length of the window in microseconds.
    window: u64,
    max_calls: u32,
    calls: VecDeque<u64>,
    /// From this time on, the window accepts no call, so that it expires one length later.
    closes_at: Option<u64>,
}

impl CallLog {
    pub(super) fn remove_expired(&mut self, now: u64) {
        while self.calls.front().is_some_and(|first| now.saturating_sub(*first) >= self.window) {
            self.calls.pop_front();
        }
    }

    pub(super) fn is_expired(&self, now: u64) -> bool {
        self.calls.back().is_none_or(|last| now.saturating_sub(*last) >= self.window)
    }

    pub(super) fn count(&mut self, quota: Quota, now: u64) {
        (self.window, self.max_calls) = (micros(quota.window), quota.max_calls);
        self.calls.push_back(now);
    }

    pub(super) fn status(&self, max_calls: u32, now: u64) -> QuotaStatus {
        let until_expiry = |call: &u64| call.saturating_add(self.window).saturating_sub(now);
        if self.closes_at.is_some_and(|closes_at| closes_at <= now) {
            let expires_in = self.calls.back().map(until_expiry).unwrap_or_default();
            return QuotaStatus { remaining: 0, reset_after: Duration::from_micros(expires_in) };
        }
        let remaining = max_calls.saturating_sub(u32::try_from(self.calls.len()).unwrap_or(u32::MAX));
        let oldest_expires_in = self.calls.front().map(until_expiry);
        QuotaStatus { remaining, reset_after: Duration::from_micros(oldest_expires_in.unwrap_or_default()) }
    }

    /// One log for several windows with the same quota. It has the newest calls of all, as many as the quota allows, so at any
    /// time at least as many of its calls are live as of each of the logs: no caller gets more calls than before.
    pub(super) fn merge<'a>(logs: impl Iterator<Item = &'a Self>) -> Self {
        let mut merged = Self::default();
        let mut calls = Vec::new();
        for log in logs {
            merged.window = merged.window.max(log.window);
            merged.max_calls = merged.max_calls.max(log.max_calls);
            calls.extend(&log.calls);
        }
        calls.sort_unstable();
        let excess = calls.len().saturating_sub(merged.max_calls as usize);
        merged.calls = calls.drain(excess..).collect();
        merged
    }

    /// Limits the time for which the window accepts calls to its own length. Otherwise callers who repeat their calls would keep a
    /// common window for ever.
    #[must_use]
    pub(super) fn accepting_for_its_length(self, now: u64) -> Self {
        Self { closes_at: Some(now.saturating_add(self.window)), ..self }
    }

    /// A log with the same quota as this one, which is exhausted now.
    pub(super) fn exhausted(&self, now: u64) -> Self {
        let calls = std::iter::repeat_n(now, self.max_calls as usize).collect();
        Self { window: self.window, max_calls: self.max_calls, calls, closes_at: None }
    }
}

pub(super) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
