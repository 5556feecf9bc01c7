//! Settings: what the operator decided, and which combinations are refused.
//!
//! A leaf. Every key is described in `config.default.toml`, which is compiled in.

mod database;
mod humans;
mod inspection;
mod limits;
mod networks;
mod proxies;
mod redis;
mod secrets;
mod webhooks;

pub use database::{Database, DatabasePlace};
pub use humans::{Algorithm, Humans, Issuer};
pub use inspection::Inspection;
pub use limits::LimitSettings;
pub use proxies::{ProxySettings, TlsMode};
pub use redis::{RedisKind, RedisSettings, SentinelSettings};
pub use secrets::Secrets;
pub use webhooks::WebhookSettings;

use countersign_process::{
    settings::{Layers, SettingsError},
    telemetry::LogSettings,
};
use secrecy::ExposeSecret;
use serde::Deserialize;
use std::{net::SocketAddr, path::PathBuf, time::Duration};

const DEFAULTS: &str = include_str!("../config.default.toml");

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// They do not read.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// They contradict each other or are incomplete; the text names the key and the choices.
    #[error("{0}")]
    Refused(String),
}

/// What the operator decided.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// The `iss` of every token; empty with --dev until the port is known.
    pub public_url: String,
    /// Where the embedded database and keys are kept.
    pub data_dir: PathBuf,
    /// Addresses.
    pub listen: Listen,
    /// Certificate and key.
    pub tls: Tls,
    /// What stands in front.
    pub proxies: ProxySettings,
    /// How many requests pass.
    pub limits: LimitSettings,
    /// The database.
    pub database: Database,
    /// Where limits are counted together, and replicas wake each other.
    pub redis: RedisSettings,
    /// Secrets.
    pub secrets: Secrets,
    /// Lives.
    pub tokens: Tokens,
    /// When signing keys change.
    pub signing_keys: SigningKeys,
    /// Who may register agents.
    pub registration: Registration,
    /// Whose tokens speak for people.
    pub humans: Humans,
    /// What sidecars are told.
    pub sync: Sync,
    /// How events are delivered.
    pub webhooks: WebhookSettings,
    /// The log.
    pub log: LogSettings,
    /// Whether --dev was given.
    #[serde(skip)]
    pub dev: bool,
}

/// `[listen]`
#[derive(Debug, Clone, Deserialize)]
pub struct Listen {
    /// HTTPS.
    pub api: SocketAddr,
    /// gRPC over TLS.
    pub sync: SocketAddr,
    /// Plain HTTP for the platform.
    pub admin: SocketAddr,
}

/// `[tls]`
#[derive(Debug, Clone, Deserialize)]
pub struct Tls {
    /// Who terminates the TLS of the API.
    pub mode: TlsMode,
    /// PEM file of the certificate chain.
    pub certificate: PathBuf,
    /// PEM file of its private key.
    pub private_key: PathBuf,
}

/// `[tokens]`
#[derive(Debug, Clone, Deserialize)]
pub struct Tokens {
    #[serde(rename = "access_seconds")]
    access: u32,
    #[serde(rename = "refresh_seconds")]
    refresh: u32,
    #[serde(rename = "challenge_seconds")]
    challenge: u32,
}

/// `[signing_keys]`
#[derive(Debug, Clone, Deserialize)]
pub struct SigningKeys {
    rotation_days: u16,
}

/// `[registration]`
#[derive(Debug, Clone, Deserialize)]
pub struct Registration {
    /// Whether agents may register without a human's token.
    pub public: bool,
}

/// `[sync]`
#[derive(Debug, Clone, Deserialize)]
pub struct Sync {
    max_staleness_seconds: u32,
}

impl Config {
    /// Reads the settings.
    pub fn read(
        file: Option<PathBuf>,
        environment: Vec<(String, String)>,
        flags: Vec<(String, String)>,
        dev: bool,
    ) -> Result<Self, ConfigError> {
        Ok(Self { dev, ..layers(file, environment, flags, dev).read()? })
    }

