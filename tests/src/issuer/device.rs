//! The endpoints of the issuer for the device authorization grant (RFC 8628), refresh (RFC 6749) and revocation (RFC
//! 7009). Refresh tokens are rotated: each one can be used once.

use super::{AUDIENCE, Issuer, Shared, SigningKey, now};
use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};

/// Paths below this one are redirected to the same path without it.
const MOVED: &str = "/moved";

/// The device code that the issuer issues.
const DEVICE_CODE: &str = "device-code-s3cr3t";

/// The state of the device authorization grant: what the issuer returns, and what it has received.
pub struct DeviceGrant {
    key: SigningKey,
    /// OAuth errors that the token endpoint returns before it returns tokens.
    pub poll_errors: VecDeque<&'static str>,
    /// Members of the device authorization response that replace the defaults; null removes a member.
    pub device_response: Value,
    /// Claims of all tokens in addition to the defaults.
    pub claims: Value,
    /// The lifetimes of the next tokens in seconds; the last one is repeated.
    pub lifetimes: VecDeque<i64>,
    /// The audience of the access token, which is then a JWT; `None` for an opaque token.
    pub access_token_audience: Option<&'static str>,
    /// Whether the responses contain refresh tokens.
    pub issues_refresh_tokens: bool,
    /// Whether the revocation endpoint fails.
    pub revocation_fails: bool,
    /// The path and the form of each request.
    pub requests: Vec<(String, HashMap<String, String>)>,
    /// The number of requests with a refresh token that is not the current one.
    pub refused_refreshes: usize,
    current_refresh_token: Option<String>,
    issued: usize,
}

impl Issuer {
    /// Enables the device authorization grant, with tokens that this key signs.
    pub fn enable_device_grant(&self, key: SigningKey) {
        for (name, path) in [
            ("device_authorization_endpoint", "/device"),
            ("token_endpoint", "/token"),
            ("revocation_endpoint", "/revoke"),
        ] {
            self.set_discovery_field(name, &format!("{}{path}", self.url));
        }
        let scopes = json!(["openid", "email", "offline_access"]);
        self.shared.discovery.lock().expect("the lock is not poisoned")["scopes_supported"] = scopes;
        *self.shared.device_grant.lock().expect("the lock is not poisoned") = Some(DeviceGrant {
            key,
            poll_errors: VecDeque::new(),
            device_response: json!({}),
            claims: json!({}),
            lifetimes: VecDeque::from([3600]),
            access_token_audience: None,
            issues_refresh_tokens: true,
            revocation_fails: false,
            requests: Vec::new(),
            refused_refreshes: 0,
            current_refresh_token: None,
            issued: 0,
        });
    }

    /// Reads or changes the device authorization grant, which must be enabled.
    pub fn device_grant<T>(&self, access: impl FnOnce(&mut DeviceGrant) -> T) -> T {
        let mut grant = self.shared.device_grant.lock().expect("the lock is not poisoned");
        access(grant.as_mut().expect("the device grant is enabled"))
    }

    /// The forms that were sent to a path.
    pub fn forms(&self, path: &str) -> Vec<HashMap<String, String>> {
        let is_path = |(requested, _): &&(String, HashMap<String, String>)| requested == path;
        self.device_grant(|grant| grant.requests.iter().filter(is_path).map(|(_, form)| form.clone()).collect())
    }

    /// The forms of refreshes.
    pub fn refreshes(&self) -> Vec<HashMap<String, String>> {
        let is_refresh = |form: &HashMap<String, String>| form["grant_type"] == "refresh_token";
        self.forms("/token").into_iter().filter(is_refresh).collect()
    }

    /// The URL below which every path is redirected to the same path of the issuer.
    pub fn moved_url(&self) -> String {
        format!("{}{MOVED}", self.url)
    }
}

