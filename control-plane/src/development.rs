//! `--dev`: creates a first service, and writes `dev.env` with the URLs and credentials that clients need.
//!
//! `app` calls this module when all ports listen. The command-line client reads `dev.env`.

use crate::{
    domain::{audit::Initiator, credential::expose, service::KeyScope, text::DisplayName},
    files,
    humans::{OperatorKey, OperatorKeyError},
    operations::{
        Context, NewService, NewServiceKey, OperationError, authenticate_service, create_service, create_service_key,
    },
};
use countersign_identity::{ServiceId, Timestamp};
use secrecy::{ExposeSecret, SecretString};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

/// The `sub` of the development token.
const DEVELOPER_SUBJECT: &str = "developer";

/// Lifetime of the development token.
const TOKEN_LIFETIME: Duration = Duration::from_hours(30 * 24);

/// Why the development setup failed.
#[derive(Debug, thiserror::Error)]
pub enum DevelopmentError {
    /// The first service cannot be created.
    #[error(transparent)]
    Service(#[from] OperationError),
    /// The development token cannot be issued.
    #[error(transparent)]
    Token(#[from] OperatorKeyError),
    /// `dev.env` cannot be written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// The addresses that `dev.env` contains.
pub struct Endpoints<'a> {
    /// The URL of the API.
    pub url: &'a str,
    /// The bound address of the sync port.
    pub sync: SocketAddr,
    /// The bound address of the admin port.
    pub admin: SocketAddr,
    /// The file of the development authority; `None` if a certificate is configured.
    pub authority: Option<&'a Path>,
}

/// Writes `dev.env` and returns its path. Creates a first service, unless an earlier start created it.
pub async fn write_dev_env(
    context: &Context,
    operator_key: &OperatorKey,
    data_dir: &Path,
    endpoints: &Endpoints<'_>,
) -> Result<PathBuf, DevelopmentError> {
    let file = std::path::absolute(data_dir.join("dev.env")).unwrap_or_else(|_| data_dir.join("dev.env"));
    let human_token = operator_key.mint(DEVELOPER_SUBJECT, true, TOKEN_LIFETIME, context.now())?;
    let (service, key) = match previous_key(context, &file).await {
        Some(previous) => previous,
        None => create_first_service(context, operator_key, &human_token).await?,
    };
    let authority = endpoints.authority.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    let authority = authority.map_or(String::new(), |path| format!("COUNTERSIGN_CA={}\n", shell_quote(&path)));
    let text = format!(
        "COUNTERSIGN_URL={}\n{authority}COUNTERSIGN_SERVICE_ID={service}\nCOUNTERSIGN_SERVICE_KEY={}\n\
         COUNTERSIGN_HUMAN_TOKEN={}\nCOUNTERSIGN_SYNC_URL=https://localhost:{}\nCOUNTERSIGN_ADMIN_URL=http://{}\n",
        endpoints.url,
        expose(&key),
        human_token.expose_secret(),
        endpoints.sync.port(),
        endpoints.admin,
    );
    files::write_secret(&file, text.as_bytes())
        .map_err(|error| DevelopmentError::File { path: file.clone(), error })?;
    Ok(file)
}

/// The API key that an earlier start wrote to `dev.env`, if the key is still valid. The database contains only the hash of an
/// API key.
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
) -> Result<(ServiceId, SecretString), DevelopmentError> {
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
pub fn year(now: Timestamp) -> i32 {
    let time = jiff::Timestamp::from_microsecond(now.micros()).unwrap_or_default();
    time.to_zoned(jiff::tz::TimeZone::UTC).year().into()
}
