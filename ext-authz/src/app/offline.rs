//! The parts of `explain --copy` and `config check` that build a sidecar without running it. They open no port and no connection,
//! and change nothing on disk.

use super::{check_tls, create_authorizer, credentials, rules_file, sync_endpoints};
use crate::{
    check::Authorizer,
    config::Settings,
    copy::{CopyDirectory, CopyKey, path_in},
    metrics::Metrics,
    view::{ApiKeyIndex, Views},
};
use countersign_process::{Clock, SystemClock};
use std::sync::Arc;

/// Decides with the copies of views on disk, like a sidecar that starts now and does not reach the control plane.
pub struct OfflineAuthorizer {
    pub authorizer: Authorizer,
    /// For each API key without a usable copy, why the copy cannot be used.
    pub unusable: Vec<String>,
}

/// Reads the copies of the API keys in the settings. If none can be used, the error has a line with the reason for each.
pub fn authorizer_from_copies(settings: Settings) -> Result<OfflineAuthorizer, String> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let Settings { listen: _, tls: _, sync, copy, routes, rules, headers, denials, cache, log: _ } = settings;
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

/// All reasons why a sidecar with these settings would not start, except ports in use. Reads the files that the settings name.
pub fn settings_problems(settings: &Settings) -> Vec<String> {
    // Converting certificates needs the cryptographic provider of rustls. A second installation fails, which is harmless.
    let _already_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let metrics = match Metrics::new() {
        Ok(metrics) => Arc::new(metrics),
        Err(error) => return vec![error.to_string()],
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let results = [
        check_tls::create(&settings.tls, &metrics, &clock).map(drop),
        sync_endpoints::create(&settings.sync).map(drop),
        credentials::authorizations(&settings.sync).map(drop),
        rules_file::load(&settings.rules, &metrics, &clock).map(drop),
    ];
    results.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect()
}
