//! `[redis]`: the Redis that replicas share.

use redis::{ConnectionAddr, IntoConnectionInfo};
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use std::path::PathBuf;

/// `[redis]`
#[derive(Debug, Clone, Deserialize)]
pub struct RedisSettings {
    url: SecretString,
    kind: RedisKind,
    sentinel_master: String,
    sentinel_user: String,
    sentinel_password: SecretString,
    /// A PEM file of the certificate authorities that are trusted instead of those of the operating system. Empty: the
    /// authorities of the operating system are trusted.
    pub ca_file: PathBuf,
    /// A PEM file of the client certificate chain. Empty: no client certificate.
    pub certificate: PathBuf,
    /// A PEM file of the client's private key.
    pub private_key: PathBuf,
}

/// The topology of Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum RedisKind {
    /// A single server.
    Single,
    /// Sentinels, which name the current master.
    Sentinel,
    /// A Redis Cluster.
    Cluster,
}

impl TryFrom<String> for RedisKind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "single" => Ok(Self::Single),
            "sentinel" => Ok(Self::Sentinel),
            "cluster" => Ok(Self::Cluster),
            _ => Err(format!("`{}` must be `single`, `sentinel` or `cluster`", text.escape_debug())),
        }
    }
}

/// The name of the master that the Sentinels monitor, and the credentials for the Sentinels themselves.
#[derive(Debug, Clone)]
pub struct SentinelSettings {
    /// The name of the master.
    pub master: String,
    /// The user for the Sentinels themselves. Empty: the Sentinels require no user.
    pub user: String,
    /// The password for the Sentinels themselves. Empty: the Sentinels require no password.
    pub password: SecretString,
}

impl RedisSettings {
    /// The topology and the URLs. `None` if no Redis is configured.
    pub fn endpoints(&self) -> Option<(RedisKind, Vec<SecretString>)> {
        let urls: Vec<_> = self.urls().map(SecretString::from).collect();
        (!urls.is_empty()).then_some((self.kind, urls))
    }

    /// The settings that apply to Sentinels only.
    pub fn sentinel(&self) -> SentinelSettings {
        let (user, password) = (self.sentinel_user.clone(), self.sentinel_password.clone());
        SentinelSettings { master: self.sentinel_master.clone(), user, password }
    }

    fn urls(&self) -> impl Iterator<Item = &str> {
        self.url.expose_secret().split(',').map(str::trim).filter(|url| !url.is_empty())
    }

    /// Describes the first problem of the `[redis]` settings; `None` if the settings are valid. The returned text never
    /// contains values of the settings.
    pub(super) fn problem(&self) -> Option<&'static str> {
        let Self {
            url: _,
            kind,
            sentinel_master,
            sentinel_user,
            sentinel_password,
            ca_file: _,
            certificate: _,
            private_key: _,
        } = self;
        let uses_sentinels = *kind == RedisKind::Sentinel;
        let has_master = !sentinel_master.is_empty();
        let has_user = !sentinel_user.is_empty();
        let has_password = !sentinel_password.expose_secret().is_empty();
        let has_plaintext = self.urls().any(|url| !url.starts_with("rediss://"));
        let has_tls = self.urls().any(|url| url.starts_with("rediss://"));
        let cases = [
            (
                !self.urls().all(is_acceptable_url),
                "redis.url: must be redis:// or, with TLS, rediss://<user>:<password>@<host>:<port>/<database \
                 number>, without query and fragment; for Sentinels and clusters, several separated by commas",
            ),
            (has_plaintext && has_tls, "redis.url: mixes redis:// and rediss://: use TLS for all servers or for none"),
            (
                !self.have_same_credentials(),
                "redis.url: user, password and database are those of Redis and must be the same in all URLs",
            ),
            (
                *kind == RedisKind::Single && self.urls().count() > 1,
                "redis.url: has several URLs; set redis.kind to sentinel or cluster, or leave one URL",
            ),
            (
                *kind == RedisKind::Cluster && self.urls().any(|url| database_number(url) != Some(0)),
                "redis.url: a cluster has only one database: leave its number out",
            ),
            (
                uses_sentinels && !has_master,
                "redis.sentinel_master: set it to the name of the master that the Sentinels monitor",
            ),
            (
                !uses_sentinels && (has_master || has_user || has_password),
                "redis.sentinel_master, redis.sentinel_user, redis.sentinel_password: require redis.kind = \
                 sentinel: set it, or leave them empty",
            ),
            (has_user && !has_password, "redis.sentinel_password: set it, or leave redis.sentinel_user empty"),
        ];
        let files = self.file_problem(has_tls);
        cases.into_iter().find(|(is_wrong, _)| *is_wrong).map(|(_, text)| text).or(files)
    }

    fn file_problem(&self, has_tls: bool) -> Option<&'static str> {
        let [has_ca, has_certificate, has_private_key] =
            [&self.ca_file, &self.certificate, &self.private_key].map(|file| !file.as_os_str().is_empty());
        let cases = [
            (has_ca && !has_tls, "redis.ca_file: requires TLS: use rediss:// in redis.url, or leave it empty"),
            (
                (has_certificate || has_private_key) && !has_tls,
                "redis.certificate, redis.private_key: require TLS: use rediss:// in redis.url, or leave them empty",
            ),
            (has_private_key && !has_certificate, "redis.certificate: set it, or leave redis.private_key empty"),
            (has_certificate && !has_private_key, "redis.private_key: set it, or leave redis.certificate empty"),
        ];
        cases.into_iter().find(|(is_wrong, _)| *is_wrong).map(|(_, text)| text)
    }

    /// Whether all URLs have the same user, password and database.
    fn have_same_credentials(&self) -> bool {
        let mut credentials = self.urls().map(|url| {
            let info = url.into_connection_info().ok()?;
            let redis = info.redis_settings();
            Some((redis.username().map(str::to_owned), redis.password().map(str::to_owned), redis.db()))
        });
        let first = credentials.next();
        credentials.all(|other| Some(other) == first)
    }
}

