//! `countersign login`, `whoami` and `logout`: the login of a human user at the organisation's OIDC issuer.
//!
//! `login` runs the device authorization grant, `stored` provides the token of the stored login to other commands and
//! refreshes it, `advice` has the next steps after errors of the issuer. Invariant: the token of a login is sent only to
//! the control plane of the login, and the refresh token only to its issuer.

mod advice;
mod login;
mod logout;
mod stored_login;
mod whoami;

pub use advice::hint_for_issuer_error;
pub use login::{HELP as LOGIN_HELP, LoginArgs, login};
pub use logout::{HELP as LOGOUT_HELP, logout};
pub use stored_login::{stored_login, stored_token, unexpired_token};
pub use whoami::{HELP as WHOAMI_HELP, whoami};

use super::{
    CliError,
    context::{Context, read_file},
};
use countersign_client::{
    IssuerError, OidcClient,
    oidc::{HumanClaims, LoginSettings},
};

/// The option that contains the path of the issuer's authorities.
const ISSUER_CA: &str = "--issuer-ca (COUNTERSIGN_ISSUER_CA)";

/// A client of the issuer.
fn oidc_client(context: &Context, settings: LoginSettings) -> Result<OidcClient, CliError> {
    let path = settings.ca.clone();
    let authority = path.as_deref().map(|path| read_file(ISSUER_CA, path)).transpose()?;
    let client = OidcClient::new(settings, authority.as_deref()).map_err(|error| match (error, path) {
        (IssuerError::Authority(problem), Some(path)) => CliError::file(ISSUER_CA, &path, problem),
        (error, _) => error.into(),
    })?;
    Ok(context.observer.into_iter().fold(client.with_timeout(context.timeout), OidcClient::with_observer))
}

/// How messages name the user: the name or the e-mail address if the token has one, and always the id.
fn shown_user(claims: &HumanClaims) -> String {
    match claims.name.as_ref().or(claims.email.as_ref()) {
        Some(name) => format!("{name} ({})", claims.subject),
        None => claims.subject.clone(),
    }
}
