//! `[database]`: the location of the database and the size of the connection pool.

use super::existing_problems;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use std::{
    borrow::Cow,
    net::IpAddr,
    path::{Path, PathBuf},
};
use url::Url;

/// The accepted parameters of a PostgreSQL URL. We refuse others, because the driver ignores a misspelt parameter, and logs its
/// value.
const URL_PARAMETERS: [&str; 17] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "options",
];

#[derive(Debug, Clone, Deserialize)]
pub struct DatabaseSettings {
    /// Empty, `sqlite://<path>` or `postgres://<user>:<password>@<host>/<database>`.
    url: SecretString,
    /// Maximum number of connections of this process to PostgreSQL.
    pub max_connections: u32,
}

#[derive(Debug, Clone)]
pub enum DatabaseLocation {
    /// The file of the embedded SQLite database.
    File(PathBuf),
    /// The URL of a PostgreSQL database, which may contain a password.
    Postgres(SecretString),
}

impl DatabaseSettings {
    /// The location of the database; `None` if the URL scheme is unsupported.
    pub(super) fn location(&self, data_dir: &Path) -> Option<DatabaseLocation> {
        let url = self.url.expose_secret();
        match url.split_once("://") {
            None if url.is_empty() => Some(DatabaseLocation::File(data_dir.join("countersign.db"))),
            Some(("sqlite", path)) => Some(DatabaseLocation::File(path.into())),
            Some(("postgres" | "postgresql", _)) => Some(DatabaseLocation::Postgres(self.url.clone())),
            _ => None,
        }
    }

    /// Describes the problems of the `[database]` settings. The returned text never contains the database URL.
    pub(super) fn problems(&self, allows_postgres: bool) -> Vec<String> {
        let location = self.location(Path::new(""));
        let cases = [
            (
                location.is_none(),
                "database.url: leave it empty, or set sqlite://<path> or postgres://<user>@<host>/<database>",
            ),
            (
                !allows_postgres && matches!(location, Some(DatabaseLocation::Postgres(_))),
                "secrets.master_key: PostgreSQL requires it, with the same value on all replicas: if a key in the data_dir of one machine were lost, no signing key in the database could be decrypted",
            ),
            (
                !(3..=1000).contains(&self.max_connections),
                "database.max_connections: must be from 3 to 1000. It applies to this process; the sum over all replicas must fit into max_connections of PostgreSQL",
            ),
        ];
        let problems = existing_problems(cases).map(str::to_owned);
        let url_problem = location.and_then(|location| location.problem());
        problems.chain(url_problem.map(|problem| format!("database.url: {problem}"))).collect()
    }
}

impl DatabaseLocation {
    /// Describes the problem of `database.url`; `None` if it is valid. The returned text never contains values of the URL.
    pub fn problem(&self) -> Option<String> {
        let Self::Postgres(url) = self else { return None };
        let Ok(url) = Url::parse(url.expose_secret()) else {
            return Some("not a valid URL; a password in it must be percent-encoded".to_owned());
        };
        let unknown =
            url.query_pairs().find(|(key, _)| !URL_PARAMETERS.contains(&&**key) && !key.starts_with("options["));
        unknown.map(|(key, _)| {
            format!("unknown parameter `{}`. The most common ones are sslmode and sslrootcert", key.escape_debug())
        })
    }

    /// Whether we know that the right database server answers: it runs on this machine, or its certificate is verified. If the URL
    /// names several hosts or modes, the driver uses the last one, except that a later host does not replace a Unix socket.
    pub fn is_authenticated(&self) -> bool {
        let Self::Postgres(url) = self else { return true };
        // An invalid URL is reported by `problem`.
        let Ok(url) = Url::parse(url.expose_secret()) else { return true };
        let values = |names: [&'static str; 2]| url.query_pairs().filter(move |(key, _)| names.contains(&&**key));
        let hosts = values(["host", "hostaddr"]).map(|(_, host)| host);
        let hosts: Vec<_> = url.host_str().map(Cow::Borrowed).into_iter().chain(hosts).collect();
        // `%2F…` is a Unix socket path.
        let is_socket = |host: &Cow<str>| ["/", "%2F", "%2f"].iter().any(|start| host.starts_with(start));
        let is_local = hosts.iter().any(is_socket) || hosts.last().is_none_or(|host| is_loopback(host));
        let mode = values(["sslmode", "ssl-mode"]).last();
        is_local || mode.is_some_and(|(_, mode)| matches!(&*mode, "verify-full" | "verify-ca"))
    }
}

/// Whether a host is `localhost` or a loopback address. In URLs, IPv6 addresses are in brackets.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::read;

    #[test]
    fn database_url_is_validated_and_its_password_is_never_printed() {
        let url = "postgres://countersign:hunter2@db/countersign";
        let config = read(&[("database.url", url)], true).unwrap();
        assert!(matches!(config.database_location(), Some(DatabaseLocation::Postgres(_))));
        assert!(!format!("{config:?}").contains("hunter2"));
        assert!(read(&[("database.url", "mysql://db")], true).unwrap_err().contains("database.url"));
        let production = [("public_url", "https://id.example"), ("tls.certificate", "c"), ("tls.private_key", "k")];
        let with_postgres = [&production[..], &[("database.url", url)]].concat();
        assert!(read(&with_postgres, false).unwrap_err().contains("secrets.master_key"));
        let master = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
        assert!(read(&[&with_postgres[..], &[("secrets.master_key", master)]].concat(), false).is_ok());
        for invalid in ["2", "1001"] {
            let error = read(&[("database.max_connections", invalid)], true).unwrap_err();
            assert!(error.contains("database.max_connections"), "{error}");
        }
        assert!(read(&production, false).is_ok());
    }

    #[test]
    fn unknown_url_parameter_is_rejected_by_name() {
        for (parameter, reported_name) in [("sslmod=verify-full", "sslmod"), ("sslpassword=S3cret", "sslpassword")] {
            let url = format!("postgres://u@db/d?{parameter}");
            let error = read(&[("database.url", &url)], true).unwrap_err();
            assert!(error.contains(&format!("`{reported_name}`")) && !error.contains("S3cret"), "{error}");
        }
        let valid_url = "postgres://u@db/d?sslmode=verify-full&sslrootcert=/a.pem&options[search_path]=a";
        assert!(read(&[("database.url", valid_url)], true).is_ok());
    }

    #[test]
    fn only_local_or_verified_servers_are_authenticated() {
        let is_authenticated = |url: &str| DatabaseLocation::Postgres(url.into()).is_authenticated();
        for authenticated in [
            "postgres://u@127.0.0.1/d",
            "postgres://u@[::1]:1/d",
            "postgres://u@localhost/d",
            "postgres://u@db/d?sslmode=verify-full",
            "postgres://u@db/d?host=localhost",
            "postgres://u@%2Fvar%2Frun/d?host=db",
            "postgres://u@db/d?host=/var/run&hostaddr=10.0.0.1",
            "postgres:///d",
        ] {
            assert!(is_authenticated(authenticated), "{authenticated}");
        }
        for unauthenticated in [
            "postgres://u:p@db/d",
            "postgres://u@10.0.0.1/d?sslmode=require",
            "postgres://u@localhost.example/d",
            "postgres://u@localhost/d?host=db.example",
            "postgres://u@localhost/d?hostaddr=10.0.0.1",
            "postgres://u@db/d?sslmode=verify-full&ssl-mode=prefer",
            "postgres://u@%2E/d",
        ] {
            assert!(!is_authenticated(unauthenticated), "{unauthenticated}");
        }
    }
}
