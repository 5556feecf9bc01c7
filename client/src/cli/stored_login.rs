//! Reads the stored login of a human user for other commands, and refreshes its token before it expires.

use super::{
    context::read_file,
    prelude::{CliError, Context, ServerArgs, quoted},
};
use countersign_client::{IssuerError, OidcClient, clock, oidc::LoginSettings, profile::HumanLogin};
use secrecy::SecretString;
use std::time::Duration;

/// How long before its expiry a token is refreshed.
const REFRESH_MARGIN: Duration = Duration::from_mins(1);

/// The option with the file of certificate authorities that the issuer's certificate must come from.
const ISSUER_CA: &str = "--issuer-ca (COUNTERSIGN_ISSUER_CA)";

/// A client of the issuer.
pub fn oidc_client(context: &Context, settings: LoginSettings) -> Result<OidcClient, CliError> {
    let path = settings.ca.clone();
    let authority = path.as_deref().map(|path| read_file(ISSUER_CA, path)).transpose()?;
    let client = OidcClient::new(settings, authority.as_deref(), context.timeout, context.observer);
    client.map_err(|error| match (error, path) {
        (IssuerError::Authority(problem), Some(path)) => CliError::file(ISSUER_CA, &path, problem),
        (error, _) => error.into(),
    })
}

/// The login of the profile; `None` if there is none. Fails if the login is for another control plane than the requested one.
pub fn stored_login(context: &Context, server: &ServerArgs) -> Result<Option<HumanLogin>, CliError> {
    let Some(login) = context.profiles.human_login(&context.name)? else { return Ok(None) };
    let url = context.url(server)?;
    if login.is_for(&url) {
        return Ok(Some(login));
    }
    let text = format!(
        "the login of the profile {} is for {}, and its token is not sent to another control plane",
        context.name, login.url
    );
    let url = quoted(&url);
    let next = format!("countersign login --server {url}, or set COUNTERSIGN_HUMAN_TOKEN; --profile keeps both logins");
    Err(CliError::usage(text).with_next(next))
}

/// The token of the stored login, if it is not expired; `None` after any error. Sends no request.
pub fn unexpired_token(context: &Context, server: &ServerArgs) -> Option<SecretString> {
    let login = stored_login(context, server).ok().flatten()?;
    (clock::now() < login.tokens.claims.expires_at()).then_some(login.tokens.token)
}

/// The token of the stored login. Refreshes the token if it expires soon.
pub async fn stored_token(context: &Context, server: &ServerArgs) -> Result<Option<SecretString>, CliError> {
    match stored_login(context, server)? {
        Some(login) if expires_soon(&login) => refreshed_token(context, server).await,
        login => Ok(login.map(|login| login.tokens.token)),
    }
}

/// Takes the lock of the login, and refreshes the token, unless another process has just done so. If this fails, returns the
/// current token while it is valid.
async fn refreshed_token(context: &Context, server: &ServerArgs) -> Result<Option<SecretString>, CliError> {
    // Most issuers accept a refresh token once, so only the process with the lock uses it, and only if it can store the new one. An
    // error here counts only if the login still expires soon: another process may have refreshed it while we waited.
    let lock = context.profiles.lock_human_login(&context.name);
    let writable_lock = lock.and_then(|lock| context.check_writable().map(|()| lock));
    let Some(login) = stored_login(context, server)? else { return Ok(None) };
    if !expires_soon(&login) {
        return Ok(Some(login.tokens.token));
    }
    let result = match writable_lock {
        Ok(_lock) => refresh(context, &login).await,
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(refreshed) => Ok(Some(refreshed.tokens.token)),
        Err(_) if clock::now() < login.tokens.claims.expires_at() => Ok(Some(login.tokens.token)),
        Err(error) => Err(error),
    }
}

/// Exchanges the refresh token, and stores the new tokens before anyone uses them.
async fn refresh(context: &Context, login: &HumanLogin) -> Result<HumanLogin, CliError> {
    let ended = |problem: String| {
        let text = format!("the login of the profile {} {problem}", context.name);
        CliError::denied(text, "human_token_expired")
    };
    let Some(refresh_token) = &login.tokens.refresh_token else { return Err(ended("has expired".to_owned())) };
    let client = oidc_client(context, login.settings.clone())?;
    let endpoints = client.discover().await?;
    let result = client.refresh(&endpoints, refresh_token, &login.tokens.claims.subject).await;
    let refreshed = result.map_err(|error| match error.code() {
        Some("invalid_grant") => ended(format!("has ended: {error}")),
        _ => error.into(),
    })?;
    let mut next = login.clone();
    match refreshed.tokens {
        Ok(tokens) => next.tokens = tokens,
        Err(error) => {
            // The issuer may have used up the old refresh token, so we keep the new one even without a valid token.
            next.tokens.refresh_token = Some(refreshed.refresh_token);
            context.profiles.save_human_login(&context.name, &next)?;
            return Err(error.into());
        }
    }
    context.profiles.save_human_login(&context.name, &next)?;
    Ok(next)
}

fn expires_soon(login: &HumanLogin) -> bool {
    clock::now().saturating_add(REFRESH_MARGIN) >= login.tokens.claims.expires_at()
}
