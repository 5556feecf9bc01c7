//! `--dev`: a first service and a file that tells clients everything they need.
//!
//! Neighbours: `app` calls it once all ports are bound; the command-line client reads `dev.env` too.

use crate::{
    domain::{audit::Initiator, credential::expose, service::KeyScope, text::DisplayName},
    files,
    humans::{OperatorError, OperatorKey},
    operations::{Context, NewKey, NewService, OperationError, create_service, create_service_key, find_service_key},
};
use countersign_identity::{ServiceId, Timestamp};
use secrecy::{ExposeSecret, SecretString};
use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// Who the person of the development token is.
const DEVELOPER: &str = "developer";

/// Life of the development token.
const TOKEN_LIFE: Duration = Duration::from_hours(30 * 24);

/// Why `--dev` cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DevelopmentError {
    /// The first service could not be made.
    #[error(transparent)]
    Service(#[from] OperationError),
    /// The token could not be minted.
    #[error(transparent)]
    Token(#[from] OperatorError),
    /// The file could not be written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// Where everything is.
pub struct Places<'a> {
    /// The URL of the API.
    pub url: &'a str,
    /// The bound address of the sync port.
    pub sync: SocketAddr,
    /// The bound address of the admin port.
    pub admin: SocketAddr,
    /// The file of the development authority, unless the operator brought a certificate.
    pub authority: Option<&'a Path>,
}

/// Makes sure of a first service and writes `dev.env`; returns its path.
pub async fn settle(
    context: &Context,
    operator: &OperatorKey,
    folder: &Path,
    places: &Places<'_>,
) -> Result<PathBuf, DevelopmentError> {
    let file = std::path::absolute(folder.join("dev.env")).unwrap_or_else(|_| folder.join("dev.env"));
    let human = operator.mint(DEVELOPER, true, TOKEN_LIFE, context.now())?;
    let (service, key) = match kept_key(context, &file).await {
        Some(kept) => kept,
        None => first_service(context, operator, &human).await?,
    };
    let authority = places.authority.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    let authority = authority.map_or(String::new(), |path| format!("COUNTERSIGN_CA={}\n", shell_quote(&path)));
    let text = format!(
        "COUNTERSIGN_URL={}\n{authority}COUNTERSIGN_SERVICE_ID={service}\nCOUNTERSIGN_SERVICE_KEY={}\n\
         COUNTERSIGN_HUMAN_TOKEN={}\nCOUNTERSIGN_SYNC_URL=https://localhost:{}\nCOUNTERSIGN_ADMIN_URL=http://{}\n",
        places.url,
        expose(&key),
        human.expose_secret(),
        places.sync.port(),
        places.admin,
    );
    files::write_secret(&file, text.as_bytes())
        .map_err(|error| DevelopmentError::File { path: file.clone(), error })?;
    Ok(file)
}

/// The key of an earlier start, if it is still good: only this file has its plain text.
async fn kept_key(context: &Context, file: &Path) -> Option<(ServiceId, SecretString)> {
    let text = SecretString::from(std::fs::read_to_string(file).ok()?);
    let key = text.expose_secret().lines().find_map(|line| line.strip_prefix("COUNTERSIGN_SERVICE_KEY="))?;
    let found = find_service_key(context, key).await.ok()?;
    Some((found.service, key.to_owned().into()))
}

async fn first_service(
    context: &Context,
    operator: &OperatorKey,
    human: &SecretString,
) -> Result<(ServiceId, SecretString), DevelopmentError> {
    let named = || DisplayName::try_from("development".to_owned());
    let (Ok(service_name), Ok(key_name)) = (named(), named()) else { return Err(OperatorError::Crypto.into()) };
    let owner = operator.verify(human.expose_secret(), context.now()).map_err(|_| OperatorError::Crypto)?.owner;
    let service =
        create_service(context, &Initiator::SYSTEM, owner, NewService { name: service_name, accepts_unbound: true })
            .await?;
    let (_, key) =
        create_service_key(context, &Initiator::SYSTEM, service.id, NewKey { name: key_name, scope: KeyScope::Full })
            .await?;
    Ok((service.id, key))
}

/// The path as a shell reads it back.
fn shell_quote(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = text.chars().all(|character| character.is_ascii_alphanumeric() || "/._-+".contains(character));
    if plain { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// The year in which `now` lies, for certificates.
pub fn year(now: Timestamp) -> i32 {
    let at = jiff::Timestamp::from_microsecond(now.micros()).unwrap_or_default();
    at.to_zoned(jiff::tz::TimeZone::UTC).year().into()
}
