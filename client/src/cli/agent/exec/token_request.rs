//! `countersign agent exec` starts a program and gives it a local OAuth token endpoint. This module parses the program's requests
//! (RFC 6749, section 4.4, and RFC 8707) and refuses what exceeds the command's `--scope` and `--resource`.

use countersign_client::{Scope, TokenRequest, profile::is_same_url};
use std::borrow::Cow;

const GRANT_TYPE: &str = "client_credentials";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestError {
    /// The error code of RFC 6749, section 5.2, or of RFC 8707, section 2.
    pub code: &'static str,
    pub description: Cow<'static, str>,
}

/// The parameters of a request. Parameters without a value count as absent (RFC 6749, section 3.2).
#[derive(Debug)]
pub struct Form(Vec<(String, String)>);

impl RequestError {
    pub fn new(code: &'static str, description: impl Into<Cow<'static, str>>) -> Self {
        Self { code, description: description.into() }
    }
}

impl Form {
    /// Parses a body. A parameter must not be repeated.
    pub fn parse(body: &[u8]) -> Result<Self, RequestError> {
        let mut parameters: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(body).filter(|(_, value)| !value.is_empty()) {
            if parameters.iter().any(|(existing, _)| *existing == name) {
                // RFC 8707 allows several resources, but a token of this endpoint is for one.
                let code = if name == "resource" { "invalid_target" } else { "invalid_request" };
                return Err(RequestError::new(code, "a parameter is repeated"));
            }
            parameters.push((name.into_owned(), value.into_owned()));
        }
        Ok(Self(parameters))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(existing, _)| existing == name).map(|(_, value)| value.as_str())
    }
}

/// Checks that a request stays within `allowed`, the limits of the command. Returns the requested scope, `None` if there is none.
pub fn narrow(allowed: &TokenRequest, form: &Form) -> Result<Option<Scope>, RequestError> {
    match form.get("grant_type") {
        None => return Err(RequestError::new("invalid_request", "grant_type is missing")),
        Some(GRANT_TYPE) => {}
        Some(_) => {
            return Err(RequestError::new("unsupported_grant_type", "grant_type must be client_credentials"));
        }
    }
    // Some programs send `audience`, the name of the parameter before RFC 8707.
    for resource in ["resource", "audience"].into_iter().filter_map(|name| form.get(name)) {
        if !allowed.resource.as_deref().is_some_and(|allowed| is_same_url(allowed, resource)) {
            let problem = "tokens are only for the --resource or --service of countersign agent exec";
            return Err(RequestError::new("invalid_target", problem));
        }
    }
    let Some(text) = form.get("scope") else { return Ok(None) };
    let scope: Scope = text
        .parse()
        .map_err(|_| RequestError::new("invalid_scope", "scope must consist of permissions, separated by spaces"))?;
    match &allowed.scope {
        Some(allowed) if scope == *allowed => Ok(None),
        Some(allowed) if !scope.is_within(allowed) => {
            let missing = scope.without(allowed);
            let granted = "the scope of countersign agent exec (--scope, or the scope of the profile)";
            Err(RequestError::new("invalid_scope", format!("{granted} does not contain {missing}")))
        }
        _ => Ok(Some(scope).filter(|scope| !scope.is_empty())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn narrow(allowed: &TokenRequest, body: &str) -> Result<Option<String>, &'static str> {
        let narrowed = Form::parse(body.as_bytes()).and_then(|form| super::narrow(allowed, &form));
        narrowed.map(|scope| scope.map(|scope| scope.to_string())).map_err(|error| error.code)
    }

    #[test]
    fn scope_and_resource_can_only_be_narrowed() {
        let limits = TokenRequest {
            resource: Some("https://mcp.example".to_owned()),
            scope: Some("read write".parse().unwrap()),
        };
        for (parameters, expected) in [
            ("", Ok(None)),
            ("&scope=", Ok(None)),
            ("&scope=+", Ok(None)),
            ("&scope=write+read", Ok(None)),
            ("&scope=read", Ok(Some("read".to_owned()))),
            ("&scope=read+delete", Err("invalid_scope")),
            ("&scope=delete", Err("invalid_scope")),
            ("&scope=a,b", Err("invalid_scope")),
            ("&resource=https%3A%2F%2Fmcp.example%2F&audience=https://mcp.example", Ok(None)),
            ("&resource=https://mcp.example/other", Err("invalid_target")),
            ("&audience=https://other.example", Err("invalid_target")),
            ("&resource=https://mcp.example&resource=https://mcp.example", Err("invalid_target")),
            ("&scope=read&scope=write", Err("invalid_request")),
            ("&grant_type=client_credentials", Err("invalid_request")),
        ] {
            assert_eq!(
                narrow(&limits, &format!("grant_type=client_credentials{parameters}")),
                expected,
                "{parameters}"
            );
        }
    }

    #[test]
    fn without_limits_any_scope_but_no_resource_can_be_requested() {
        for (body, expected) in [
            ("grant_type=client_credentials", Ok(None)),
            ("grant_type=client_credentials&scope=read", Ok(Some("read".to_owned()))),
            ("grant_type=client_credentials&resource=https://mcp.example", Err("invalid_target")),
            ("grant_type=authorization_code", Err("unsupported_grant_type")),
            ("grant_type=refresh_token&refresh_token=x", Err("unsupported_grant_type")),
            ("", Err("invalid_request")),
            ("grant_type=", Err("invalid_request")),
        ] {
            assert_eq!(narrow(&TokenRequest::default(), body), expected, "{body}");
        }
    }
}
