//! The settings of the sidecar, parsed into types that exclude invalid values.
//!
//! `main` reads the settings, and `app` uses them. Invariant: `config.default.toml` documents every key and contains its default
//! value. An error message about a setting names its key.

mod tls;
mod values;

use countersign_identity::ServiceId;
use countersign_process::{
    settings::{Layers, SettingsError},
    telemetry::LogSettings,
};
use serde::{Deserialize, Deserializer};
use std::{
    fmt::Display,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

pub use tls::{TlsFiles, TlsMode, TlsSettings};
pub use values::{ApiKey, HeaderPrefix, HostAndPort, ListenAddress, SyncUrl};

/// The default settings file, which documents every settings key.
const DEFAULT_SETTINGS: &str = include_str!("../config.default.toml");

/// The most addresses of the control plane in `sync.urls`.
const MAX_URLS: usize = 16;

/// The environment variable with the API keys.
const KEYS_VARIABLE: &str = "COUNTERSIGN_SYNC__KEYS";

/// The environment variable that names the file with the API keys.
const KEYS_FILE_VARIABLE: &str = "COUNTERSIGN_SYNC__KEYS_FILE";

/// All settings of the sidecar.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The addresses to listen on.
    pub listen: ListenSettings,
    /// TLS of the port to which Envoy connects.
    pub tls: TlsSettings,
    /// The connection to the control plane.
    pub sync: SyncSettings,
    /// The copies of views on disk.
    pub copy: CopySettings,
    /// Default values for routes.
    pub routes: RouteSettings,
    /// The rules for routes without context extensions.
    pub rules: RulesSettings,
    /// The names of identity headers.
    pub headers: HeaderSettings,
    /// The responses to denied requests.
    pub denials: DenialSettings,
    /// The cache of verified tokens.
    pub cache: CacheSettings,
    /// The format and filter of the log.
    pub log: LogSettings,
}

/// The settings of `[listen]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenSettings {
    /// The address to which Envoy connects.
    pub grpc: ListenAddress,
    /// The address on which the admin server listens.
    pub admin: HostAndPort,
}

/// The settings of `[sync]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyncSettings {
    /// The URLs of the sync ports of the replicas of the control plane.
    pub urls: Vec<SyncUrl>,
    /// A PEM file with the trusted CA certificates. If `None`, the CA certificates of the system are trusted.
    #[serde(deserialize_with = "deserialize_optional")]
    pub ca: Option<PathBuf>,
    /// The API keys, at least one for each protected service.
    pub keys: Vec<ApiKey>,
    /// The file from which the API keys were read; `None` if they come from another setting.
    #[serde(skip)]
    pub keys_file: Option<PathBuf>,
    /// The interval between pings, in seconds.
    pub ping_seconds: u32,
    /// Requests are denied when the last confirmation of the view is this old. If 0, only the limit of the control plane applies.
    pub max_staleness_seconds: u32,
}

impl SyncSettings {
    /// What is wrong with `sync.urls`.
    fn address_problems(&self) -> impl Iterator<Item = String> {
        let urls = &self.urls;
        let repeated = urls.iter().enumerate().find(|(index, url)| urls[..*index].contains(url)).map(|(_, url)| url);
        [
            urls.is_empty().then(|| "sync.urls: at least one address of the control plane is required".to_owned()),
            (urls.len() > MAX_URLS)
                .then(|| format!("sync.urls: {} addresses are too many: at most {MAX_URLS} are possible", urls.len())),
            repeated.map(|url| format!("sync.urls: {} is listed twice", url.uri())),
        ]
        .into_iter()
        .flatten()
    }

    /// `max_staleness_seconds`; `None` if it is 0.
    pub fn staleness_limit(&self) -> Option<Duration> {
        Some(Duration::from_secs(self.max_staleness_seconds.into())).filter(|limit| !limit.is_zero())
    }
}

/// The settings of `[copy]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopySettings {
    /// The directory with the copies of this sidecar. If `None`, there are no copies.
    #[serde(deserialize_with = "deserialize_optional")]
    pub directory: Option<PathBuf>,
}

