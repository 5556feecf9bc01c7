//! `[database]`

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
};
use url::{Host, Url};

/// Parameters of a URL of PostgreSQL that are understood. Others are refused: what is misspelt would not hold, and the driver
/// would write it into the log with its value.
const PARAMETERS: [&str; 17] = [
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

/// `[database]`
#[derive(Debug, Clone, Deserialize)]
pub struct Database {
    /// Empty, `sqlite://<path>` or `postgres://<user>:<password>@<host>/<database>`.
    url: SecretString,
    /// To PostgreSQL, from this process.
    pub max_connections: u32,
}

/// Where the database is.
#[derive(Debug, Clone)]
pub enum DatabasePlace {
    /// The embedded one, in a file.
    File(PathBuf),
    /// PostgreSQL, at a URL that may hold a password.
    Postgres(SecretString),
}

impl Database {
    /// Where it is; `None` if the URL is of no engine that we know.
    pub(super) fn place(&self, data_dir: &Path) -> Option<DatabasePlace> {
        let url = self.url.expose_secret();
        match url.split_once("://") {
            None if url.is_empty() => Some(DatabasePlace::File(data_dir.join("countersign.db"))),
            Some(("sqlite", path)) => Some(DatabasePlace::File(path.into())),
            Some(("postgres" | "postgresql", _)) => Some(DatabasePlace::Postgres(self.url.clone())),
            _ => None,
        }
    }

    /// What is wrong with it; never the URL itself.
    pub(super) fn problems(&self, has_key: bool) -> Vec<String> {
        let place = self.place(Path::new(""));
        let cases = [
            (
                place.is_none(),
                "database.url: leave it empty, or set sqlite://<path> or postgres://<user>@<host>/<database>",
            ),
            (
                !has_key && matches!(place, Some(DatabasePlace::Postgres(_))),
                "secrets.master_key: with PostgreSQL it must be set, the same for all replicas: a key in data_dir would be lost with one machine, and with it every signing key in the database",
            ),
            (
                !(2..=1000).contains(&self.max_connections),
                "database.max_connections: must be from 2 to 1000, for this process; all replicas together must fit into max_connections of PostgreSQL",
            ),
        ];
        let found = cases.into_iter().filter(|(wrong, _)| *wrong).map(|(_, text)| text.to_owned());
        found.chain(place.and_then(|place| place.problem())).collect()
    }
}

impl DatabasePlace {
    /// What is wrong with the URL; never its values.
    pub fn problem(&self) -> Option<String> {
        let Self::Postgres(url) = self else { return None };
        let Ok(url) = Url::parse(url.expose_secret()) else {
            return Some("database.url: is no URL; a password in it must be percent-encoded".to_owned());
        };
        let unknown = url.query_pairs().find(|(key, _)| !PARAMETERS.contains(&&**key) && !key.starts_with("options["));
        unknown.map(|(key, _)| {
            format!(
                "database.url: the parameter `{}` is unknown: sslmode and sslrootcert are what most need",
                key.escape_debug()
            )
        })
    }

    /// Whether it is known who is at the other end: this machine, or a server whose certificate is looked at.
    pub fn is_authenticated(&self) -> bool {
        let Self::Postgres(url) = self else { return true };
        // What is no URL after all is a problem of its own.
        let Ok(url) = Url::parse(url.expose_secret()) else { return true };
        // Of a scheme that it does not know, the parser tells addresses of version 4 from names no more.
        let here = match url.host() {
            Some(Host::Domain("localhost")) | None => true,
            Some(Host::Domain(name)) => {
                name.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback()) || name.starts_with("%2")
            }
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
        };
        here || url.query_pairs().any(|(key, value)| {
            matches!(&*key, "sslmode" | "ssl-mode") && matches!(&*value, "verify-full" | "verify-ca")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::read;

    #[test]
    fn a_database_is_a_file_or_postgres_and_its_password_is_never_printed() {
        let url = "postgres://countersign:hunter2@db/countersign";
        let config = read(&[("database.url", url)], true).unwrap();
        assert!(matches!(config.database_place(), Some(DatabasePlace::Postgres(_))));
        assert!(!format!("{config:?}").contains("hunter2"));
        assert!(read(&[("database.url", "mysql://db")], true).unwrap_err().contains("database.url"));
        let real = [("public_url", "https://id.example"), ("tls.certificate", "c"), ("tls.private_key", "k")];
        let grown_up = [&real[..], &[("database.url", url)]].concat();
        assert!(read(&grown_up, false).unwrap_err().contains("secrets.master_key"));
        let master = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
        assert!(read(&[&grown_up[..], &[("secrets.master_key", master)]].concat(), false).is_ok());
        for wrong in ["1", "1001"] {
            let error = read(&[("database.max_connections", wrong)], true).unwrap_err();
            assert!(error.contains("database.max_connections"), "{error}");
        }
        assert!(read(&real, false).is_ok());
    }

    #[test]
    fn what_is_misspelt_in_a_url_is_refused_by_name() {
        for (parameter, shown) in [("sslmod=verify-full", "sslmod"), ("sslpassword=S3cret", "sslpassword")] {
            let url = format!("postgres://u@db/d?{parameter}");
            let error = read(&[("database.url", &url)], true).unwrap_err();
            assert!(error.contains(&format!("`{shown}`")) && !error.contains("S3cret"), "{error}");
        }
        let good = "postgres://u@db/d?sslmode=verify-full&sslrootcert=/a.pem&options[search_path]=a";
        assert!(read(&[("database.url", good)], true).is_ok());
    }

    #[test]
    fn it_is_known_who_is_at_the_other_end() {
        let is_authenticated = |url: &str| DatabasePlace::Postgres(url.into()).is_authenticated();
        for good in [
            "postgres://u@127.0.0.1/d",
            "postgres://u@[::1]:1/d",
            "postgres://u@localhost/d",
            "postgres://u@db/d?sslmode=verify-full",
        ] {
            assert!(is_authenticated(good), "{good}");
        }
        for doubtful in
            ["postgres://u:p@db/d", "postgres://u@10.0.0.1/d?sslmode=require", "postgres://u@localhost.example/d"]
        {
            assert!(!is_authenticated(doubtful), "{doubtful}");
        }
    }
}
