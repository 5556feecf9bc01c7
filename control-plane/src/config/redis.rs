//! `[redis]`: the Redis that replicas share.
//!
//! One URL contains everything: the topology in its scheme, several hosts, and parameters for TLS and for Sentinels.

use super::existing_problems;
use redis::{ConnectionAddr, IntoConnectionInfo};
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use std::{collections::BTreeSet, path::PathBuf};

#[derive(Debug, Clone, Deserialize)]
pub struct RedisSettings {
    url: SecretString,
}

/// The topology of Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedisKind {
    Single,
    /// Sentinels, which name the current master.
    Sentinel,
    Cluster,
}

/// The Redis that a URL names.
#[derive(Debug, Clone)]
pub struct RedisTarget {
    pub kind: RedisKind,
    /// The URL of each host, without parameters. User, password and database are for Redis, not for the Sentinels.
    pub urls: Vec<SecretString>,
    /// `master`: the name of the master that the Sentinels monitor.
    pub master: String,
    /// `sentinel_user`: the user for the Sentinels themselves. Empty: they require no user.
    pub sentinel_user: String,
    /// `sentinel_password`: the password for the Sentinels themselves. Empty: they require no password.
    pub sentinel_password: SecretString,
    /// `sslrootcert`: a PEM file of the certificate authorities that are trusted instead of those of the operating system.
    /// Empty: the authorities of the operating system are trusted.
    pub ca_file: PathBuf,
    /// `sslcert`: a PEM file of the client certificate chain. Empty: no client certificate.
    pub certificate: PathBuf,
    /// `sslkey`: a PEM file of the client's private key.
    pub private_key: PathBuf,
}

/// The error for a URL that has another form.
const FORM: &str = "redis.url: must be redis://<user>:<password>@<host>:<port>/<database number>, without a fragment (`#`). \
                    Begin it with rediss:// for TLS, with redis+sentinel:// for Sentinels or with redis+cluster:// for a \
                    cluster (with TLS: rediss+sentinel://, rediss+cluster://); both accept several hosts, separated by commas";

impl RedisSettings {
    /// The Redis that replicas share; `None` if none is configured, or if the URL is invalid.
    pub fn target(&self) -> Option<RedisTarget> {
        self.parse().ok().flatten()
    }

    /// Describes the first problem of the `[redis]` settings; `None` if the settings are valid. The returned text never
    /// contains values of the settings.
    pub(super) fn problem(&self) -> Option<&'static str> {
        match self.parse() {
            Ok(target) => target.and_then(|target| target.problem()),
            Err(problem) => Some(problem),
        }
    }

    fn parse(&self) -> Result<Option<RedisTarget>, &'static str> {
        let text = self.url.expose_secret().trim();
        if text.is_empty() {
            return Ok(None);
        }
        let (scheme, rest) = text.split_once("://").ok_or(FORM)?;
        let (scheme, kind) = match scheme.split_once('+') {
            None => (scheme, RedisKind::Single),
            Some((scheme, "sentinel")) => (scheme, RedisKind::Sentinel),
            Some((scheme, "cluster")) => (scheme, RedisKind::Cluster),
            Some(_) => return Err(FORM),
        };
        let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        // `path` includes the `/` before it, and `user` the `@` after it, so that the URL of each host can contain both unchanged.
        let (authority, path) =
            rest.split_once('/').map_or((rest, ""), |(authority, _)| (authority, &rest[authority.len()..]));
        let (user, hosts) =
            authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (&rest[..=user.len()], hosts));
        let urls: Vec<_> = hosts.split(',').map(|host| format!("{scheme}://{user}{}{path}", host.trim())).collect();
        if !urls.iter().all(|url| is_acceptable_url(url)) {
            return Err(FORM);
        }
        let mut target = RedisTarget {
            kind,
            urls: urls.into_iter().map(SecretString::from).collect(),
            master: String::new(),
            sentinel_user: String::new(),
            sentinel_password: SecretString::default(),
            ca_file: PathBuf::new(),
            certificate: PathBuf::new(),
            private_key: PathBuf::new(),
        };
        target.set_parameters(parameters)?;
        Ok(Some(target))
    }
}