/// The settings of `[routes]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSettings {
    /// The service for routes without the context extension `service_id`.
    #[serde(deserialize_with = "deserialize_optional")]
    pub default_service: Option<ServiceId>,
}

/// The settings of `[rules]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RulesSettings {
    /// The rules file. If `None`, there are no rules.
    #[serde(deserialize_with = "deserialize_optional")]
    pub file: Option<PathBuf>,
}

/// The settings of `[headers]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeaderSettings {
    /// The prefix of the names of identity headers.
    pub prefix: HeaderPrefix,
}

/// The settings of `[denials]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenialSettings {
    /// Whether the error body of a denial contains the requirement that the agent does not meet.
    pub explain: bool,
}

/// The settings of `[cache]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheSettings {
    /// The maximum number of cached tokens.
    pub tokens: usize,
}

/// Why the settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The key or the value of a setting is invalid.
    #[error(transparent)]
    Source(#[from] SettingsError),
    /// Required values are missing, values are out of range, or values contradict each other. Each text is on a line of its own.
    #[error("{}", .0.join("\n"))]
    Invalid(Vec<String>),
}

/// Reads the settings. Flags override the environment, which overrides the settings file. A flag is a dotted key and a value.
pub fn read(
    file: Option<PathBuf>,
    environment: Vec<(String, String)>,
    flags: Vec<(String, String)>,
) -> Result<Settings, ConfigError> {
    let keys_file = find_keys_file(&environment, &flags);
    let layers = Layers { defaults: DEFAULT_SETTINGS, file, environment, flags, ..Layers::default() };
    let mut settings: Settings = layers.read()?;
    settings.sync.keys_file = keys_file;
    settings.validate()?;
    Ok(settings)
}

impl Settings {
    fn validate(&self) -> Result<(), ConfigError> {
        let SyncSettings { keys, ping_seconds, max_staleness_seconds, .. } = &self.sync;
        let ListenSettings { grpc, admin } = &self.listen;
        let CopySettings { directory } = &self.copy;
        let is_relative = directory.as_ref().is_some_and(|path| path.is_relative());
        let has_same_address =
            matches!(grpc, ListenAddress::Tcp(grpc) if grpc == admin.as_str() && !grpc.ends_with(":0"));
        let cases = [
            (
                keys.is_empty(),
                "sync.keys: at least one service API key is required (in the environment: COUNTERSIGN_SYNC__KEYS, or \
                 COUNTERSIGN_SYNC__KEYS_FILE for a file with one key per line)"
                    .to_owned(),
            ),
            (has_same_address, format!("listen.grpc, listen.admin: both are {grpc}: set different ports")),
            (is_relative, "copy.directory: must be an absolute path, such as /var/lib/countersign-authz".to_owned()),
            (!(1..=60).contains(ping_seconds), format!("sync.ping_seconds: {ping_seconds} must be from 1 to 60")),
            (
                *max_staleness_seconds > 0 && max_staleness_seconds <= ping_seconds,
                format!(
                    "sync.max_staleness_seconds: {max_staleness_seconds} must be larger than sync.ping_seconds \
                     ({ping_seconds}), or 0"
                ),
            ),
        ];
        let problems = cases.into_iter().filter(|(is_wrong, _)| *is_wrong).map(|(_, text)| text);
        let problems = problems
            .chain(self.tls.problems(grpc))
            .chain(self.sync.address_problems())
            .chain(self.log.validation_error());
        let problems: Vec<_> = problems.collect();
        if problems.is_empty() { Ok(()) } else { Err(ConfigError::Invalid(problems)) }
    }
}

/// The file with the API keys; `None` if a flag or another variable sets the API keys.
fn find_keys_file(environment: &[(String, String)], flags: &[(String, String)]) -> Option<PathBuf> {
    let variable = |wanted: &str| environment.iter().find(|(name, _)| name == wanted);
    if variable(KEYS_VARIABLE).is_some() || flags.iter().any(|(key, _)| key == "sync.keys") {
        return None;
    }
    variable(KEYS_FILE_VARIABLE).map(|(_, path)| path.into())
}

