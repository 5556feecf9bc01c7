//! Types for the values of settings. Their parsers validate the text. Invariant: an error says how a valid value looks, and never
//! contains a value that may be secret.

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use std::{fmt, net::IpAddr, path::PathBuf};
use tonic::transport::Uri;

/// The address to which Envoy connects.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum ListenAddress {
    /// A host and a port.
    Tcp(String),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl TryFrom<String> for ListenAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some(path) if !path.is_empty() => Ok(Self::Unix(path.into())),
            None if is_host_and_port(&text) => Ok(Self::Tcp(text)),
            _ => Err(format!(
                "`{}` must be an address such as `127.0.0.1:9191`, or `unix:` and a path",
                text.escape_debug()
            )),
        }
    }
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct HostAndPort(String);

impl HostAndPort {
    /// The host and the port, separated by a colon.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for HostAndPort {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if is_host_and_port(&text) {
            Ok(Self(text))
        } else {
            Err(format!("`{}` must be an address such as `127.0.0.1:9092`", text.escape_debug()))
        }
    }
}

impl ListenAddress {
    /// Whether only processes on this host, or in this pod, can connect.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.rsplit_once(':').is_some_and(|(host, _port)| is_loopback(host)),
            Self::Unix(_) => true,
        }
    }
}

/// Whether a host is loopback. An IPv6 address may be in brackets.
fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.to_canonical().is_loopback())
}

fn is_host_and_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

const INVALID_SYNC_URL: &str =
    "must be `https://` and a host without user and password, such as `https://control-plane:8444`";

/// The URL of the control plane: HTTPS, or plain HTTP to a loopback address.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct SyncUrl(Uri);

impl SyncUrl {
    /// Whether the connection uses TLS.
    pub fn is_tls(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }

    /// The URL.
    pub const fn uri(&self) -> &Uri {
        &self.0
    }
}

impl TryFrom<String> for SyncUrl {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        let uri: Uri = text.parse().map_err(|_| INVALID_SYNC_URL)?;
        let is_loopback = is_loopback(uri.host().ok_or(INVALID_SYNC_URL)?);
        // The URL is logged, so it must not contain a password.
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(INVALID_SYNC_URL);
        }
        match uri.scheme_str() {
            Some("https") => Ok(Self(uri)),
            Some("http") if is_loopback => Ok(Self(uri)),
            // Over plain HTTP, API keys and data would be sent unencrypted.
            Some("http") => Err("must begin with `https://`: plain `http://` is accepted for loopback only"),
            _ => Err(INVALID_SYNC_URL),
        }
    }
}

/// A service API key. `Debug` does not print the API key.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct ApiKey(SecretString);

impl ApiKey {
    /// The API key in plain text, for the `authorization` metadata.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl TryFrom<String> for ApiKey {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        let is_word = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let is_key = text.strip_prefix("svc_sk_").is_some_and(|rest| !rest.is_empty() && is_word(rest));
        if is_key {
            Ok(Self(text.into()))
        } else {
            Err("must be service API keys: `svc_sk_`, then letters, digits and underscores")
        }
    }
}

/// The prefix of the names of identity headers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct HeaderPrefix(String);

impl HeaderPrefix {
    /// The prefix of identity headers as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for HeaderPrefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_header_name =
            text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if is_header_name && text.len() > 1 && text.ends_with('-') {
            Ok(Self(text))
        } else {
            let text = text.escape_debug();
            Err(format!(
                "`{text}` must be lower-case letters, digits and dashes, and end with a dash, such as `x-agent-`"
            ))
        }
    }
}
