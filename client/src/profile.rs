//! Profiles: the state that is stored between processes, with the tokens of the profile's agent.
//!
//! Each profile has the files `NAME.toml`, `NAME.tokens.json` and `NAME.key` (mode 0600) in a folder of the user (mode
//! 0700). Invariant: API keys of services and tokens of human users are never stored.

use crate::SessionTokens;
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
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Why a profile cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The user has no home directory.
    #[error("there is no home directory: set XDG_CONFIG_HOME")]
    NoHomeDirectory,
    /// The name cannot be the name of a file.
    #[error(
        "`{0}` is not a valid name of a profile: use letters, digits, `-`, `_` and, not as the first character, `.`"
    )]
    Name(String),
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// A file cannot be parsed.
    #[error("{path}: {message}")]
    Malformed {
        /// The file.
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
    /// A PEM file with the authorities that replace those of the system.
    pub ca: Option<PathBuf>,
    /// The id of the agent.
    pub agent: Option<String>,
    /// The file with its private key.
    pub key: Option<PathBuf>,
    /// The command of an external signer, instead of `key`.
    pub signer: Option<String>,
    /// The hash of its public key.
    pub public_key_hash: Option<String>,
    /// The service that is the audience of the agent's tokens.
    pub audience: Option<String>,
    /// The service that management commands use.
    pub service: Option<String>,
}

/// The profiles of the user.
#[derive(Debug, Clone)]
pub struct Profiles {
    folder: PathBuf,
}

/// The subject of stored tokens. Tokens of another subject are not used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenSubject {
    /// The URL of the control plane.
    pub url: String,
    /// The id of the agent.
    pub agent: String,
    /// The requested audience.
    pub audience: Option<String>,
}

impl TokenSubject {
    /// Whether both are the same, also if the URL of the control plane is spelled differently.
    pub fn matches(&self, other: &Self) -> bool {
        let Self { url, agent, audience } = other;
        self.agent == *agent && self.audience == *audience && same_endpoint(&self.url, url)
    }
}

#[derive(Deserialize)]
struct StoredTokens {
    #[serde(rename = "holder")]
    subject: TokenSubject,
    access_token: SecretString,
    refresh_token: SecretString,
    refresh_at: i64,
    expires_at: i64,
}

impl Profiles {
    /// The profiles of the current user, in `$XDG_CONFIG_HOME/countersign` or `~/.config/countersign`.
    pub fn of_user() -> Result<Self, ProfileError> {
        let base = etcetera::choose_base_strategy().map_err(|_| ProfileError::NoHomeDirectory)?;
        Ok(Self { folder: base.config_dir().join("countersign") })
    }

    /// The path of a file of a profile. `extension` is `toml`, `key`, `tokens.json` or `lock`.
    pub fn path(&self, name: &str, extension: &str) -> Result<PathBuf, ProfileError> {
        let allowed = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
        let valid = (1..=64).contains(&name.len()) && name.chars().all(allowed) && !name.starts_with('.');
        if valid {
            Ok(self.folder.join(format!("{name}.{extension}")))
        } else {
            Err(ProfileError::Name(name.to_owned()))
        }
    }

    /// Reads a profile. A profile that does not exist is empty.
    pub fn load(&self, name: &str) -> Result<Profile, ProfileError> {
        let path = self.path(name, "toml")?;
        let Some(text) = read(&path)? else { return Ok(Profile::default()) };
        toml::from_str(&text).map_err(|error| ProfileError::Malformed { path, message: error.to_string() })
    }

    /// Saves a profile.
    pub fn save(&self, name: &str, profile: &Profile) -> Result<(), ProfileError> {
        let path = self.path(name, "toml")?;
        let text = toml::to_string(profile)
            .map_err(|error| ProfileError::Malformed { path: path.clone(), message: error.to_string() })?;
        self.write(&path, &text)
    }

    /// The stored tokens of this subject. A malformed file counts as none, since a login replaces it.
    pub fn tokens(&self, name: &str, subject: &TokenSubject) -> Result<Option<SessionTokens>, ProfileError> {
        let Some(text) = read(&self.path(name, "tokens.json")?)?.map(SecretString::from) else { return Ok(None) };
        let stored: Option<StoredTokens> = serde_json::from_str(text.expose_secret()).ok();
        Ok(stored.filter(|stored| stored.subject.matches(subject)).map(|stored| SessionTokens {
            access_token: stored.access_token,
            refresh_token: stored.refresh_token,
            refresh_at: Timestamp::from_micros(stored.refresh_at),
            expires_at: Timestamp::from_micros(stored.expires_at),
        }))
    }