fn is_acceptable_url(text: &str) -> bool {
    let Ok(url) = Url::parse(text) else { return false };
    let has_valid_parts =
        url.query().is_none() && url.fragment().is_none() && matches!(url.scheme(), "redis" | "rediss");
    let Ok(info) = text.into_connection_info() else { return false };
    has_valid_parts && matches!(info.addr(), ConnectionAddr::Tcp(..) | ConnectionAddr::TcpTls { .. })
}

fn database_number(url: &str) -> Option<i64> {
    url.into_connection_info().ok().map(|info| info.redis_settings().db())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(url: &str, others: &[(&str, &str)]) -> Option<&'static str> {
        let value = |name: &str| others.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value).to_owned();
        let kind = if value("kind").is_empty() { "single".to_owned() } else { value("kind") };
        let settings = RedisSettings {
            url: url.into(),
            kind: kind.try_into().unwrap(),
            sentinel_master: value("sentinel_master"),
            sentinel_user: value("sentinel_user"),
            sentinel_password: value("sentinel_password").into(),
            ca_file: value("ca_file").into(),
            certificate: value("certificate").into(),
            private_key: value("private_key").into(),
        };
        assert_eq!(settings.endpoints().is_none(), url.is_empty());
        settings.problem()
    }

    #[test]
    fn accepts_valid_combinations_of_urls_and_settings() {
        let (sentinel, master) = (("kind", "sentinel"), ("sentinel_master", "limits"));
        for (url, others) in [
            ("", &[][..]),
            ("redis://redis", &[]),
            ("rediss://user:pass%20word@redis.example:6380/3", &[("ca_file", "ca.pem")]),
            ("rediss://redis", &[("certificate", "own.pem"), ("private_key", "own.key")]),
            ("redis://[::1]:6379", &[]),
            ("redis://a, redis://b:1", &[sentinel, master]),
            ("redis://a", &[sentinel, master, ("sentinel_user", "u"), ("sentinel_password", "p")]),
            ("redis://a,redis://b", &[("kind", "cluster")]),
        ] {
            assert_eq!(problem(url, others), None, "{url}");
        }
    }

    #[test]
    fn rejects_invalid_settings_and_names_the_key() {
        let sentinel = ("kind", "sentinel");
        for (url, others, key) in [
            ("localhost:6379", &[][..], "redis.url: must be"),
            ("http://redis", &[], "redis.url: must be"),
            ("unix:///redis.sock", &[], "redis.url: must be"),
            ("rediss://redis#insecure", &[], "redis.url: must be"),
            ("redis://redis?protocol=resp3", &[], "redis.url: must be"),
            ("redis://redis/x", &[], "redis.url: must be"),
            ("redis://a,rediss://b", &[("kind", "cluster")], "redis.url: mixes"),
            ("redis://:one@a,redis://:two@b", &[("kind", "cluster")], "redis.url: user"),
            ("redis://a,redis://b", &[], "redis.kind"),
            ("redis://a/1", &[("kind", "cluster")], "redis.url: a cluster"),
            ("redis://a", &[sentinel], "redis.sentinel_master"),
            ("redis://a", &[("sentinel_master", "limits")], "redis.kind"),
            ("redis://a", &[sentinel, ("sentinel_master", "m"), ("sentinel_user", "u")], "redis.sentinel_password"),
            ("redis://a", &[("ca_file", "ca.pem")], "redis.ca_file"),
            (
                "redis://a",
                &[("certificate", "c"), ("private_key", "k")],
                "redis.certificate, redis.private_key: require TLS",
            ),
            ("", &[("certificate", "c"), ("private_key", "k")], "redis.certificate, redis.private_key: require TLS"),
            ("rediss://a", &[("certificate", "c")], "redis.private_key: set it"),
            ("rediss://a", &[("private_key", "k")], "redis.certificate: set it"),
        ] {
            let problem = problem(url, others).unwrap_or_default();
            assert!(problem.contains(key), "{url}: {problem}");
        }
    }
}
