//! Options that select a login with a challenge or over the OAuth token endpoint, and limit its tokens.

use super::error::CliError;
use clap::{Args, ValueHint};
use countersign_client::{Scope, api::begins_like_secret};
use reqwest::Url;

/// What tokens are limited to.
#[derive(Args, Default)]
pub struct LimitArgs {
    /// Limit the tokens to these permissions of the agent, separated by spaces
    #[arg(long, value_name = "PERMISSIONS", value_parser = parse_scope)]
    pub scope: Option<Scope>,
    /// The resource that the tokens are for, instead of a service: a resource URI of a service
    #[arg(long, value_name = "URI", value_parser = parse_resource, value_hint = ValueHint::Url, conflicts_with = "service")]
    pub resource: Option<String>,
}

/// Which login a command uses.
#[derive(Args)]
pub struct OAuthArgs {
    /// Log in over the OAuth token endpoint, saved in the profile
    #[arg(long)]
    oauth: bool,
    /// Log in with a challenge again, and remove scope and resource from the profile
    #[arg(long, conflicts_with = "oauth")]
    no_oauth: bool,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Which login a command uses, and what limits its tokens.
#[derive(Clone, Copy)]
pub enum LoginChoice<'a> {
    /// The login and the limits that are saved in the profile.
    OfProfile,
    /// The login with a challenge.
    Challenge,
    /// The OAuth token endpoint with these limits. By default, the resource comes from the profile, and the scope is not limited.
    OAuth(&'a LimitArgs),
    /// The login that is saved in the profile, with these limits in place of its own. Limits need the OAuth token endpoint.
    Limited(&'a LimitArgs),
}

impl LimitArgs {
    /// Whether no limit is set.
    pub const fn is_empty(&self) -> bool {
        self.scope.is_none() && self.resource.is_none()
    }
}

impl OAuthArgs {
    /// The login that the options name. Without options, the login of the profile.
    pub fn choice(&self) -> Result<LoginChoice<'_>, CliError> {
        let Self { oauth, no_oauth, limits } = self;
        match (oauth, no_oauth) {
            (true, _) => Ok(LoginChoice::OAuth(limits)),
            (false, _) if !limits.is_empty() => {
                let option = if limits.scope.is_some() { "--scope" } else { "--resource" };
                let text = format!("{option} needs --oauth: a login with a challenge has no scope and no resource");
                Err(CliError::usage(text).with_next(format!("countersign agent login --oauth {option} …")))
            }
            (false, true) => Ok(LoginChoice::Challenge),
            (false, false) => Ok(LoginChoice::OfProfile),
        }
    }
}

fn parse_scope(text: &str) -> Result<Scope, String> {
    // The errors below repeat the text, so we refuse a misplaced secret first.
    if text.split(' ').any(begins_like_secret) {
        return Err("it begins like a secret".to_owned());
    }
    let scope: Scope = text.parse().map_err(|error| format!("each permission {error}"))?;
    if scope.is_empty() { Err("name at least one permission".to_owned()) } else { Ok(scope) }
}

/// Checks a resource as RFC 8707 requires: an absolute URI without fragment. The text is sent unchanged.
fn parse_resource(text: &str) -> Result<String, String> {
    match Url::parse(text) {
        Ok(url) if url.fragment().is_none() => Ok(text.to_owned()),
        _ => Err("write an absolute URI without #, or pass the id of a service with --service".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_name_permissions() {
        assert_eq!(parse_scope("write read").unwrap().to_string(), "read write");
        for invalid in ["", " ", "read,write", "svc_sk_s3cr3t", "read eyJhbGciOiJFUzI1NiJ9"] {
            let error = parse_scope(invalid).unwrap_err();
            assert!(!error.contains("s3cr3t") && !error.contains("eyJ"), "{error}");
        }
    }

    #[test]
    fn resources_are_absolute_uris_without_fragment() {
        for valid in ["https://mcp.example/", "https://mcp.example/a?b=c", "urn:example:resource"] {
            assert_eq!(parse_resource(valid).as_deref(), Ok(valid));
        }
        for invalid in ["", "mcp.example", "/path", "https://mcp.example/#part", "svc_00000000000000000000000001"] {
            assert!(parse_resource(invalid).is_err(), "{invalid}");
        }
    }
}