    /// Stores tokens for later processes.
    pub fn save_tokens(&self, name: &str, subject: &TokenSubject, tokens: &SessionTokens) -> Result<(), ProfileError> {
        let stored = json!({
            "holder": subject,
            "access_token": tokens.access_token.expose_secret(),
            "refresh_token": tokens.refresh_token.expose_secret(),
            "refresh_at": tokens.refresh_at.micros(),
            "expires_at": tokens.expires_at.micros(),
        });
        self.write(&self.path(name, "tokens.json")?, &stored.to_string())
    }

    /// Deletes the stored tokens.
    pub fn delete_tokens(&self, name: &str) -> Result<(), ProfileError> {
        let path = self.path(name, "tokens.json")?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Locks the tokens of a profile until the file is dropped. Two processes that use one refresh token would end the
    /// session.
    pub fn lock(&self, name: &str) -> Result<File, ProfileError> {
        let path = self.path(name, "lock")?;
        self.create_folder()?;
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        file.and_then(|file| file.lock().map(|()| file)).map_err(failed(&path))
    }

    /// Creates the folder if it does not exist, with mode 0700.
    fn create_folder(&self) -> Result<(), ProfileError> {
        let Some(parent) = self.folder.parent() else { return Ok(()) };
        fs::create_dir_all(parent).map_err(failed(parent))?;
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed(&self.folder)(error)),
            _ => Ok(()),
        }
    }

    /// Checks that a profile can be saved, by writing and deleting a file. Commands call it before an action whose
    /// result they have to save.
    pub fn check_writable(&self, name: &str) -> Result<(), ProfileError> {
        let path = self.path(name, "toml")?;
        let temporary = self.write_temporary(&path, "write test\n")?;
        fs::remove_file(&temporary).map_err(failed(&temporary))
    }

    /// Whether a profile could be saved, by the permissions of the file system. It creates and writes nothing.
    pub fn is_writable(&self, name: &str) -> Result<bool, ProfileError> {
        let path = self.path(name, "toml")?;
        // A save replaces the file by a rename, so only the permissions of its folder matter.
        let existing = path.ancestors().skip(1).find(|folder| folder.exists());
        Ok(existing.is_some_and(|folder| rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok()))
    }

    /// The names of the profiles that exist, sorted.
    pub fn names(&self) -> Vec<String> {
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = files.filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".toml")?.to_owned()));
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// Writes a file atomically. Other users can never read it.
    fn write(&self, path: &Path, text: &str) -> Result<(), ProfileError> {
        let temporary = self.write_temporary(path, text)?;
        fs::rename(&temporary, path).map_err(failed(path))
    }

    /// Writes a temporary file next to `path`, with the process id in its name.
    fn write_temporary(&self, path: &Path, text: &str) -> Result<PathBuf, ProfileError> {
        self.create_folder()?;
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{}", std::process::id()));
        let temporary = PathBuf::from(temporary);
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| {
            // A partial file is of no use.
            let _ignored = fs::remove_file(&temporary);
            failed(path)(error)
        })?;
        Ok(temporary)
    }
}

/// The case of the host, a default port and a trailing slash do not matter.
fn same_endpoint(one: &str, other: &str) -> bool {
    let parsed = |url: &str| Url::parse(url.trim_end_matches('/')).ok();
    one == other || parsed(one).is_some_and(|one| parsed(other) == Some(one))
}

fn read(path: &Path) -> Result<Option<String>, ProfileError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(path)(error)),
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> ProfileError {
    let path = path.to_owned();
    move |error| ProfileError::File { path, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_endpoint_ignores_spelling() {
        for (other, same) in [
            ("https://host.example", true),
            ("https://HOST.example/", true),
            ("https://host.example:443/", true),
            ("https://host.example:8443", false),
            ("http://host.example", false),
            ("https://host.example/path", false),
            ("https://other.example", false),
        ] {
            assert_eq!(same_endpoint("https://host.example", other), same, "{other}");
        }
        assert!(same_endpoint("https://host/path/", "https://host:443/path"));
        assert!(!same_endpoint("nonsense", "other nonsense"));
    }
}
