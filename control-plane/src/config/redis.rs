//! `[redis]`

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
    /// A PEM file of the only authorities that may vouch for its certificate; empty: those of the system.
    pub ca_file: PathBuf,
    /// A PEM file of the certificate chain that is shown to it; empty: none is.
    pub certificate: PathBuf,
    /// A PEM file of its private key.
    pub private_key: PathBuf,
}

/// What stands at the URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum RedisKind {
    /// One Redis.
    Single,
    /// Sentinels, which know the Redis that is the master now.
    Sentinel,
    /// Nodes of a cluster.
    Cluster,
}

impl TryFrom<String> for RedisKind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "single" => Ok(Self::Single),
            "sentinel" => Ok(Self::Sentinel),
            "cluster" => Ok(Self::Cluster),
            _ => Err(format!("redis.kind: `{text}` must be `single`, `sentinel` or `cluster`")),
        }
    }
}

/// Whom a Sentinel is asked for, and how.
#[derive(Debug, Clone)]
pub struct SentinelSettings {
    /// The name of the master.
    pub master: String,
    /// User and password for the Sentinels themselves; empty: they ask for none.
    pub user: String,
    /// The password.
    pub password: SecretString,
}

impl RedisSettings {
    /// What stands there, and its URLs; `None`: there is no Redis.
    pub fn place(&self) -> Option<(RedisKind, Vec<SecretString>)> {
        let urls: Vec<_> = self.urls().map(SecretString::from).collect();
        (!urls.is_empty()).then_some((self.kind, urls))
    }

    /// Whom a Sentinel is asked for, and how.
    pub fn sentinel(&self) -> SentinelSettings {
        let (user, password) = (self.sentinel_user.clone(), self.sentinel_password.clone());
        SentinelSettings { master: self.sentinel_master.clone(), user, password }
    }

    fn urls(&self) -> impl Iterator<Item = &str> {
        self.url.expose_secret().split(',').map(str::trim).filter(|url| !url.is_empty())
    }

    /// What is wrong with them; never what they are.
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
        let by_sentinel = *kind == RedisKind::Sentinel;
        let said_master = !sentinel_master.is_empty();
        let said_user = !sentinel_user.is_empty();
        let said_password = !sentinel_password.expose_secret().is_empty();
        let plain = self.urls().any(|url| !url.starts_with("rediss://"));
        let secure = self.urls().any(|url| url.starts_with("rediss://"));
        let cases = [
            (
                !self.urls().all(is_acceptable),
                "redis.url: must be redis:// or, with TLS, rediss://<user>:<password>@<host>:<port>/<number of the \
                 database>, without query and fragment; several, separated by commas, for Sentinels and clusters",
            ),
            (plain && secure, "redis.url: mixes redis:// and rediss://: use TLS everywhere or nowhere"),
            (
                !self.agree(),
                "redis.url: user, password and database must be the same in all of them: they are those of Redis",
            ),
            (
                *kind == RedisKind::Single && self.urls().count() > 1,
                "redis.url: names several; set redis.kind to sentinel or cluster, or name one",
            ),
            (
                *kind == RedisKind::Cluster && self.urls().any(|url| database_of(url) != Some(0)),
                "redis.url: a cluster has one database: leave its number out",
            ),
            (
                by_sentinel && !said_master,
                "redis.sentinel_master: set it to the name under which the Sentinels watch the master",
            ),
            (
                !by_sentinel && (said_master || said_user || said_password),
                "redis.sentinel_master, redis.sentinel_user, redis.sentinel_password: are for redis.kind = sentinel \
                 only: set it, or leave them empty",
            ),
            (said_user && !said_password, "redis.sentinel_password: set it, or leave redis.sentinel_user empty"),
        ];
        let files = self.problem_of_files(secure);
        cases.into_iter().find(|(wrong, _)| *wrong).map(|(_, text)| text).or(files)
    }

    fn problem_of_files(&self, secure: bool) -> Option<&'static str> {
        let [by_authority, certificate, private_key] =
            [&self.ca_file, &self.certificate, &self.private_key].map(|file| !file.as_os_str().is_empty());
        let cases = [
            (
                by_authority && !secure,
                "redis.ca_file: is for rediss:// only: say so in redis.url, or leave the file out",
            ),
            (
                (certificate || private_key) && !secure,
                "redis.certificate, redis.private_key: are for rediss:// only: say so in redis.url, or leave them empty",
            ),
            (private_key && !certificate, "redis.certificate: set it, or leave redis.private_key empty"),
            (certificate && !private_key, "redis.private_key: set it, or leave redis.certificate empty"),
        ];
        cases.into_iter().find(|(wrong, _)| *wrong).map(|(_, text)| text)
    }

    /// Whether all URLs speak of the same user and database.
    fn agree(&self) -> bool {
        let mut all = self.urls().map(|url| {
            let info = url.into_connection_info().ok()?;
            let redis = info.redis_settings();
            Some((redis.username().map(str::to_owned), redis.password().map(str::to_owned), redis.db()))
        });
        let first = all.next();
        all.all(|other| Some(other) == first)
    }
}

fn is_acceptable(text: &str) -> bool {
    let Ok(url) = Url::parse(text) else { return false };
    let plain = url.query().is_none() && url.fragment().is_none() && matches!(url.scheme(), "redis" | "rediss");
    let Ok(info) = text.into_connection_info() else { return false };
    plain && matches!(info.addr(), ConnectionAddr::Tcp(..) | ConnectionAddr::TcpTls { .. })
}

fn database_of(url: &str) -> Option<i64> {
    url.into_connection_info().ok().map(|info| info.redis_settings().db())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(url: &str, others: &[(&str, &str)]) -> Option<&'static str> {
        let of = |name: &str| others.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value).to_owned();
        let kind = if of("kind").is_empty() { "single".to_owned() } else { of("kind") };
        let settings = RedisSettings {
            url: url.into(),
            kind: kind.try_into().unwrap(),
            sentinel_master: of("sentinel_master"),
            sentinel_user: of("sentinel_user"),
            sentinel_password: of("sentinel_password").into(),
            ca_file: of("ca_file").into(),
            certificate: of("certificate").into(),
            private_key: of("private_key").into(),
        };
        assert_eq!(settings.place().is_none(), url.is_empty());
        settings.problem()
    }

    #[test]
    fn one_or_several_as_the_kind_says() {
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
    fn what_is_wrong_names_the_key() {
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
                "redis.certificate, redis.private_key: are for",
            ),
            ("", &[("certificate", "c"), ("private_key", "k")], "redis.certificate, redis.private_key: are for"),
            ("rediss://a", &[("certificate", "c")], "redis.private_key: set it"),
            ("rediss://a", &[("private_key", "k")], "redis.certificate: set it"),
        ] {
            let found = problem(url, others).unwrap_or_default();
            assert!(found.contains(key), "{url}: {found}");
        }
    }
}
