//! Profiles: the settings and the tokens of an agent and of a human user, stored between processes.
//!
//! A profile consists of the files `NAME.toml`, `NAME.tokens.json`, `NAME.human.json` and `NAME.key` (mode 0600) in a directory of the
//! user (mode 0700). `human` reads and writes `NAME.human.json`. Invariants: profiles contain no API keys of services. The
//! tokens of an agent are sent only to the control plane that issued them, and a human user's token only to the one of the login.

mod human;

pub use human::HumanLogin;

use crate::{Scope, SessionTokens, TokenRequest, oidc::LoginSettings};
use countersign_identity::Timestamp;
use etcetera::BaseStrategy;
use reqwest::Url;
use rustix::fs::Access;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// The bits of a file's mode that let the group and others write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Why a profile cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The user has no home directory.
    #[error("the user has no home directory: set XDG_CONFIG_HOME")]
    NoHomeDirectory,
    /// The name of the profile is not a valid file name.
    #[error("`{0}` is not a valid profile name: use letters, digits, `-`, `_` and `.`, and do not begin with `.`")]
    Name(String),
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// Other users can change the file of a profile that contains the command of a signer.
    #[error("other users can change {path} (mode {mode:04o}), which contains the command of a signer: chmod 600 it")]
    Insecure {
        /// The path of the file.
        path: PathBuf,
        /// The permissions of the file.
        mode: u32,
    },
    /// A file cannot be parsed.
    #[error("{path}: {message}")]
    Malformed {
        /// The path of the file.
        path: PathBuf,
        /// The error of the parser.
        message: String,
    },
}

/// The settings of a profile. Flags and environment variables override them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// The URL of the control plane.
    pub url: Option<String>,
    /// A PEM file with the trusted CA certificates. If `None`, the CA certificates of the system are trusted.
    pub ca: Option<PathBuf>,
    /// The id of the agent.
    pub agent: Option<String>,
    /// The path of the file with the agent's private key.
    pub key: Option<PathBuf>,
    /// The command line of an external signer, which replaces `key`.
    pub signer: Option<String>,
    /// The hash of the agent's public key.
    pub public_key_hash: Option<String>,
    /// The id of the service that is the audience of the agent's tokens.
    pub audience: Option<String>,
    /// The id of the service that management commands apply to.
    pub service: Option<String>,
    /// What a login over the OAuth token endpoint requests: the scope and the resource (a URI) of the agent's tokens. `None` if the
    /// agent logs in with a challenge. With both kinds of login, `audience` limits the tokens to a service.
    pub oauth: Option<TokenRequest>,
    /// How the human user logged in last. The next login uses the same values by default.
    pub login: Option<LoginSettings>,
}

/// The directory with the profiles of a user.
#[derive(Debug, Clone)]
pub struct Profiles {
    directory: PathBuf,
}

/// What stored tokens are for. Tokens are used only for the same control plane and agent, and the same audience and scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredTokenKey {
    /// The URL of the control plane.
    pub url: String,
    /// The id of the agent.
    pub agent: String,
    /// The requested audience.
    pub audience: Option<String>,
    /// The request to the token endpoint; `None` after a login with a challenge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oauth: Option<TokenRequest>,
}

impl Profile {
    /// The key of tokens that an agent gets with the settings of this profile.
    pub fn token_key(&self, url: String, agent: String) -> StoredTokenKey {
        StoredTokenKey { url, agent, audience: self.audience.clone(), oauth: self.oauth.clone() }
    }
}

impl StoredTokenKey {
    /// Whether tokens with one key may be used for the other. Treats URLs that differ only in the case of the host, a default port
    /// or a trailing slash as equal.
    pub fn matches(&self, other: &Self) -> bool {
        let Self { url, agent, audience, oauth } = other;
        let is_same_request = self.audience == *audience && self.oauth == *oauth;
        self.agent == *agent && is_same_request && is_same_url(&self.url, url)
    }
}

#[derive(Deserialize)]
struct StoredTokens {
    #[serde(rename = "subject")]
    key: StoredTokenKey,
    access_token: SecretString,
    refresh_token: SecretString,
    refresh_at: i64,
    expires_at: i64,
    #[serde(default)]
    scope: Option<Scope>,
}

