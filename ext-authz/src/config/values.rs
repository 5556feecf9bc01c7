//! Types for the values of settings. Parsing the text of a setting validates its value.

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use std::{fmt, net::IpAddr, path::PathBuf};
use tonic::transport::Uri;

/// Why the value of a setting is invalid. The error message states the rule for the value. It does not contain a value that
/// may be secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidValue {
    /// The value is not an address to listen on.
    #[error("`{}` must be an address such as `127.0.0.1:9191`, or `unix:` and a path", .0.escape_debug())]
    ListenAddress(String),
    /// The value is not a host and a port.
    #[error("`{}` must be an address such as `127.0.0.1:9092`", .0.escape_debug())]
    HostAndPort(String),
    /// The value is not an HTTPS URL.
    #[error("must be `https://` and a host without user and password, such as `https://control-plane:8444`")]
    SyncUrl,
    /// The value is an HTTP URL, so API keys and data would be sent unencrypted.
    #[error("must begin with `https://`: plain `http://` is accepted for loopback only")]
    PlainText,
    /// The value is not an API key, but for example the error page of a secret store.
    #[error("must be service API keys: `svc_sk_`, then letters, digits and underscores")]
    ApiKey,
    /// The value is not a valid prefix of header names.
    #[error("`{}` must be lower-case letters, digits and dashes, and end with a dash, such as `x-agent-`", .0.escape_debug())]
    HeaderPrefix(String),
}

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
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        match text.strip_prefix("unix:") {
            Some(path) if !path.is_empty() => Ok(Self::Unix(path.into())),
            None if is_host_and_port(&text) => Ok(Self::Tcp(text)),
            _ => Err(InvalidValue::ListenAddress(text)),
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
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        if is_host_and_port(&text) { Ok(Self(text)) } else { Err(InvalidValue::HostAndPort(text)) }
    }
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
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        let uri: Uri = text.parse().map_err(|_| InvalidValue::SyncUrl)?;
        let host = uri.host().ok_or(InvalidValue::SyncUrl)?.trim_start_matches('[').trim_end_matches(']');
        let is_loopback = host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        // The log contains the URL.
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(InvalidValue::SyncUrl);
        }
        match uri.scheme_str() {
            Some("https") => Ok(Self(uri)),
            Some("http") if is_loopback => Ok(Self(uri)),
            Some("http") => Err(InvalidValue::PlainText),
            _ => Err(InvalidValue::SyncUrl),
        }
    }
}

/// A service API key. `Debug` does not print the API key.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct ApiKey(SecretString);

impl ApiKey {
    /// Parses the API keys in a file: separated by commas or line ends, as when the settings are read.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, InvalidValue> {
        let keys = text.split([',', '\n']).map(str::trim).filter(|key| !key.is_empty());
        keys.map(|key| key.to_owned().try_into()).collect()
    }

    /// The API key in plain text, for the `authorization` metadata.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl TryFrom<String> for ApiKey {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        let is_word = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let is_key = text.strip_prefix("svc_sk_").is_some_and(|rest| !rest.is_empty() && is_word(rest));
        if is_key { Ok(Self(text.into())) } else { Err(InvalidValue::ApiKey) }
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
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        let is_header_name =
            text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if is_header_name && text.len() > 1 && text.ends_with('-') {
            Ok(Self(text))
        } else {
            Err(InvalidValue::HeaderPrefix(text))
        }
    }
}