    /// Refuses what cannot be served, and names the choices.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.problems().into_iter().next().map_or(Ok(()), |problem| Err(ConfigError::Refused(problem)))
    }

    /// Everything that cannot be served, with the choices.
    fn problems(&self) -> Vec<String> {
        let has_tls = !self.tls.certificate.as_os_str().is_empty() && !self.tls.private_key.as_os_str().is_empty();
        let ports = [self.listen.api, self.listen.sync, self.listen.admin];
        let lives = [self.tokens.access, self.tokens.refresh, self.tokens.challenge];
        let cases = [
            (
                self.dev && ports.iter().any(|at| !at.ip().is_loopback()),
                "--dev listens on loopback only: set listen.api, listen.sync and listen.admin to 127.0.0.1 or leave them",
            ),
            (
                !self.dev && !has_tls,
                "no TLS: set tls.certificate and tls.private_key to PEM files, or start with --dev to try things out",
            ),
            (
                self.tls.mode == TlsMode::Terminated && self.proxies.networks().is_empty(),
                "tls.mode = terminated: set proxies.trusted to the networks of the proxies that terminate TLS, or tls.mode to serve",
            ),
            (
                !self.dev && !self.public_url.starts_with("https://"),
                "no public_url: set it to the https:// URL under which agents reach the API; it is the issuer of every token",
            ),
            (lives.contains(&0), "tokens: every life must be at least one second"),
            (
                !self.limits.are_sensible(),
                "limits: each must be from 1 to 1000000 calls per minute; 0 would let nobody in",
            ),
            (
                self.tokens.challenge > self.tokens.refresh,
                "tokens.challenge_seconds: must not exceed tokens.refresh_seconds, whose logins remember which challenges were used",
            ),
        ];
        let found = cases.into_iter().filter(|(wrong, _)| *wrong).map(|(_, text)| text.to_owned());
        let humans = self.humans.problems(&self.public_url, self.dev);
        let others = [self.webhooks.problem(), self.redis.problem()].into_iter().flatten().map(str::to_owned);
        let has_key = !self.secrets.master_key.expose_secret().is_empty();
        let database = self.database.problems(self.dev || has_key);
        found
            .chain(database)
            .chain(self.secrets.problem())
            .chain(self.log.validation_error())
            .chain(humans)
            .chain(others)
            .collect()
    }

    /// Where the database is; `None` if the URL is of no engine that we know.
    pub fn database_place(&self) -> Option<DatabasePlace> {
        self.database.place(&self.data_dir)
    }

    /// Life of an access token.
    pub fn access_token_lifetime(&self) -> Duration {
        Duration::from_secs(self.tokens.access.into())
    }

    /// Life of a login.
    pub fn session_lifetime(&self) -> Duration {
        Duration::from_secs(self.tokens.refresh.into())
    }

    /// Life of a challenge.
    pub fn challenge_lifetime(&self) -> Duration {
        Duration::from_secs(self.tokens.challenge.into())
    }

    /// The age at which a signing key is replaced; `None` for never.
    pub fn rotation(&self) -> Option<Duration> {
        let days = self.signing_keys.rotation_days;
        (days > 0).then(|| Duration::from_hours(24 * u64::from(days)))
    }

    /// After this without a confirmed read a sidecar must refuse.
    pub fn max_staleness(&self) -> Duration {
        match self.sync.max_staleness_seconds {
            0 => self.access_token_lifetime(),
            seconds => Duration::from_secs(seconds.into()),
        }
    }
}

fn layers(
    file: Option<PathBuf>,
    environment: Vec<(String, String)>,
    flags: Vec<(String, String)>,
    dev: bool,
) -> Layers {
    let presets = if dev { &DEVELOPMENT[..] } else { &[] };
    let presets = presets.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Layers { defaults: DEFAULTS, file, environment, flags, presets }
}