impl Profiles {
    /// The profiles of the current user, in the directory `$XDG_CONFIG_HOME/countersign` or `~/.config/countersign`.
    pub fn of_user() -> Result<Self, ProfileError> {
        let base = etcetera::choose_base_strategy().map_err(|_| ProfileError::NoHomeDirectory)?;
        Ok(Self { directory: base.config_dir().join("countersign") })
    }

    /// The path of a file of a profile. `extension` is `toml`, `key`, `tokens.json`, `lock`, `human.json` or `human.lock`.
    pub fn path(&self, name: &str, extension: &str) -> Result<PathBuf, ProfileError> {
        let is_allowed = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
        let is_valid = (1..=64).contains(&name.len()) && name.chars().all(is_allowed) && !name.starts_with('.');
        if is_valid {
            Ok(self.directory.join(format!("{name}.{extension}")))
        } else {
            Err(ProfileError::Name(name.to_owned()))
        }
    }

    /// Reads a profile. If it does not exist, returns an empty one. Refuses a profile with a signer that other users can change: they
    /// could run any command as this user.
    pub fn load(&self, name: &str) -> Result<Profile, ProfileError> {
        let path = self.path(name, "toml")?;
        let Some(text) = read_if_exists(&path)? else { return Ok(Profile::default()) };
        let profile: Profile = toml::from_str(&text)
            .map_err(|error| ProfileError::Malformed { path: path.clone(), message: error.to_string() })?;
        let mode = fs::metadata(&path).map_err(file_error(&path))?.permissions().mode() & 0o777;
        if profile.signer.is_some() && mode & WRITABLE_BY_OTHERS != 0 {
            return Err(ProfileError::Insecure { path, mode });
        }
        Ok(profile)
    }

    /// Saves a profile.
    pub fn save(&self, name: &str, profile: &Profile) -> Result<(), ProfileError> {
        let path = self.path(name, "toml")?;
        let text = toml::to_string(profile)
            .map_err(|error| ProfileError::Malformed { path: path.clone(), message: error.to_string() })?;
        self.write(&path, &text)
    }

    /// Reads the stored tokens if they match this key. A malformed file counts as no tokens, because the next login replaces it.
    pub fn tokens(&self, name: &str, key: &StoredTokenKey) -> Result<Option<SessionTokens>, ProfileError> {
        let Some(text) = read_if_exists(&self.path(name, "tokens.json")?)?.map(SecretString::from) else {
            return Ok(None);
        };
        let stored: Option<StoredTokens> = serde_json::from_str(text.expose_secret()).ok();
        Ok(stored.filter(|stored| stored.key.matches(key)).map(|stored| SessionTokens {
            access_token: stored.access_token,
            refresh_token: stored.refresh_token,
            refresh_at: Timestamp::from_micros(stored.refresh_at),
            expires_at: Timestamp::from_micros(stored.expires_at),
            scope: stored.scope,
        }))
    }

    /// Stores tokens, with the key that [`Self::tokens`] compares.
    pub fn save_tokens(&self, name: &str, key: &StoredTokenKey, tokens: &SessionTokens) -> Result<(), ProfileError> {
        let stored = json!({
            "subject": key,
            "access_token": tokens.access_token.expose_secret(),
            "refresh_token": tokens.refresh_token.expose_secret(),
            "refresh_at": tokens.refresh_at.micros(),
            "expires_at": tokens.expires_at.micros(),
            "scope": tokens.scope,
        });
        self.write(&self.path(name, "tokens.json")?, &stored.to_string())
    }

    /// Deletes the stored tokens.
    pub fn delete_tokens(&self, name: &str) -> Result<(), ProfileError> {
        remove_if_exists(&self.path(name, "tokens.json")?).map(drop)
    }

    /// Locks the tokens of a profile until the returned file is dropped. Without the lock, two processes could use the same refresh
    /// token, and the control plane would end the session.
    pub fn lock(&self, name: &str) -> Result<File, ProfileError> {
        self.lock_file(&self.path(name, "lock")?)
    }

    fn lock_file(&self, path: &Path) -> Result<File, ProfileError> {
        self.create_directory()?;
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        file.and_then(|file| file.lock().map(|()| file)).map_err(file_error(path))
    }

