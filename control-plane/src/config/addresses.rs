//! Where clients find this server (`public_url`, `[listen]`) and what is in front of it (`[proxies]`, `tls.mode`).

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de::Error};
use std::net::{IpAddr, SocketAddr};
use url::Url;

#[derive(Debug, Clone, Deserialize)]
pub struct ListenSettings {
    /// The API: HTTPS.
    #[serde(deserialize_with = "address")]
    pub api: SocketAddr,
    /// The sync port for sidecars: gRPC over TLS.
    #[serde(deserialize_with = "address")]
    pub sync: SocketAddr,
    /// Health checks and metrics: plain HTTP.
    #[serde(deserialize_with = "address")]
    pub admin: SocketAddr,
}

impl ListenSettings {
    /// A message for each pair of settings with the same address.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let Self { api, sync, admin } = *self;
        let pairs = [("api", api, "sync", sync), ("api", api, "admin", admin), ("sync", sync, "admin", admin)];
        let conflicts = pairs.into_iter().filter(|(_, first, _, second)| conflict(*first, *second));
        conflicts.map(|(first_name, first, second_name, second)| {
            format!("listen.{first_name}, listen.{second_name}: {first} and {second} need the same port: set different ports")
        })
    }
}

/// Whether two addresses cannot be bound at the same time. Port 0 means any free port.
fn conflict(first: SocketAddr, second: SocketAddr) -> bool {
    // `[::]` includes all IPv4 addresses.
    let includes = |all: SocketAddr, other: SocketAddr| all.ip().is_unspecified() && (all.is_ipv6() || other.is_ipv4());
    let overlap = first.ip() == second.ip() || includes(first, second) || includes(second, first);
    first.port() != 0 && first.port() == second.port() && overlap
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_| {
        let text = text.escape_debug();
        D::Error::custom(format_args!(
            "`{text}` must be an IP address and a port, such as `0.0.0.0:8443` or `[::]:8443`"
        ))
    })
}

/// What terminates the TLS of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum TlsMode {
    /// This server terminates the TLS of the API.
    Serve,
    /// The trusted proxies terminate TLS and send plain HTTP to this server.
    Terminated,
}

impl TryFrom<String> for TlsMode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "serve" => Ok(Self::Serve),
            "terminated" => Ok(Self::Terminated),
            _ => Err(format!("tls.mode: `{text}` must be `serve` or `terminated`")),
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
pub struct ProxySettings {
    trusted: Vec<Network>,
}

impl ProxySettings {
    /// The networks of proxies whose `X-Forwarded-For` is trusted.
    pub fn networks(&self) -> Vec<IpNet> {
        self.trusted.iter().map(|network| network.0).collect()
    }
}

/// A network in CIDR notation, or a single address.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub struct Network(pub IpNet);

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
        let network = text
            .parse()
            .ok()
            .or_else(address)
            .ok_or_else(|| format!("`{text}` is neither a network such as 10.0.0.0/8 nor an address"))?;
        // A list of trusted networks that contains every address is a mistake.
        if network.prefix_len() == 0 {
            return Err(format!("`{text}` contains every address; list specific networks"));
        }
        Ok(Self(network))
    }
}

/// The end of each message about `public_url`: what to write there instead.
const PUBLIC_URL_FIX: &str =
    "set it to the https:// URL under which agents reach the API; it is the issuer of every token";

/// Describes the problem of `public_url`; `None` if it is valid. With --dev, it may be empty or begin with `http://`.
pub(super) fn problem_of_public_url(text: &str, dev: bool) -> Option<String> {
    if text.is_empty() {
        return (!dev).then(|| format!("no public_url: {PUBLIC_URL_FIX}"));
    }
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://").filter(|_| dev));
    let Some(rest) = rest else { return Some(describe_public_url(text, "does not begin with `https://`")) };
    let has_no_host = rest.is_empty() || rest.starts_with(['/', '?', '#', ':']);
    let url = Url::parse(text).ok().filter(|_| !text.contains(char::is_whitespace));
    let reason = match url {
        _ if has_no_host => "has no host",
        None => "is not a valid URL",
        Some(_) if rest.split(['/', '?', '#']).next().is_some_and(|authority| authority.contains('@')) => {
            return Some(format!("public_url: contains a user or a password: leave both out; {PUBLIC_URL_FIX}"));
        }
        Some(_) if text.contains(['?', '#']) => "has a query or a fragment, which an issuer must not have",
        Some(_) => return None,
    };
    Some(describe_public_url(text, reason))
}

fn describe_public_url(text: &str, reason: &str) -> String {
    // We never print a password, and even a text that is no URL can contain one.
    let value = if text.contains('@') { String::new() } else { format!("`{}` ", text.escape_debug()) };
    format!("public_url: {value}{reason}: {PUBLIC_URL_FIX}")
}
