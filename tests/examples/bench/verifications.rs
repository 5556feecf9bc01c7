//! Keeps the verifications of a service below the highest rate limit that the control plane accepts.

use countersign_process::{Clock as _, SystemClock};
use std::{cell::RefCell, collections::VecDeque, time::Duration};

/// The verifications of a minute after which the next measurement waits: with those of one more measurement, less than the highest rate
/// limit, a million.
const MAX_VERIFICATIONS: f64 = 900_000.0;

/// The times and numbers of the verifications of the last minute.
#[derive(Default)]
pub struct RecentVerifications(RefCell<VecDeque<(Duration, f64)>>);

impl RecentVerifications {
    /// The verifications per second of a measurement that takes a second. Waits before it if the rate limit is near.
    pub async fn measure(&self, per_second: impl Future<Output = f64>) -> f64 {
        while self.count() > MAX_VERIFICATIONS {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let per_second = per_second.await;
        self.0.borrow_mut().push_back((SystemClock.since_boot(), per_second));
        per_second
    }

    fn count(&self) -> f64 {
        let since = SystemClock.since_boot().saturating_sub(Duration::from_secs(65));
        let mut recent = self.0.borrow_mut();
        recent.retain(|(time, _)| *time >= since);
        recent.iter().map(|(_, count)| count).sum()
    }
}
