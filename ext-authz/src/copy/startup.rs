//! Opens the copy at the start, if the control plane is away.

use super::{CopyDirectory, CopyKey, CopyRejection};
use crate::{
    metrics::Metrics,
    view::{ApiKeyIndex, View, Views},
};
use countersign_process::Clock;
use std::{sync::Arc, time::Duration};

/// How long the sidecar waits for the control plane before it uses a copy.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(1);

/// The copy of one API key at the start.
pub struct CopyAtStart {
    /// The API key, by its index in the settings.
    pub index: ApiKeyIndex,
    /// The key of the copy.
    pub key: CopyKey,
    /// The directory with the copies.
    pub directory: CopyDirectory,
    /// The maximum staleness in the sidecar's settings.
    pub staleness_limit: Option<Duration>,
    /// The views, which show whether the control plane has answered.
    pub views: Arc<Views>,
    /// The metrics of copies.
    pub metrics: Arc<Metrics>,
    /// The source of the current time.
    pub clock: Arc<dyn Clock>,
}

impl CopyAtStart {
    /// Waits for the control plane. Returns the view of the copy if the control plane has sent no data by then, has not refused the
    /// API key, and the copy can be used.
    pub async fn view_without_contact(self) -> Option<Arc<View>> {
        tokio::time::sleep(CONTACT_TIMEOUT).await;
        if self.had_contact() {
            return None;
        }
        let Self { index, key, directory, staleness_limit, .. } = &self;
        let path = directory.path_of(key);
        let opened = if self.views.is_key_unknown(*index) {
            Err(CopyRejection::KeyRefused)
        } else {
            let (directory, limit) = (directory.clone(), *staleness_limit);
            let key = self.key.clone();
            let opened = tokio::task::spawn_blocking(move || directory.open(&key, limit)).await;
            opened.unwrap_or(Err(CopyRejection::Unreadable))
        };
        let restored = opened.and_then(|stored| stored.map(|stored| stored.restore(&*self.clock)).transpose());
        let restored = restored.and_then(|view| match view {
            Some(_) if self.views.is_key_unknown(*index) => Err(CopyRejection::KeyRefused),
            view => Ok(view),
        });
        match restored {
            Ok(Some(_)) if self.had_contact() => None,
            Ok(Some(view)) => Some(Arc::new(view)),
            Ok(None) => {
                tracing::info!(key = index.0, path = %path.display(), "there is no copy of the view on disk");
                None
            }
            Err(rejection) => {
                self.metrics.copies().rejected(rejection);
                let reason = rejection.as_str();
                tracing::warn!(key = index.0, path = %path.display(), reason, "the copy of the view is not used: {rejection}");
                None
            }
        }
    }

    fn had_contact(&self) -> bool {
        self.views.of_key(self.index).is_some()
    }
}
