//! Reads the metrics and the log of a control plane.

use super::ControlPlane;
use crate::eventually;

impl ControlPlane {
    /// Value of a counter or gauge of the first replica, by the prefix of its line in `/metrics`.
    pub async fn metric(&self, line: &str) -> Option<f64> {
        self.admin().metric(line).await
    }

    /// Waits until the log contains a text.
    pub async fn wait_for_log(&self, text: &str) {
        eventually(text, async || self.log().contains(text).then_some(()), || self.log()).await;
    }
}
