//! `countersign logout`: deletes the stored login, and revokes its refresh token at the issuer.

use crate::cli::{
    environment::variable,
    prelude::{CliError, CommandOutput, Context, details},
    stored_login::oidc_client,
};
use countersign_client::profile::HumanLogin;
use serde_json::json;

pub const HELP: &str = "\
If the revocation of the refresh token fails, the command deletes the login nevertheless, and fails. The token of the login stays \
valid until it expires, because the control plane accepts every token that the issuer has signed. The profile keeps the issuer \
and the client id for the next login.

Examples:
  $ countersign logout

Next: countersign login";

/// What happened to the refresh token.
enum Revocation {
    NoToken,
    Revoked,
    /// The issuer has no revocation endpoint.
    NotSupported,
}

pub async fn logout(context: &Context) -> Result<CommandOutput, CliError> {
    let _lock = context.profiles.lock_human_login(&context.name)?;
    let revocation = match context.profiles.human_login(&context.name)? {
        Some(login) => revoke(context, &login).await,
        None => Ok(Revocation::NoToken),
    };
    let was_stored = context.profiles.delete_human_login(&context.name)?;
    let result = match &revocation {
        Ok(Revocation::NoToken) => "none",
        Ok(Revocation::Revoked) => "revoked",
        Ok(Revocation::NotSupported) => "not revoked: the issuer has no revocation endpoint",
        Err(_) => "not revoked",
    };
    let deleted = if was_stored { "deleted" } else { "no login was stored" };
    let text = details([("login", deleted.to_owned()), ("refresh token", result.to_owned())]);
    let json = json!({ "deleted": was_stored, "refreshTokenRevoked": result == "revoked" });
    let note = if variable("COUNTERSIGN_HUMAN_TOKEN").is_some() {
        "COUNTERSIGN_HUMAN_TOKEN is set, so commands still use that token: unset it."
    } else {
        ""
    };
    Ok(CommandOutput::new(text, json).with_note(note).with_error(revocation.err().map(|error| not_revoked(&error))))
}

async fn revoke(context: &Context, login: &HumanLogin) -> Result<Revocation, CliError> {
    let Some(refresh_token) = &login.tokens.refresh_token else { return Ok(Revocation::NoToken) };
    let client = oidc_client(context, login.settings.clone())?;
    let endpoints = client.discover().await?;
    let is_revoked = client.revoke(&endpoints, refresh_token).await?;
    Ok(if is_revoked { Revocation::Revoked } else { Revocation::NotSupported })
}

fn not_revoked(error: &CliError) -> CliError {
    let next = "end the session in the account settings of the issuer";
    CliError::failed(format!("the login is deleted, but its refresh token is not revoked: {error}")).with_next(next)
}
