//! The settings: parsing, validation, and rejection of contradictory combinations.
//!
//! This module depends on no other module. `config.default.toml`, which is compiled in, documents every key and its default.

mod addresses;
mod database;
mod humans;
mod inspection;
mod limits;
mod redis;
mod secrets;
mod webhooks;

pub use addresses::{ListenSettings, ProxySettings, TlsMode};
pub use database::{DatabaseLocation, DatabaseSettings};
pub use humans::{HumanSettings, IssuerSettings, KeySource};
pub use inspection::ConfigInspection;
pub use limits::{ConnectionSettings, LimitSettings, QuotaSettings, RegistrationSettings};
pub use redis::{RedisKind, RedisSettings, RedisTarget};
pub use secrets::SecretSettings;
pub use webhooks::WebhookSettings;

use countersign_process::{
    settings::{Layers, SettingsError},
    telemetry::LogSettings,
};
use secrecy::ExposeSecret;
use serde::Deserialize;
use std::{path::PathBuf, time::Duration};

const DEFAULTS: &str = include_str!("../config.default.toml");

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The settings cannot be parsed.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Settings contradict each other, are out of range or are missing. Each message names a setting and says how to correct it.
    #[error("{}", .0.join("\n"))]
    Rejected(Vec<String>),
}

/// The settings of the control plane.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// The `iss` of every token. With --dev it may be empty: the `iss` is then `https://localhost` with the API port.
    pub public_url: String,
    /// The directory of the embedded database and of generated keys.
    pub data_dir: PathBuf,
    /// The addresses of the ports.
    pub listen: ListenSettings,
    /// TLS of the API and the sync port.
    pub tls: TlsSettings,
    /// The trusted proxies in front of the API.
    pub proxies: ProxySettings,
    /// Limits of network connections.
    pub connections: ConnectionSettings,
    /// Rate limits.
    pub limits: LimitSettings,
    /// How many objects persons, services and agents may have, such as the API keys of a service.
    pub quotas: QuotaSettings,
    /// Where the database is.
    pub database: DatabaseSettings,
    /// Shared rate limits and notifications between replicas.
    pub redis: RedisSettings,
    /// The master keys.
    pub secrets: SecretSettings,
    /// Lifetimes of tokens.
    pub tokens: TokenSettings,
    /// When signing keys are rotated.
    pub signing_keys: SigningKeySettings,
    /// Who may register agents.
    pub registration: RegistrationSettings,
    /// Who may create services.
    pub services: ServiceSettings,
    /// The issuers of human users' tokens.
    #[serde(default)]
    pub humans: HumanSettings,
    /// Rules for sidecars.
    pub sync: SyncSettings,
    /// How events are delivered.
    pub webhooks: WebhookSettings,
    /// What is logged, and how.
    pub log: LogSettings,
    /// Whether --dev was given.
    #[serde(skip)]
    pub dev: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub struct TlsSettings {
    /// What terminates the TLS of the API.
    pub mode: TlsMode,
    /// PEM file of the certificate chain.
    pub certificate: PathBuf,
    /// PEM file of the private key.
    pub private_key: PathBuf,
}

#[derive(Debug, Clone, Deserialize)]
pub struct TokenSettings {
    #[serde(rename = "access_seconds")]
    access: u32,
    #[serde(rename = "refresh_seconds")]
    refresh: u32,
}

impl TokenSettings {
    /// A message for each lifetime that is out of range.
    fn problems(&self) -> impl Iterator<Item = String> {
        let Self { access, refresh } = *self;
        let all = [("access", access), ("refresh", refresh)];
        let zero = all.into_iter().filter(|(_, seconds)| *seconds == 0);
        zero.map(|(name, _)| format!("tokens.{name}_seconds: 0 must be at least 1"))
    }
}

/// `[signing_keys]`
#[derive(Debug, Clone, Deserialize)]
pub struct SigningKeySettings {
    rotation_days: u32,
}

#[derive(Debug, Clone, Deserialize)]
pub struct ServiceSettings {
    pub created_by: ServiceCreators,
}

/// Who may create services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum ServiceCreators {
    /// Every human user.
    Person,
    /// Only administrators.
    Admin,
}

impl TryFrom<String> for ServiceCreators {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "person" => Ok(Self::Person),
            "admin" => Ok(Self::Admin),
            _ => Err(format!("services.created_by: `{text}` must be `person` or `admin`")),
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
pub struct SyncSettings {
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

    /// Rejects settings with which the server cannot start. The error names all problems and their possible corrections.
    pub fn check(&self) -> Result<(), ConfigError> {
        let problems = self.problems();
        if problems.is_empty() { Ok(()) } else { Err(ConfigError::Rejected(problems)) }
    }

