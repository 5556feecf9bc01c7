//! `config check`: reads the files that the settings name as the sidecar does at its start, and changes nothing.

use super::{credentials, rules_file, target};
use crate::{config::Settings, metrics::Metrics};
use countersign_process::{Clock, SystemClock};
use std::sync::Arc;

/// Returns all reasons for which a sidecar with these settings would not start.
pub fn settings_problems(settings: &Settings) -> Vec<String> {
    // The cryptographic provider of rustls can be installed once per process, which the conversion of certificates needs.
    let _already_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let metrics = match Metrics::new() {
        Ok(metrics) => Arc::new(metrics),
        Err(error) => return vec![error.to_string()],
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let results = [
        target::sync_endpoints(&settings.sync).map(drop),
        credentials::authorizations(&settings.sync).map(drop),
        rules_file::load(&settings.rules, &metrics, &clock).map(drop),
    ];
    results.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect()
}
