//! Builds the verifiers of human users' tokens: the configured issuers; the operator key if there are none, or with --dev.

use super::{AppError, database::warn_if_others_have_access};
use crate::{
    config::{Config, DatabaseLocation, IssuerSettings, KeySource},
    files,
    humans::{AdminClaim, Issuer, IssuerRules, JwksClient, KeyLocation, OperatorKey, OperatorKeyError, read_key_file},
    metrics::Metrics,
};
use countersign_process::{Clock, Rng, file_reload::LoadedFiles};
use std::{path::PathBuf, sync::Arc};

/// An issuer, and the file from which its keys or its certificate authorities were loaded, if any.
pub(super) struct ConfiguredIssuer {
    pub(super) issuer: Issuer,
    pub(super) file: Option<LoadedFiles>,
}

/// Checks that the settings allow the operator key. Everyone with access to the data directory can sign tokens with this key, so a
/// configured issuer disables the key. With --dev it stays enabled, because `dev.env` contains a token that it signed, and a
/// developer who configures an issuer needs a first administrator.
pub(super) fn check_operator_key_enabled(config: &Config) -> Result<(), OperatorKeyError> {
    if !config.dev && !config.humans.issuers.is_empty() {
        return Err(OperatorKeyError::Disabled(
            "humans.issuers: human users' tokens come from the configured issuers, so the operator key is disabled: \
             request a token from one of them",
        ));
    }
    if !config.dev && matches!(config.database_location(), Some(DatabaseLocation::Postgres(_))) {
        return Err(OperatorKeyError::Disabled(
            "humans.issuers: with PostgreSQL, human users' tokens come from issuers only, because an operator key in the \
             data_dir of one replica would not be accepted by the others: configure an issuer",
        ));
    }
    Ok(())
}

pub(super) fn operator_key_file(config: &Config) -> PathBuf {
    config.data_dir.join("operator.key")
}

/// Reads the operator key, or generates it at the first start; `None` if it is disabled.
pub(super) fn load_operator_key(config: &Config, rng: &dyn Rng) -> Result<Option<OperatorKey>, AppError> {
    if check_operator_key_enabled(config).is_err() {
        return Ok(None);
    }
    let file = operator_key_file(config);
    warn_if_others_have_access("the operator key", &file);
    Ok(Some(OperatorKey::read_or_create(&file, rng)?))
}

/// Fails if the server would reject the file of the operator key. A missing file is no problem, because the server creates it.
pub(super) fn check_operator_key(config: &Config) -> Result<(), AppError> {
    if check_operator_key_enabled(config).is_err() {
        return Ok(());
    }
    match OperatorKey::read(&operator_key_file(config)) {
        Ok(_) | Err(OperatorKeyError::Missing(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn build_issuers(
    config: &Config,
    clock: &Arc<dyn Clock>,
    metrics: &Metrics,
) -> Result<Vec<ConfiguredIssuer>, AppError> {
    let mut issuers = Vec::new();
    for (name, settings) in &config.humans.issuers {
        issuers.push(build_issuer(config, name, settings, clock.clone(), metrics).await?);
    }
    Ok(issuers)
}

pub(super) async fn build_issuer(
    config: &Config,
    name: &str,
    settings: &IssuerSettings,
    clock: Arc<dyn Clock>,
    metrics: &Metrics,
) -> Result<ConfiguredIssuer, AppError> {
    let IssuerSettings { iss, audience, jwks, ca_file, .. } = settings;
    let full_key = |key: &str| format!("humans.issuers.{name}.{key}");
    let admin = |(name, value): (&str, &str)| AdminClaim { name: name.to_owned(), value: value.to_owned() };
    let rules =
        IssuerRules { issuer: iss.clone(), audience: audience.clone(), admin: settings.admin_claim().map(admin) };
    // If the keys of the issuer are in a file, its metrics of fetches exist nevertheless, and stay at 0.
    let fetches = metrics.jwks_fetches(name);
    let client = || -> Result<_, AppError> {
        let authorities =
            files::read_if_set(ca_file).map_err(|error| AppError::setting_file(full_key("ca_file"), ca_file, error))?;
        let file = authorities.as_deref().map(|pem| LoadedFiles::new(full_key("ca_file"), &[(ca_file, pem)]));
        let client = JwksClient::new(authorities.as_deref(), config.dev)
            .map_err(|error| AppError::setting(full_key("ca_file"), error))?;
        Ok((client, file))
    };
    let (location, file) = match jwks {
        KeySource::File(path) => {
            let json = read_key_file(path).await.map_err(|error| AppError::setting(full_key("jwks"), error))?;
            let issuer = Issuer::with_key_file(rules, &json)
                .map_err(|error| AppError::setting_file(full_key("jwks"), path, error))?;
            return Ok(ConfiguredIssuer { issuer, file: Some(LoadedFiles::new(full_key("jwks"), &[(path, &json)])) });
        }
        KeySource::Url(url) => {
            let (client, file) = client()?;
            let url = url.parse().map_err(|_| AppError::setting(full_key("jwks"), "not a URL"))?;
            (KeyLocation::Url { url, client }, file)
        }
        KeySource::Discovery => {
            let (client, file) = client()?;
            (KeyLocation::Discovery { issuer: iss.clone(), client }, file)
        }
    };
    Ok(ConfiguredIssuer { issuer: Issuer::with_fetched_keys(rules, location, clock, fetches), file })
}