impl RedisTarget {
    fn set_parameters(&mut self, parameters: &str) -> Result<(), &'static str> {
        // We parse this URL only to decode the parameters, so its host does not matter.
        let url = Url::parse(&format!("redis://host?{parameters}")).map_err(|_| FORM)?;
        if url.fragment().is_some() {
            return Err(FORM);
        }
        let mut names = BTreeSet::new();
        for (name, value) in url.query_pairs() {
            let value = value.into_owned();
            if value.is_empty() || !names.insert(name.to_string()) {
                return Err("redis.url: has a parameter that is empty or occurs twice");
            }
            match &*name {
                "master" => self.master = value,
                "sentinel_user" => self.sentinel_user = value,
                "sentinel_password" => self.sentinel_password = value.into(),
                "sslrootcert" => self.ca_file = value.into(),
                "sslcert" => self.certificate = value.into(),
                "sslkey" => self.private_key = value.into(),
                _ => {
                    return Err(
                        "redis.url: has an unknown parameter; the known ones are sslrootcert, sslcert, sslkey, \
                                master, sentinel_user and sentinel_password",
                    );
                }
            }
        }
        Ok(())
    }

    fn uses_tls(&self) -> bool {
        self.urls.iter().any(|url| url.expose_secret().starts_with("rediss://"))
    }

    fn problem(&self) -> Option<&'static str> {
        let Self { kind, urls, master, sentinel_user, sentinel_password, ca_file, certificate, private_key } = self;
        let uses_sentinels = *kind == RedisKind::Sentinel;
        let (has_master, has_user) = (!master.is_empty(), !sentinel_user.is_empty());
        let has_password = !sentinel_password.expose_secret().is_empty();
        let [has_ca, has_certificate, has_private_key] =
            [ca_file, certificate, private_key].map(|file| !file.as_os_str().is_empty());
        let cases = [
            (
                *kind == RedisKind::Single && urls.len() > 1,
                "redis.url: has several hosts: begin it with redis+sentinel:// or redis+cluster://, or leave one host",
            ),
            (
                *kind == RedisKind::Cluster && urls.iter().any(|url| database_number(url) != Some(0)),
                "redis.url: a cluster has only one database: leave its number out",
            ),
            (
                uses_sentinels && !has_master,
                "redis.url: add the parameter master, the name of the master that the Sentinels monitor",
            ),
            (
                !uses_sentinels && (has_master || has_user || has_password),
                "redis.url: master, sentinel_user and sentinel_password require redis+sentinel://: begin the URL with it, \
                 or leave them out",
            ),
            (has_user && !has_password, "redis.url: add the parameter sentinel_password, or leave sentinel_user out"),
            (
                (has_ca || has_certificate || has_private_key) && !self.uses_tls(),
                "redis.url: sslrootcert, sslcert and sslkey require TLS: begin the URL with rediss, or leave them out",
            ),
            (has_private_key && !has_certificate, "redis.url: add the parameter sslcert, or leave sslkey out"),
            (has_certificate && !has_private_key, "redis.url: add the parameter sslkey, or leave sslcert out"),
        ];
        existing_problems(cases).next()
    }
}

fn is_acceptable_url(text: &str) -> bool {
    let Ok(url) = Url::parse(text) else { return false };
    let has_valid_parts = url.fragment().is_none() && matches!(url.scheme(), "redis" | "rediss");
    let Ok(info) = text.into_connection_info() else { return false };
    has_valid_parts && matches!(info.addr(), ConnectionAddr::Tcp(..) | ConnectionAddr::TcpTls { .. })
}