/// Reads at most `bytes` + 1 bytes of a file, so that the caller can see whether it has more than `bytes`.
pub fn read_at_most(path: &Path, bytes: usize) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(bytes as u64 + 1).read_to_end(&mut content)?;
    Ok(content)
}

/// An empty text stands for no value.
fn deserialize_optional<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    let text = String::deserialize(deserializer)?;
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(serde::de::Error::custom) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const API_KEY: &str = "svc_sk_0123456789";

    fn read(flags: &[(&str, &str)]) -> Result<Settings, String> {
        let environment = vec![("COUNTERSIGN_SYNC__KEYS".to_owned(), API_KEY.to_owned())];
        let flags = flags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        super::read(None, environment, flags).map_err(|error| error.to_string())
    }

    #[test]
    fn only_an_api_key_is_required() {
        let settings = read(&[]).unwrap();
        assert_eq!(settings.listen.grpc, ListenAddress::Tcp("127.0.0.1:9191".into()));
        assert_eq!((settings.sync.ca, settings.routes.default_service), (None, None));
        assert!(!settings.denials.explain && settings.rules.file.is_none());
        let error = super::read(None, vec![], vec![]).unwrap_err().to_string();
        assert!(error.starts_with("sync.keys: "), "{error}");
    }

    #[test]
    fn flags_override_the_environment_and_unknown_keys_are_refused() {
        let socket = read(&[("listen.grpc", "unix:/run/a.sock")]).unwrap().listen.grpc;
        assert_eq!(socket, ListenAddress::Unix("/run/a.sock".into()));
        assert_eq!(read(&[("sync.keys", "svc_sk_a, svc_sk_b")]).unwrap().sync.keys.len(), 2);
        let error = read(&[("log.levle", "info")]).unwrap_err();
        assert_eq!(error, "unknown setting `log.levle` in a flag: did you mean `log.level`?");
    }

    #[test]
    fn file_of_the_keys_is_known_unless_another_layer_sets_the_keys() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), API_KEY).unwrap();
        let named = (KEYS_FILE_VARIABLE.to_owned(), file.path().display().to_string());
        let settings = super::read(None, vec![named.clone()], vec![]).unwrap();
        assert_eq!((settings.sync.keys.len(), settings.sync.keys_file.as_deref()), (1, Some(file.path())));
        let flag = ("sync.keys".to_owned(), "svc_sk_flag".to_owned());
        assert_eq!(super::read(None, vec![named], vec![flag]).unwrap().sync.keys_file, None);
        assert_eq!(read(&[]).unwrap().sync.keys_file, None);
    }

    #[test]
    fn port_of_other_hosts_needs_a_certificate_or_a_word_about_clear_text() {
        let pair = [("tls.certificate", "c"), ("tls.private_key", "k")];
        let read = |address: &str, tls: &[(&str, &str)]| read(&[&[("listen.grpc", address)][..], tls].concat());
        for address in ["127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "localhost:1", "unix:/a.sock"]
        {
            for tls in [&[][..], &pair, &[("tls.mode", "mesh")], &[("tls.mode", "insecure")]] {
                assert!(read(address, tls).is_ok(), "{address} {tls:?}");
            }
        }
        for address in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[fd00::1]:1", "sidecar:1", "localhost.example.com:1"] {
            let error = read(address, &[]).unwrap_err();
            assert!(error.starts_with("tls.certificate: other hosts can reach listen.grpc"), "{address}: {error}");
            for tls in [&pair[..], &[("tls.mode", "mesh")], &[("tls.mode", "insecure")]] {
                assert!(read(address, tls).is_ok(), "{address} {tls:?}");
            }
        }
        for (tls, expected) in [
            (&pair[..1], "tls.certificate, tls.private_key: only one of them is set"),
            (&pair[1..], "tls.certificate, tls.private_key: only one of them is set"),
            (&[("tls.client_ca", "a")], "tls.client_ca: clients can prove who they are with TLS only"),
            (&[pair[0], pair[1], ("tls.mode", "mesh")], "tls.mode: accepts clear text, but tls.certificate is set"),
            (&[("tls.mode", "off")], "`tls.mode` in a flag: `off` must be `serve`, `mesh` or `insecure`"),
        ] {
            let error = read("127.0.0.1:1", tls).unwrap_err();
            assert!(error.contains(expected), "{tls:?}: {error}");
        }
        let files = read("0.0.0.0:1", &[pair[0], pair[1], ("tls.client_ca", "a")]).unwrap().tls;
        assert_eq!(files.files().unwrap().client_ca, Some(Path::new("a")));
        assert!(read("127.0.0.1:1", &[]).unwrap().tls.files().is_none());
    }

    #[test]
    fn error_for_an_invalid_value_names_the_key() {
        for (key, value) in [
            ("sync.urls", ""),
            ("sync.urls", "http://control.example.com:8444"),
            ("sync.urls", "control:8444"),
            ("sync.urls", "https://user:password@control.example.com"),
            ("sync.urls", "https://a.example.com, http://b.example.com"),
            ("sync.urls", "https://a.example.com, https://a.example.com"),
            ("sync.ping_seconds", "0"),
            ("sync.max_staleness_seconds", "2"),
            ("copy.directory", "copies"),
            ("routes.default_service", "billing"),
            ("headers.prefix", "X-Agent-"),
            ("headers.prefix", ""),
            ("cache.tokens", "many"),
            ("denials.explain", "sometimes"),
            ("listen.grpc", ""),
        ] {
            let error = read(&[(key, value)]).unwrap_err();
            assert!(error.contains(key), "{key}={value}: {error}");
        }
        for url in ["http://localhost:8444", "http://[::1]:8444", "http://127.0.0.2:1", "https://control.example.com"] {
            assert!(read(&[("sync.urls", url)]).is_ok(), "{url}");
        }
    }

    #[test]
    fn addresses_are_in_the_order_of_the_setting_which_can_be_one_text() {
        let addresses =
            |settings: Settings| settings.sync.urls.iter().map(|url| url.uri().to_string()).collect::<Vec<_>>();
        let urls = |flags: &[(&str, &str)]| read(flags).map(addresses);
        assert_eq!(urls(&[]).unwrap(), ["https://127.0.0.1:8444/"]);
        assert_eq!(urls(&[("sync.urls", "https://a:1")]).unwrap(), ["https://a:1/"]);
        assert_eq!(urls(&[("sync.urls", "https://b:1, https://a:1")]).unwrap(), ["https://b:1/", "https://a:1/"]);
        let many = |count: usize| (0..count).map(|port| format!("https://a:{port}")).collect::<Vec<_>>().join(",");
        assert_eq!(urls(&[("sync.urls", &many(16))]).unwrap().len(), 16);
        let error = urls(&[("sync.urls", &many(17))]).unwrap_err();
        assert!(error.contains("sync.urls: 17 addresses are too many"), "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        for (value, expected) in [
            ("\"https://a:1\"", &["https://a:1/"][..]),
            ("[\"https://b:1\", \"https://a:1\"]", &["https://b:1/", "https://a:1/"]),
        ] {
            std::fs::write(file.path(), format!("[sync]\nurls = {value}\nkeys = \"{API_KEY}\"\n")).unwrap();
            let settings = super::read(Some(file.path().to_owned()), vec![], vec![]).unwrap();
            assert_eq!(addresses(settings), expected, "{value}");
        }
    }

    #[test]
    fn settings_files_of_the_examples_are_accepted() {
        for example in ["systemd", "compose"] {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../examples/{example}/sidecar.toml"));
            let keys = vec![("COUNTERSIGN_SYNC__KEYS".to_owned(), API_KEY.to_owned())];
            let settings = super::read(Some(file), keys, vec![]);
            assert!(settings.is_ok(), "{example}: {}", settings.unwrap_err());
        }
    }

    #[test]
    fn debug_output_and_errors_contain_no_api_keys() {
        let printed = format!("{:?}", read(&[]).unwrap());
        assert!(!printed.contains(API_KEY), "{printed}");
        let error = read(&[("sync.keys", "secret word")]).unwrap_err();
        assert!(error.contains("sync.keys") && !error.contains("secret word"), "{error}");
    }
}
