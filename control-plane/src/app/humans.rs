//! Who speaks for people: the issuers of the platform, and where there is none yet, the operator key.

use super::AppError;
use crate::{
    config::{self, Config, DatabasePlace},
    files,
    humans::{AdminClaim, Algorithm, Issuer, IssuerRules, KeysAt, OperatorKey, Patience, Web},
};
use countersign_process::{Clock, Rng};
use std::{path::PathBuf, sync::Arc, time::Duration};

/// How often a file with keys is read again, at the most.
const FILE_REFRESH: Duration = Duration::from_mins(1);

/// The operator key, if it may be used: it signs tokens that everybody with a hand on the data folder can make, so
/// it ends where the platform says who its people are. With --dev it goes on: `dev.env` has such a token, and
/// whoever tries out an issuer needs somebody to begin with.
pub(super) fn operator(config: &Config, rng: &dyn Rng) -> Result<OperatorKey, AppError> {
    if !config.dev && !config.humans.issuers.is_empty() {
        return Err(AppError::NoOperator(
            "humans.issuers: people's tokens come from the issuers that are configured, so the operator key is out of \
             use: ask one of them for a token",
        ));
    }
    if !config.dev && matches!(config.database_place(), Some(DatabasePlace::Postgres(_))) {
        return Err(AppError::NoOperator(
            "humans.issuers: with PostgreSQL, people's tokens come from issuers only, since a key in a folder would be \
             good on one replica: configure one",
        ));
    }
    Ok(OperatorKey::open(&config.data_dir.join("operator.key"), rng)?)
}

/// The operator key, or none where it is out of use.
pub(super) fn operator_if_any(config: &Config, rng: &dyn Rng) -> Result<Option<OperatorKey>, AppError> {
    match operator(config, rng) {
        Ok(key) => Ok(Some(key)),
        Err(AppError::NoOperator(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The issuers of the platform.
pub(super) async fn issuers(config: &Config, clock: &Arc<dyn Clock>) -> Result<Vec<Issuer>, AppError> {
    let mut issuers = Vec::new();
    for (name, settings) in &config.humans.issuers {
        issuers.push(issuer(config, name, settings, clock.clone()).await?);
    }
    Ok(issuers)
}

async fn issuer(
    config: &Config,
    name: &str,
    settings: &config::Issuer,
    clock: Arc<dyn Clock>,
) -> Result<Issuer, AppError> {
    let config::Issuer { iss, audience, jwks_url, jwks_file, ca_file, algorithms, admin_claim, admin_value } = settings;
    let wrong = |key: &str, error: String| AppError::Setting { setting: format!("humans.issuers.{name}.{key}"), error };
    let mut patience = Patience { refresh: config.humans.keys_refresh(), max_age: config.humans.keys_max_age() };
    let keys = if jwks_file.as_os_str().is_empty() {
        let authorities = files::read_named(ca_file);
        let authorities = authorities.map_err(|error| wrong("ca_file", format!("{}: {error}", ca_file.display())))?;
        let web = Web::new(authorities.as_deref(), config.dev).map_err(|error| wrong("ca_file", error.to_string()))?;
        match jwks_url.as_str() {
            "" => KeysAt::Discovery { issuer: iss.clone(), web },
            url => KeysAt::Url { url: url.parse().map_err(|_| wrong("jwks_url", "is no URL".to_owned()))?, web },
        }
    } else {
        patience.refresh = FILE_REFRESH;
        KeysAt::File(PathBuf::from(jwks_file))
    };
    keys.check().await.map_err(|error| wrong("jwks_file", error.to_string()))?;
    let admin = AdminClaim { name: admin_claim.clone(), value: admin_value.clone() };
    let rules = IssuerRules {
        issuer: iss.clone(),
        audience: audience.clone(),
        algorithms: algorithms.iter().map(|algorithm| algorithm_of(*algorithm)).collect(),
        admin: (!admin_claim.is_empty()).then_some(admin),
    };
    Ok(Issuer::new(rules, keys, patience, clock))
}

const fn algorithm_of(algorithm: config::Algorithm) -> Algorithm {
    match algorithm {
        config::Algorithm::RS256 => Algorithm::Rs256,
        config::Algorithm::ES256 => Algorithm::Es256,
        config::Algorithm::EdDSA => Algorithm::EdDsa,
    }
}