/// What --dev puts over the defaults; file, environment and flags still win.
const DEVELOPMENT: [(&str, &str); 7] = [
    ("data_dir", "countersign-dev"),
    ("listen.api", "127.0.0.1:8443"),
    ("listen.sync", "127.0.0.1:8444"),
    ("listen.admin", "127.0.0.1:9090"),
    ("registration.public", "true"),
    ("log.format", "text"),
    ("log.level", "info"),
];

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn read(flags: &[(&str, &str)], dev: bool) -> Result<Config, String> {
        let flags = flags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let config = Config::read(None, Vec::new(), flags, dev).map_err(|error| error.to_string())?;
        config.check().map(|()| config).map_err(|error| error.to_string())
    }

    #[test]
    fn without_tls_it_names_the_choices() {
        let error = read(&[("public_url", "https://id.example")], false).unwrap_err();
        assert!(error.contains("tls.certificate") && error.contains("--dev"), "{error}");
    }

    #[test]
    fn dev_stays_on_loopback_and_flags_still_win() {
        let config = read(&[("listen.api", "127.0.0.1:1234")], true).unwrap();
        assert_eq!(config.listen.api.port(), 1234);
        assert!(config.registration.public);
        assert!(read(&[("listen.api", "0.0.0.0:1234")], true).unwrap_err().contains("loopback"));
    }

    #[test]
    fn a_challenge_must_not_outlive_the_login_that_remembers_it() {
        let error = read(&[("tokens.challenge_seconds", "11"), ("tokens.refresh_seconds", "10")], true).unwrap_err();
        assert!(error.contains("tokens.challenge_seconds"), "{error}");
    }

    #[test]
    fn proxies_are_networks_or_addresses_and_never_everybody() {
        let config = read(&[("proxies.trusted", "10.0.0.0/8, 192.0.2.1,fd00::/8")], true).unwrap();
        let networks = ["10.0.0.0/8", "192.0.2.1/32", "fd00::/8"].map(|network| network.parse().unwrap());
        assert_eq!(config.proxies.networks(), networks);
        for (wrong, said) in [
            ("proxy.example", "neither"),
            ("10.0.0.0/33", "neither"),
            ("0.0.0.0/0", "everybody"),
            ("::/0", "everybody"),
        ] {
            let error = read(&[("proxies.trusted", wrong)], true).unwrap_err();
            assert!(error.contains("proxies.trusted") && error.contains(wrong) && error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_limit_lets_somebody_in_and_has_an_end() {
        for (key, value) in [("limits.auth_per_minute", "0"), ("limits.verification_per_minute", "1000001")] {
            let error = read(&[(key, value)], true).unwrap_err();
            assert!(error.contains("limits") && error.contains("1000000"), "{error}");
        }
        assert!(
            read(&[("limits.feedback_per_minute", "-1")], true).unwrap_err().contains("limits.feedback_per_minute")
        );
        assert!(read(&[("limits.auth_per_minute", "1"), ("limits.management_per_minute", "1000000")], true).is_ok());
    }

    #[test]
    fn terminated_tls_needs_the_proxies_that_terminate_it() {
        let error = read(&[("tls.mode", "terminated")], true).unwrap_err();
        assert!(error.contains("proxies.trusted") && error.contains("tls.mode"), "{error}");
        assert!(read(&[("tls.mode", "terminated"), ("proxies.trusted", "127.0.0.1")], true).is_ok());
        assert!(read(&[("tls.mode", "off")], true).unwrap_err().contains("terminated"));
    }

    #[test]
    fn signing_keys_are_replaced_after_months_or_never() {
        let rotation = |days: &str| read(&[("signing_keys.rotation_days", days)], true).map(|config| config.rotation());
        assert_eq!(read(&[], true).unwrap().rotation(), Some(Duration::from_hours(24 * 90)));
        assert_eq!((rotation("0"), rotation("1")), (Ok(None), Ok(Some(Duration::from_hours(24)))));
        assert!(rotation("-1").unwrap_err().contains("signing_keys.rotation_days"));
    }

    #[test]
    fn staleness_defaults_to_the_life_of_a_token() {
        let config = read(&[("tokens.access_seconds", "7")], true).unwrap();
        assert_eq!(config.max_staleness(), Duration::from_secs(7));
    }
}
