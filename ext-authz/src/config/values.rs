//! Kinds of value that settings hold, each parsed at the door.

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use std::{fmt, net::IpAddr, path::PathBuf};
use tonic::transport::Uri;

/// Why a value is not accepted; the text tells how to mend it and never repeats the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidValue {
    /// An address to listen on.
    #[error("must be an address such as `127.0.0.1:9191`, or `unix:` and a path")]
    ListenAddress,
    /// The control plane's address.
    #[error("must be `https://` and a host, such as `https://control-plane:8444`")]
    SyncUrl,
    /// Secrets would travel in the clear.
    #[error("must begin with `https://`: plain `http://` is accepted for loopback only")]
    PlainText,
    /// Not something that can be sent as a key.
    #[error("holds something that is not a service API key: visible ASCII without spaces is expected")]
    ApiKey,
    /// The beginning of header names.
    #[error("must be lower-case letters, digits and dashes, and end with a dash, such as `x-agent-`")]
    HeaderPrefix,
}

/// Where Envoy calls.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum ListenAddress {
    /// Host and port.
    Tcp(String),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl TryFrom<String> for ListenAddress {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        match text.strip_prefix("unix:") {
            Some(path) if !path.is_empty() => Ok(Self::Unix(path.into())),
            None if text.contains(':') => Ok(Self::Tcp(text)),
            _ => Err(InvalidValue::ListenAddress),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The control plane's address: over TLS, unless it is on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct SyncUrl(Uri);

impl SyncUrl {
    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }

    /// The address.
    pub const fn uri(&self) -> &Uri {
        &self.0
    }
}

impl TryFrom<String> for SyncUrl {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        let uri: Uri = text.parse().map_err(|_| InvalidValue::SyncUrl)?;
        let host = uri.host().ok_or(InvalidValue::SyncUrl)?.trim_start_matches('[').trim_end_matches(']');
        let loopback = host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        match uri.scheme_str() {
            Some("https") => Ok(Self(uri)),
            Some("http") if loopback => Ok(Self(uri)),
            Some("http") => Err(InvalidValue::PlainText),
            _ => Err(InvalidValue::SyncUrl),
        }
    }
}

/// A service API key. Nothing prints it.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct ApiKey(SecretString);

impl ApiKey {
    /// The key in clear, for the one header that carries it.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl TryFrom<String> for ApiKey {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        let visible = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        if visible { Ok(Self(text.into())) } else { Err(InvalidValue::ApiKey) }
    }
}

/// What the names of identity headers begin with.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct HeaderPrefix(String);

impl HeaderPrefix {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for HeaderPrefix {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        let plain = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if plain && text.len() > 1 && text.ends_with('-') { Ok(Self(text)) } else { Err(InvalidValue::HeaderPrefix) }
    }
}
