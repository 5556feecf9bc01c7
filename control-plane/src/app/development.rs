//! `--dev`: creates a first service, and writes `dev.env` with the URLs and credentials that clients need; our client reads it.

use super::{Addresses, AppError};
use crate::{
    config::{Config, DEVELOPMENT_LIMIT},
    domain::{audit::Initiator, credential::expose, service::KeyScope, text::DisplayName},
    files,
    humans::{OperatorKey, OperatorKeyError},
    operations::{Context, NewService, NewServiceKey, authenticate_service, create_service, create_service_key},
};
use countersign_identity::{ServiceId, Timestamp};
use secrecy::{ExposeSecret, SecretString};
use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// The `sub` of the development token.
const DEVELOPER_SUBJECT: &str = "developer";

const TOKEN_LIFETIME: Duration = Duration::from_hours(30 * 24);

/// What [`set_up`] needs to write `dev.env`, in addition to the addresses of the ports.
pub(super) struct Development {
    pub(super) operator_key: Arc<OperatorKey>,
    /// The file of the development certificate authority.
    pub(super) authority: Option<PathBuf>,
}

/// Writes `dev.env` and logs how --dev differs from production. Call this only when the ports listen: clients connect at once.
pub(super) async fn set_up(
    config: &Config,
    context: &Context,
    development: &Development,
    addresses: &Addresses,
) -> Result<(), AppError> {
    let file = write_dev_env(context, development, &config.data_dir, addresses).await?;
    tracing::info!("development: `set -a; . {}` sets the environment of clients", file.display());
    tracing::info!(
        "development: rate limits that are not set are {DEVELOPMENT_LIMIT} calls per minute; without --dev they are much lower"
    );
    Ok(())
}

/// Writes `dev.env` and returns its path. Creates a first service, unless an earlier start created it.
async fn write_dev_env(
    context: &Context,
    development: &Development,
    data_dir: &Path,
    addresses: &Addresses,
) -> Result<PathBuf, AppError> {
    let Development { operator_key, authority } = development;
    let Addresses { api: _, sync, admin } = addresses;
    let file = std::path::absolute(data_dir.join("dev.env")).unwrap_or_else(|_| data_dir.join("dev.env"));
    let human_token = operator_key.mint(DEVELOPER_SUBJECT, true, TOKEN_LIFETIME, context.now())?;
    let (service, key) = match previous_key(context, &file).await {
        Some(previous) => previous,
        None => create_first_service(context, operator_key, &human_token).await?,
    };
    let authority = authority.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
    let authority = authority.map_or(String::new(), |path| format!("COUNTERSIGN_CA={}\n", shell_quote(&path)));
    let text = format!(
        "COUNTERSIGN_URL={}\n{authority}COUNTERSIGN_SERVICE_ID={service}\nCOUNTERSIGN_SERVICE_KEY={}\n\
         COUNTERSIGN_HUMAN_TOKEN={}\nCOUNTERSIGN_SYNC_URL=https://localhost:{}\nCOUNTERSIGN_ADMIN_URL=http://{admin}\n",
        context.issuer(),
        expose(&key),
        human_token.expose_secret(),
        sync.port(),
    );
    files::write_secret(&file, text.as_bytes()).map_err(AppError::file(&file))?;
    Ok(file)
}

/// The API key that an earlier start wrote to `dev.env`, if it is still valid. The database has only the hash of this key.
async fn previous_key(context: &Context, file: &Path) -> Option<(ServiceId, SecretString)> {
    let text = SecretString::from(std::fs::read_to_string(file).ok()?);
    let key = text.expose_secret().lines().find_map(|line| line.strip_prefix("COUNTERSIGN_SERVICE_KEY="))?;
    let (service_key, _) = authenticate_service(context, Ipv4Addr::LOCALHOST.into(), key).await.ok()?;
    Some((service_key.service, key.to_owned().into()))
}

async fn create_first_service(
    context: &Context,
    operator_key: &OperatorKey,
    human_token: &SecretString,
) -> Result<(ServiceId, SecretString), AppError> {
    // These errors are impossible: the name is valid, and the key has just signed the token.
    let name = || DisplayName::try_from("development".to_owned());
    let (Ok(service_name), Ok(key_name)) = (name(), name()) else { return Err(OperatorKeyError::Crypto.into()) };
    let owner =
        operator_key.verify(human_token.expose_secret(), context.now()).map_err(|_| OperatorKeyError::Crypto)?.identity;
    let service = create_service(
        context,
        &Initiator::SYSTEM,
        owner,
        NewService { name: service_name, accepts_unbound: true, managed_by: None },
    )
    .await?;
    let (_, key) = create_service_key(
        context,
        &Initiator::SYSTEM,
        service.id,
        NewServiceKey { name: key_name, scope: KeyScope::Full, managed_by: None },
    )
    .await?;
    Ok((service.id, key))
}

/// Quotes a path for a POSIX shell.
fn shell_quote(path: &Path) -> String {
    let text = path.display().to_string();
    let is_safe = text.chars().all(|character| character.is_ascii_alphanumeric() || "/._-+".contains(character));
    if is_safe { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// The year (UTC) of `now`, for the validity of certificates.
pub(super) fn year(now: Timestamp) -> i32 {
    let time = jiff::Timestamp::from_microsecond(now.micros()).unwrap_or_default();
    time.to_zoned(jiff::tz::TimeZone::UTC).year().into()
}