    /// Creates the directory with mode 0700 if it does not exist.
    fn create_directory(&self) -> Result<(), ProfileError> {
        let Some(parent) = self.directory.parent() else { return Ok(()) };
        fs::create_dir_all(parent).map_err(file_error(parent))?;
        match DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(file_error(&self.directory)(error)),
            _ => Ok(()),
        }
    }

    /// Writes and deletes a file, to check that a profile can be saved. Callers use it before actions whose result must be saved.
    pub fn check_writable(&self, name: &str) -> Result<(), ProfileError> {
        let path = self.path(name, "toml")?;
        let temporary_path = self.write_temporary(&path, "write test\n")?;
        fs::remove_file(&temporary_path).map_err(file_error(&temporary_path))
    }

    /// Whether the file permissions let this user save a profile. Writes nothing.
    pub fn is_writable(&self, name: &str) -> Result<bool, ProfileError> {
        let path = self.path(name, "toml")?;
        // Saving replaces the file by a rename, so only the permissions of its directory matter. If the directory does not exist,
        // saving creates it in the nearest existing parent.
        let existing_directory = path.ancestors().skip(1).find(|directory| directory.exists());
        Ok(existing_directory
            .is_some_and(|directory| rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok()))
    }

    /// The names of the existing profiles, sorted. Skips files that cannot be profiles; an unreadable directory counts as empty.
    pub fn names(&self) -> Vec<String> {
        let files = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let names = files.filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".toml")?.to_owned()));
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// Writes a file atomically, with mode 0600 from the start.
    fn write(&self, path: &Path, text: &str) -> Result<(), ProfileError> {
        let temporary_path = self.write_temporary(path, text)?;
        fs::rename(&temporary_path, path).map_err(file_error(path))
    }

    /// Writes a temporary file next to `path`, with the process id in its name.
    fn write_temporary(&self, path: &Path, text: &str) -> Result<PathBuf, ProfileError> {
        self.create_directory()?;
        let mut temporary_path = path.as_os_str().to_owned();
        temporary_path.push(format!(".{}", std::process::id()));
        let temporary_path = PathBuf::from(temporary_path);
        // A file with this name is left over from a killed process, or someone else put it there.
        let _missing = fs::remove_file(&temporary_path);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary_path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| {
            let _ignored = fs::remove_file(&temporary_path);
            file_error(path)(error)
        })?;
        Ok(temporary_path)
    }
}

/// Compares two URLs. Ignores the case of the host, a default port and a trailing slash.
pub fn is_same_url(first: &str, second: &str) -> bool {
    let parse = |url: &str| Url::parse(url.trim_end_matches('/')).ok();
    first == second || parse(first).is_some_and(|parsed| parse(second) == Some(parsed))
}

/// Deletes a file. Returns whether it existed.
fn remove_if_exists(path: &Path) -> Result<bool, ProfileError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(file_error(path)(error)),
    }
}

fn read_if_exists(path: &Path) -> Result<Option<String>, ProfileError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file_error(path)(error)),
    }
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> ProfileError {
    let path = path.to_owned();
    move |error| ProfileError::File { path, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_same_url_ignores_case_default_port_and_trailing_slash() {
        for (other, is_same) in [
            ("https://host.example", true),
            ("https://HOST.example/", true),
            ("https://host.example:443/", true),
            ("https://host.example:8443", false),
            ("http://host.example", false),
            ("https://host.example/path", false),
            ("https://other.example", false),
        ] {
            assert_eq!(is_same_url("https://host.example", other), is_same, "{other}");
        }
        assert!(is_same_url("https://host/path/", "https://host:443/path"));
        assert!(!is_same_url("invalid", "also invalid"));
    }

    #[test]
    fn load_refuses_a_signer_in_a_file_that_others_can_change() {
        let directory = std::env::temp_dir().join(format!("countersign-profile-{}", std::process::id()));
        let profiles = Profiles { directory: directory.clone() };
        let profile = Profile { signer: Some("sign".to_owned()), ..Profile::default() };
        profiles.save("p", &profile).unwrap();
        assert_eq!(profiles.load("p").unwrap(), profile);
        let path = profiles.path("p", "toml").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
        assert!(matches!(profiles.load("p"), Err(ProfileError::Insecure { mode: 0o620, .. })));
        profiles.save("p", &Profile { signer: None, ..profile }).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
        profiles.load("p").unwrap();
        fs::remove_dir_all(directory).unwrap();
    }
}
