//! Decides with the copies on disk, as a sidecar does that starts now without contact. It opens no port and no connection, and
//! changes nothing on disk.

use super::{create_authorizer, credentials, rules_file};
use crate::{
    check::Authorizer,
    config::Settings,
    copy::{CopyDirectory, CopyKey, path_in},
    metrics::Metrics,
    view::{ApiKeyIndex, Views},
};
use countersign_process::{Clock, SystemClock};
use std::sync::Arc;

/// Decides with the copies of views on disk.
pub struct OfflineAuthorizer {
    pub authorizer: Authorizer,
    /// Why the copies of some API keys cannot be used, one text for each.
    pub unusable: Vec<String>,
}

/// Reads the copies of the API keys in the settings. The error says, one line for each copy, why no copy can be used.
pub fn authorizer_from_copies(settings: Settings) -> Result<OfflineAuthorizer, String> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let Settings { listen: _, sync, copy, routes, rules, headers, denials, cache, log: _ } = settings;
    let directory = copy.directory.ok_or("copy.directory is not set, so the sidecar keeps no copies")?;
    let metrics = Arc::new(Metrics::new().map_err(|error| error.to_string())?);
    let authorizations = credentials::authorizations(&sync).map_err(|error| error.to_string())?;
    let (rules, _) = rules_file::load(&rules, &metrics, &clock).map_err(|error| error.to_string())?;
    let views = Arc::new(Views::new(authorizations.len(), routes.default_service));
    let mut unusable = Vec::new();
    for (index, authorization) in authorizations.iter().enumerate() {
        let key = CopyKey::of(authorization).ok_or_else(|| format!("sync.keys[{index}]: its key cannot be derived"))?;
        let path = path_in(&directory, &key);
        let opened = CopyDirectory::open_in(&directory, &key, sync.staleness_limit());
        match opened.and_then(|stored| stored.map(|stored| stored.restore(&*clock)).transpose()) {
            Ok(Some(view)) => views.publish(ApiKeyIndex(index), &Arc::new(view)),
            Ok(None) => unusable.push(format!("sync.keys[{index}]: {}: there is no copy of the view", path.display())),
            Err(rejection) => unusable.push(format!(
                "sync.keys[{index}]: {}: the copy of the view is not used: {}: {rejection}",
                path.display(),
                rejection.as_str()
            )),
        }
    }
    if unusable.len() == authorizations.len() {
        return Err(unusable.join("\n"));
    }
    let authorizer = create_authorizer(&headers, &denials, &cache, views, rules, &metrics, clock);
    Ok(OfflineAuthorizer { authorizer, unusable })
}
