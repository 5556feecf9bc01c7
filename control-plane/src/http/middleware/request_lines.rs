//! Bounds the number of log lines about requests. We log every request that a rate limit has accepted. Anybody can send any number
//! of other requests, so we log only some of them.

use crate::domain::string_enum::string_enum;
use axum::http::StatusCode;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Maximum number of lines of a class within one [`WINDOW`].
const MAX_LINES: u32 = 10;

/// After this time, a class may have [`MAX_LINES`] further lines.
const WINDOW: Duration = Duration::from_secs(1);

string_enum! {
    /// Requests whose log lines are bounded together.
    BoundedClass {
        /// No route has the path.
        UnknownPath = "unknown_path";
        /// The route has no rate limit.
        Unlimited = "unlimited";
        /// A rate limit refused the request, or no rate limit had counted it when it ended, or the client disconnected.
        Refused = "refused";
    }
}

/// How many log lines of one class were written in the current window, and how many were left out since the last report.
#[derive(Debug, Clone, Copy, Default)]
struct ClassCounts {
    began_at: Duration,
    written: u32,
    left_out: u64,
}

/// Counts the lines of each class.
#[derive(Default)]
pub struct RequestLogLines(Mutex<[ClassCounts; 3]>);

impl BoundedClass {
    /// The class of a request; `None` if a rate limit has accepted the request and so bounds its log lines.
    /// `route_is_limited` is `None` if no route has the path.
    pub fn of(route_is_limited: Option<bool>, is_counted: bool, status: u16) -> Option<Self> {
        match route_is_limited {
            None => Some(Self::UnknownPath),
            Some(false) => Some(Self::Unlimited),
            Some(true) => (!is_counted || status == StatusCode::TOO_MANY_REQUESTS.as_u16()).then_some(Self::Refused),
        }
    }
}

impl RequestLogLines {
    /// Returns whether to write the line of a request. If not, logs within one [`WINDOW`] how many lines were left out.
    pub fn admit(self: &Arc<Self>, class: BoundedClass, now: Duration) -> bool {
        let (is_written, is_first_left_out) = self.count(class, now);
        if is_first_left_out {
            let lines = Arc::clone(self);
            tokio::spawn(async move {
                tokio::time::sleep(WINDOW).await;
                let count = lines.take_left_out(class);
                tracing::info!(class = class.as_str(), count, "request lines left out");
            });
        }
        is_written
    }

    /// Counts a line. Returns whether to write the line, and whether it is the first that was left out since the last report.
    fn count(&self, class: BoundedClass, now: Duration) -> (bool, bool) {
        let mut classes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = &mut classes[class as usize];
        if now.saturating_sub(counts.began_at) >= WINDOW {
            (counts.began_at, counts.written) = (now, 0);
        }
        if counts.written < MAX_LINES {
            counts.written += 1;
            return (true, false);
        }
        counts.left_out += 1;
        (false, counts.left_out == 1)
    }

    fn take_left_out(&self, class: BoundedClass) -> u64 {
        let mut classes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut classes[class as usize].left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_its_own_lines_in_each_window() {
        let (lines, start) = (RequestLogLines::default(), Duration::from_secs(100));
        for class in BoundedClass::ALL.iter().copied() {
            for _ in 0..MAX_LINES {
                assert_eq!(lines.count(class, start), (true, false));
            }
            assert_eq!(lines.count(class, start + WINDOW / 2), (false, true));
            assert_eq!(lines.count(class, start + WINDOW / 2), (false, false));
            assert_eq!(lines.count(class, start + WINDOW), (true, false));
            assert_eq!(lines.take_left_out(class), 2);
            assert_eq!(lines.take_left_out(class), 0);
        }
    }

    #[test]
    fn requests_that_a_rate_limit_accepted_are_not_bounded() {
        let (ok, refused) = (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS);
        for (route_is_limited, is_counted, status, expected) in [
            (None, false, StatusCode::NOT_FOUND, Some(BoundedClass::UnknownPath)),
            (Some(false), false, ok, Some(BoundedClass::Unlimited)),
            (Some(true), true, ok, None),
            (Some(true), true, refused, Some(BoundedClass::Refused)),
            (Some(true), false, StatusCode::PAYLOAD_TOO_LARGE, Some(BoundedClass::Refused)),
        ] {
            assert_eq!(BoundedClass::of(route_is_limited, is_counted, status.as_u16()), expected);
        }
    }
}