impl DeviceGrant {
    /// A token of the issuer that expires after `lifetime` seconds.
    pub fn token(&self, issuer: &str, audience: &str, lifetime: i64) -> String {
        let now = now();
        let mut claims = json!({ "iss": issuer, "aud": audience, "sub": "ann", "email": "ann@example.org", "iat": now, "exp": now + lifetime });
        let changes = self.claims.as_object().into_iter().flatten();
        changes.for_each(|(name, value)| claims[name] = value.clone());
        self.key.token(&claims)
    }

    fn tokens(&mut self, issuer: &str) -> Response {
        self.issued += 1;
        let lifetime =
            if self.lifetimes.len() > 1 { self.lifetimes.pop_front() } else { self.lifetimes.front().copied() };
        let lifetime = lifetime.expect("a lifetime is set");
        let access_token = self.access_token_audience.map(|audience| self.token(issuer, audience, lifetime));
        let mut body = json!({
            "access_token": access_token.unwrap_or_else(|| "opaque-s3cr3t".to_owned()),
            "id_token": self.token(issuer, AUDIENCE, lifetime),
            "token_type": "Bearer",
            "expires_in": lifetime,
        });
        if self.issues_refresh_tokens {
            let refresh_token = format!("refresh-s3cr3t-{}", self.issued);
            body["refresh_token"] = json!(refresh_token);
            self.current_refresh_token = Some(refresh_token);
        }
        axum::Json(body).into_response()
    }

    fn token_response(&mut self, issuer: &str, form: &HashMap<String, String>) -> Response {
        let field = |name: &str| form.get(name).map_or("", String::as_str);
        match field("grant_type") {
            "refresh_token" if self.current_refresh_token.as_deref() == Some(field("refresh_token")) => {
                self.tokens(issuer)
            }
            "refresh_token" => {
                self.refused_refreshes += 1;
                oauth_error("invalid_grant", &format!("{} is not valid", field("refresh_token")))
            }
            "urn:ietf:params:oauth:grant-type:device_code" if field("device_code") == DEVICE_CODE => {
                match self.poll_errors.pop_front() {
                    Some(error) => oauth_error(error, "as the test demands"),
                    None => self.tokens(issuer),
                }
            }
            other => oauth_error("unsupported_grant_type", other),
        }
    }

    fn device_response(&self, issuer: &str) -> Response {
        let mut body = json!({
            "device_code": DEVICE_CODE,
            "user_code": "WDJB-MJHT",
            "verification_uri": format!("{issuer}/verify"),
            "verification_uri_complete": format!("{issuer}/verify?user_code=WDJB-MJHT"),
            "expires_in": 600,
            "interval": 0,
        });
        for (name, value) in self.device_response.as_object().into_iter().flatten() {
            body = super::with(body, name, value.clone());
        }
        axum::Json(body).into_response()
    }
}

/// The response of the endpoints of the device authorization grant. `None` for other paths, and if the grant is not enabled.
pub fn respond(shared: &Shared, path: &str, body: &str) -> Option<Response> {
    let mut grant = shared.device_grant.lock().expect("the lock is not poisoned");
    let grant = grant.as_mut()?;
    let discovery = shared.discovery.lock().expect("the lock is not poisoned").clone();
    let issuer = discovery["issuer"].as_str().expect("the issuer is a text");
    if let Some(target) = path.strip_prefix(MOVED) {
        return Some((StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, target.to_owned())]).into_response());
    }
    if !["/device", "/token", "/revoke"].contains(&path) {
        return None;
    }
    let form: HashMap<String, String> = form_urlencoded::parse(body.as_bytes()).into_owned().collect();
    grant.requests.push((path.to_owned(), form.clone()));
    Some(match path {
        "/device" => grant.device_response(issuer),
        "/token" => grant.token_response(issuer, &form),
        _ if grant.revocation_fails => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        _ => {
            grant.current_refresh_token = None;
            StatusCode::OK.into_response()
        }
    })
}

fn oauth_error(code: &str, description: &str) -> Response {
    let body = json!({ "error": code, "error_description": description });
    (StatusCode::BAD_REQUEST, axum::Json(body)).into_response()
}
