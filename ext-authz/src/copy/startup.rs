//! Opens the copy of a view at the start, if the control plane is unreachable.

use super::{CopyDirectory, CopyKey, CopyRejection};
use crate::{
    metrics::Metrics,
    view::{ApiKeyIndex, View, Views},
};
use countersign_process::Clock;
use std::{sync::Arc, time::Duration};

/// How long the sidecar waits for the control plane before it uses a copy.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(1);

/// Waits for the control plane, and then returns the view of the copy. `None` if the control plane has sent data or does not know
/// the API key, or if the copy cannot be used. `staleness_limit` is the maximum staleness in the sidecar's settings.
pub async fn view_without_contact(
    index: ApiKeyIndex,
    key: CopyKey,
    directory: CopyDirectory,
    staleness_limit: Option<Duration>,
    views: Arc<Views>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
) -> Option<Arc<View>> {
    tokio::time::sleep(CONTACT_TIMEOUT).await;
    let had_contact = || views.of_key(index).is_some();
    if had_contact() {
        return None;
    }
    let path = directory.path_of(&key);
    let check_key = || if views.is_key_unknown(index) { Err(CopyRejection::KeyRefused) } else { Ok(()) };
    let restored = async {
        check_key()?;
        let opened = tokio::task::spawn_blocking(move || directory.open(&key, staleness_limit)).await;
        let stored = opened.unwrap_or(Err(CopyRejection::Unreadable))?;
        let view = stored.map(|stored| stored.restore(&*clock)).transpose()?;
        // While we read the file, the control plane may have refused the API key.
        if view.is_some() {
            check_key()?;
        }
        Ok(view)
    };
    match restored.await {
        Ok(Some(view)) => Some(Arc::new(view)).filter(|_| !had_contact()),
        Ok(None) => {
            tracing::info!(key = index.0, path = %path.display(), "there is no copy of the view on disk");
            None
        }
        Err(rejection) => {
            metrics.copies.rejected(rejection);
            let reason = rejection.as_str();
            tracing::warn!(key = index.0, path = %path.display(), reason, "the copy of the view is not used: {rejection}");
            None
        }
    }
}
