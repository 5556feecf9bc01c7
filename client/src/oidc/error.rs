//! Errors of requests to an OIDC issuer.

use crate::api::{innermost, replace_unprintable};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

/// How many characters of an issuer's text an error shows.
const MAX_TEXT_LENGTH: usize = 300;

/// Why an issuer returned no tokens.
#[derive(Debug, thiserror::Error)]
pub enum IssuerError {
    /// The URL of the issuer is not valid.
    #[error("the issuer `{0}` is not an https URL without user name, query and fragment")]
    Url(String),
    /// The trusted CA certificates cannot be loaded.
    #[error("{0}")]
    Authority(String),
    /// The connection or TLS failed, or the request timed out.
    #[error("cannot reach the issuer at {url}: {}", innermost(error))]
    Unreachable {
        /// The URL, with its port and without secrets.
        url: String,
        /// The error of the HTTP client.
        error: reqwest::Error,
    },
    /// The issuer redirected the request.
    #[error("{0} redirects the request, and redirects are not followed")]
    Redirect(String),
    /// The issuer returned an unexpected status without an OAuth error.
    #[error("{url} returned status {status}")]
    Status {
        /// The URL.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// The issuer returned an OAuth error (RFC 6749, section 5.2).
    #[error("the issuer refused the request: {code}{}", in_parentheses(description.as_deref()))]
    Refused {
        /// `error` of the response, such as `invalid_grant`.
        code: String,
        /// `error_description` of the response.
        description: Option<String>,
    },
    /// The response does not have the documented form.
    #[error("{0} returned a response that is not one of an OIDC issuer")]
    Unreadable(String),
    /// The discovery document names another issuer.
    #[error("the discovery document names the issuer `{found}`, not `{expected}`")]
    OtherIssuer {
        /// The issuer of the settings.
        expected: String,
        /// The issuer in the document.
        found: String,
    },
    /// The discovery document has no URL for a required endpoint.
    #[error("the discovery document of the issuer has no `{0}`")]
    Missing(&'static str),
    /// An endpoint in the discovery document is not a secure URL.
    #[error("`{0}` of the issuer is not an https URL")]
    Endpoint(&'static str),
    /// The user did not confirm the login in time.
    #[error("the user code has expired before the login was confirmed")]
    CodeExpired,
    /// The issuer returned no token of the requested kind.
    #[error("the issuer returned no `{0}`")]
    NoToken(&'static str),
    /// A claim of the returned token has an unexpected value.
    #[error("the issuer returned a token with an unexpected `{claim}`: {problem}")]
    Claim {
        /// The claim.
        claim: &'static str,
        /// What is wrong with the claim.
        problem: String,
    },
}

/// The body of an OAuth error response.
#[derive(Deserialize)]
pub(super) struct ErrorBody {
    error: String,
    error_description: Option<String>,
}

impl IssuerError {
    /// The error for an OAuth error response. The issuer may repeat the secret of the request, so it is removed from the text.
    pub(super) fn refused(body: ErrorBody, secret: &SecretString) -> Self {
        let shown = |text: &str| {
            let text = match secret.expose_secret() {
                "" => text.to_owned(),
                secret => text.replace(secret, "…"),
            };
            replace_unprintable(&text).chars().take(MAX_TEXT_LENGTH).collect::<String>()
        };
        Self::Refused { code: shown(&body.error), description: body.error_description.map(|text| shown(&text)) }
    }

    /// The OAuth error code of the response, if there is one.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            _ => None,
        }
    }

    /// Whether the same request may succeed later.
    pub const fn is_outage(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Status { status: 429 | 500..=599, .. })
    }
}

fn in_parentheses(text: Option<&str>) -> String {
    text.map(|text| format!(" ({text})")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_contain_neither_the_secret_nor_control_characters() {
        let body = ErrorBody {
            error: "invalid_grant".to_owned(),
            error_description: Some("rt-1 is\u{1b}[2J unknown\nNext: run this".to_owned()),
        };
        let text = IssuerError::refused(body, &"rt-1".into()).to_string();
        assert_eq!(text, "the issuer refused the request: invalid_grant (… is?[2J unknown?Next: run this)");
    }
}
