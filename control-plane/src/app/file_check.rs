//! `config check`: reads the files that the settings name as the server does at its start, and changes nothing.

use super::{AppError, humans, install_crypto_provider, redis, wiring};
use crate::{
    address_guard::{AddressGuard, SystemResolver},
    config::Config,
    domain::webhook::address::AllowedNetworks,
    metrics::Metrics,
};
use countersign_process::{Clock, SystemClock};
use std::{io, sync::Arc};

/// Returns why the server would reject files that the settings name. The files of the master keys are not checked here.
pub async fn check_files(config: &Config) -> Vec<AppError> {
    install_crypto_provider();
    // Nobody reads these metrics: an issuer cannot be built without them.
    let metrics = match wiring::metrics() {
        Ok(metrics) => metrics,
        Err(error) => return vec![error],
    };
    let checks = [
        check_data_dir(config),
        check_certificate(config),
        check_webhook_authorities(config),
        redis::endpoint(config).map(drop),
        humans::check_operator_key(config),
    ];
    let mut problems: Vec<_> = checks.into_iter().filter_map(Result::err).collect();
    problems.extend(check_issuers(config, &metrics).await);
    problems
}

fn check_data_dir(config: &Config) -> Result<(), AppError> {
    let path = &config.data_dir;
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(AppError::setting_file("data_dir", path, io::Error::from(io::ErrorKind::NotADirectory))),
        // The server creates a missing directory.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(AppError::setting_file("data_dir", path, error)),
    }
}

fn check_certificate(config: &Config) -> Result<(), AppError> {
    // With --dev and without a certificate, the server generates one.
    if config.tls.certificate.as_os_str().is_empty() {
        return Ok(());
    }
    let (certificate, _) = wiring::certificate(config, SystemClock.now())?;
    Ok(certificate.check()?)
}

fn check_webhook_authorities(config: &Config) -> Result<(), AppError> {
    let networks = AllowedNetworks::new(config.webhooks.networks(config.dev));
    wiring::http_sender(&config.webhooks, &AddressGuard::new(Arc::new(SystemResolver), networks)).map(drop)
}

async fn check_issuers(config: &Config, metrics: &Metrics) -> Vec<AppError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let mut problems = Vec::new();
    for (name, settings) in &config.humans.issuers {
        problems.extend(humans::build_issuer(config, name, settings, clock.clone(), metrics).await.err());
    }
    problems
}