    /// All reasons for which the server cannot start, each with the possible corrections.
    fn problems(&self) -> Vec<String> {
        let has_tls = !self.tls.certificate.as_os_str().is_empty() && !self.tls.private_key.as_os_str().is_empty();
        let ports = [self.listen.api, self.listen.sync, self.listen.admin];
        let cases = [
            (
                self.dev && ports.iter().any(|address| !address.ip().is_loopback()),
                "--dev listens on loopback only: set listen.api, listen.sync and listen.admin to 127.0.0.1, or do not set them",
            ),
            (
                !self.dev && !has_tls,
                "no TLS: set tls.certificate and tls.private_key to PEM files, or start with --dev for an evaluation",
            ),
            (
                self.tls.mode == TlsMode::Terminated && self.proxies.networks().is_empty(),
                "tls.mode = terminated: set proxies.trusted to the networks of the proxies that terminate TLS, or tls.mode to serve",
            ),
        ];
        let problems = existing_problems(cases).map(str::to_owned);
        let humans = self.humans.problems(&self.public_url, self.dev);
        let others = self.webhooks.problems().into_iter().chain(self.redis.problem());
        let allows_postgres = self.dev || !self.secrets.master_key.expose_secret().is_empty();
        let database = self.database.problems(allows_postgres);
        problems
            .chain(addresses::problem_of_public_url(&self.public_url, self.dev))
            .chain(self.listen.problems())
            .chain(self.limits.problems())
            .chain(self.tokens.problems())
            .chain(self.quotas.problems())
            .chain(self.registration.problem())
            .chain(self.connections.problems())
            .chain(database)
            .chain(self.secrets.problem())
            .chain(self.log.validation_error())
            .chain(humans)
            .chain(others.map(str::to_owned))
            .collect()
    }

    /// The location of the database; `None` if the URL scheme is unsupported.
    pub fn database_location(&self) -> Option<DatabaseLocation> {
        self.database.location(&self.data_dir)
    }

    /// Lifetime of an access token.
    pub fn access_token_lifetime(&self) -> Duration {
        Duration::from_secs(self.tokens.access.into())
    }

    /// Lifetime of a session.
    pub fn session_lifetime(&self) -> Duration {
        Duration::from_secs(self.tokens.refresh.into())
    }

    /// The age at which a signing key is replaced; `None`: never.
    pub fn rotation_age(&self) -> Option<Duration> {
        let days = self.signing_keys.rotation_days;
        (days > 0).then(|| Duration::from_hours(24 * u64::from(days)))
    }

    /// The time without contact after which a sidecar rejects all tokens. The default is the lifetime of an access token.
    pub fn max_staleness(&self) -> Duration {
        match self.sync.max_staleness_seconds {
            0 => self.access_token_lifetime(),
            seconds => Duration::from_secs(seconds.into()),
        }
    }
}

/// Returns the descriptions of the problems that exist. Each case is whether a problem exists, and its description.
fn existing_problems<const N: usize>(cases: [(bool, &'static str); N]) -> impl Iterator<Item = &'static str> {
    cases.into_iter().filter(|(exists, _)| *exists).map(|(_, text)| text)
}

fn layers(
    file: Option<PathBuf>,
    environment: Vec<(String, String)>,
    flags: Vec<(String, String)>,
    dev: bool,
) -> Layers {
    let presets = if dev { &DEVELOPMENT_PRESETS[..] } else { &[] };
    let presets = presets.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Layers { defaults: DEFAULTS, file, environment, flags, presets }
}

/// With --dev, rate limits and quotas of persons are the highest accepted value, which nobody reaches by hand.
pub const DEVELOPMENT_LIMIT: &str = "1000000";

/// Defaults with --dev; the file, the environment and flags override these defaults.
const DEVELOPMENT_PRESETS: [(&str, &str); 14] = [
    ("data_dir", "countersign-dev"),
    ("listen.api", "127.0.0.1:8443"),
    ("listen.sync", "127.0.0.1:8444"),
    ("listen.admin", "127.0.0.1:9090"),
    ("limits.auth_per_minute", DEVELOPMENT_LIMIT),
    ("limits.address_per_minute", DEVELOPMENT_LIMIT),
    ("limits.verification_per_minute", DEVELOPMENT_LIMIT),
    ("limits.management_per_minute", DEVELOPMENT_LIMIT),
    ("limits.feedback_per_minute", DEVELOPMENT_LIMIT),
    ("quotas.services_per_person", DEVELOPMENT_LIMIT),
    ("quotas.agents_per_person", DEVELOPMENT_LIMIT),
    ("registration.public_agents", DEVELOPMENT_LIMIT),
    ("log.format", "text"),
    ("log.level", "info"),
];

#[cfg(test)]
mod tests;