fn database_number(url: &SecretString) -> Option<i64> {
    url.expose_secret().into_connection_info().ok().map(|info| info.redis_settings().db())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> RedisSettings {
        RedisSettings { url: url.into() }
    }

    #[test]
    fn accepts_valid_urls() {
        for (url, kind, urls) in [
            ("redis://redis", RedisKind::Single, &["redis://redis"][..]),
            (
                "rediss://user:pass%20word@redis.example:6380/3?sslrootcert=ca.pem",
                RedisKind::Single,
                &["rediss://user:pass%20word@redis.example:6380/3"],
            ),
            ("rediss://redis?sslcert=own.pem&sslkey=own.key", RedisKind::Single, &["rediss://redis"]),
            ("redis://[::1]:6379", RedisKind::Single, &["redis://[::1]:6379"]),
            (
                "redis+sentinel://:p@a, b:1/2?master=limits",
                RedisKind::Sentinel,
                &["redis://:p@a/2", "redis://:p@b:1/2"],
            ),
            (
                "redis+sentinel://a?master=limits&sentinel_user=u&sentinel_password=p",
                RedisKind::Sentinel,
                &["redis://a"],
            ),
            ("rediss+cluster://a,b", RedisKind::Cluster, &["rediss://a", "rediss://b"]),
            ("redis+cluster://a", RedisKind::Cluster, &["redis://a"]),
        ] {
            assert_eq!(settings(url).problem(), None, "{url}");
            let target = settings(url).target().unwrap();
            let actual: Vec<_> = target.urls.iter().map(ExposeSecret::expose_secret).collect();
            assert_eq!((target.kind, actual.as_slice()), (kind, urls), "{url}");
        }
        assert!(settings("").problem().is_none() && settings(" ").target().is_none());
    }

    #[test]
    fn parameters_are_decoded() {
        let url = "rediss+sentinel://a?master=limits&sentinel_user=u%26v&sentinel_password=p%3Dq&sslrootcert=/a/ca.pem\
                   &sslcert=/a/c%20c.pem&sslkey=/a/k.pem";
        let RedisTarget {
            master,
            sentinel_user,
            sentinel_password,
            ca_file,
            certificate,
            private_key,
            kind: _,
            urls: _,
        } = settings(url).target().unwrap();
        assert_eq!((&*master, &*sentinel_user, sentinel_password.expose_secret()), ("limits", "u&v", "p=q"));
        assert_eq!(
            [ca_file, certificate, private_key].map(|path| path.display().to_string()),
            ["/a/ca.pem", "/a/c c.pem", "/a/k.pem"]
        );
    }

    #[test]
    fn rejects_invalid_urls_with_the_correction() {
        for (url, expected) in [
            ("localhost:6379", "redis.url: must be"),
            ("http://redis", "redis.url: must be"),
            ("unix:///redis.sock", "redis.url: must be"),
            ("rediss://redis#insecure", "redis.url: must be"),
            ("rediss://redis?sslcert=a&sslkey=b#insecure", "redis.url: must be"),
            ("redis://redis?protocol=resp3", "redis.url: has an unknown parameter"),
            ("rediss://redis?sslrootcert=", "redis.url: has a parameter that is empty"),
            ("rediss://redis?sslrootcert=a&sslrootcert=b", "or occurs twice"),
            ("redis://redis/x", "redis.url: must be"),
            ("redis+ring://a", "redis.url: must be"),
            ("redis+cluster://a,rediss://b", "redis.url: must be"),
            ("redis+cluster://a,", "redis.url: must be"),
            ("redis://a,b", "redis.url: has several hosts"),
            ("redis+cluster://a/1", "redis.url: a cluster"),
            ("redis+sentinel://a", "redis.url: add the parameter master"),
            ("redis://a?master=limits", "require redis+sentinel://"),
            ("redis+sentinel://a?master=m&sentinel_user=u", "redis.url: add the parameter sentinel_password"),
            ("redis://a?sslrootcert=ca.pem", "require TLS"),
            ("redis://a?sslcert=c&sslkey=k", "require TLS"),
            ("rediss://a?sslcert=c", "redis.url: add the parameter sslkey"),
            ("rediss://a?sslkey=k", "redis.url: add the parameter sslcert"),
        ] {
            let problem = settings(url).problem().unwrap_or_default();
            assert!(problem.contains(expected), "{url}: {problem}");
        }
    }
}
