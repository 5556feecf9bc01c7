//! What is remembered between processes: profiles, and beside them the tokens of their agent.
//!
//! A folder of the user's (mode 0700) with `NAME.toml`, `NAME.tokens.json` and `NAME.key` (mode 0600).
//! API keys of services and people's tokens are never kept.

use crate::Held;
use countersign_identity::Timestamp;
use etcetera::BaseStrategy;
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// There is no place for it.
    #[error("there is no home directory: set XDG_CONFIG_HOME")]
    Homeless,
    /// No name for a file.
    #[error("`{0}` cannot be the name of a profile: letters, digits, `-`, `_` and `.`, not at the beginning")]
    Name(String),
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A file cannot be understood.
    #[error("{path}: {message}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
}

/// What a profile says; flags and the environment win over it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// The control plane.
    pub url: Option<String>,
    /// A PEM file with the authorities to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// The agent's id.
    pub agent: Option<String>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// Or a command that signs.
    pub signer: Option<String>,
    /// The hash of its public half.
    pub public_key_hash: Option<String>,
    /// The service that the agent's tokens are for.
    pub audience: Option<String>,
    /// The service that is managed.
    pub service: Option<String>,
}

/// The user's profiles.
#[derive(Debug, Clone)]
pub struct Profiles {
    folder: PathBuf,
}

/// Whose tokens are kept: others are no good for this profile any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The control plane.
    pub url: String,
    /// The agent.
    pub agent: String,
    /// The service asked for.
    pub audience: Option<String>,
}

impl Holder {
    /// Whether it is the same, in whatever way the control plane's URL is written.
    pub fn is(&self, other: &Self) -> bool {
        let Self { url, agent, audience } = other;
        self.agent == *agent && self.audience == *audience && same_place(&self.url, url)
    }
}

#[derive(Deserialize)]
struct Kept {
    holder: Holder,
    access_token: SecretString,
    refresh_token: SecretString,
    refresh_at: i64,
    expires_at: i64,
}

impl Profiles {
    /// Those of this user: in `$XDG_CONFIG_HOME/countersign` or `~/.config/countersign`.
    pub fn of_user() -> Result<Self, ProfileError> {
        let base = etcetera::choose_base_strategy().map_err(|_| ProfileError::Homeless)?;
        Ok(Self { folder: base.config_dir().join("countersign") })
    }

    /// Where a profile keeps a file of its own, such as `toml` or `key`.
    pub fn path(&self, name: &str, kind: &str) -> Result<PathBuf, ProfileError> {
        let plain = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
        let named = (1..=64).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('.');
        if named { Ok(self.folder.join(format!("{name}.{kind}"))) } else { Err(ProfileError::Name(name.to_owned())) }
    }

    /// Reads a profile; one that was never saved is empty.
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

    /// The tokens that were kept for this holder. What cannot be read is as good as nothing: a login mends it.
    pub fn tokens(&self, name: &str, holder: &Holder) -> Result<Option<Held>, ProfileError> {
        let Some(text) = read(&self.path(name, "tokens.json")?)?.map(SecretString::from) else { return Ok(None) };
        let kept: Option<Kept> = serde_json::from_str(text.expose_secret()).ok();
        Ok(kept.filter(|kept| kept.holder.is(holder)).map(|kept| Held {
            access_token: kept.access_token,
            refresh_token: kept.refresh_token,
            refresh_at: Timestamp::from_micros(kept.refresh_at),
            expires_at: Timestamp::from_micros(kept.expires_at),
        }))
    }

    /// Keeps tokens for a later process.
    pub fn keep_tokens(&self, name: &str, holder: &Holder, held: &Held) -> Result<(), ProfileError> {
        let kept = json!({
            "holder": holder,
            "access_token": held.access_token.expose_secret(),
            "refresh_token": held.refresh_token.expose_secret(),
            "refresh_at": held.refresh_at.micros(),
            "expires_at": held.expires_at.micros(),
        });
        self.write(&self.path(name, "tokens.json")?, &kept.to_string())
    }

    /// Forgets the tokens that were kept.
    pub fn forget_tokens(&self, name: &str) -> Result<(), ProfileError> {
        let path = self.path(name, "tokens.json")?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Keeps other processes from this profile's tokens until the file is dropped: two that refresh with one
    /// refresh token would end the login.
    pub fn lock(&self, name: &str) -> Result<File, ProfileError> {
        let path = self.path(name, "lock")?;
        self.make_folder()?;
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        file.and_then(|file| file.lock().map(|()| file)).map_err(failed(&path))
    }

    /// Makes sure of the folder, for its owner only.
    fn make_folder(&self) -> Result<(), ProfileError> {
        let Some(parent) = self.folder.parent() else { return Ok(()) };
        fs::create_dir_all(parent).map_err(failed(parent))?;
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed(&self.folder)(error)),
            _ => Ok(()),
        }
    }

    /// Finds out whether a profile can be saved, before something is done that would have to be remembered.
    pub fn check_writable(&self, name: &str) -> Result<(), ProfileError> {
        let path = self.path(name, "toml")?;
        let beside = self.write_beside(&path, "whether there is room\n")?;
        fs::remove_file(&beside).map_err(failed(&beside))
    }

    /// Whole or not at all, and never readable by others, not even for a moment.
    fn write(&self, path: &Path, text: &str) -> Result<(), ProfileError> {
        let beside = self.write_beside(path, text)?;
        fs::rename(&beside, path).map_err(failed(path))
    }

    /// Writes to a file of this process, to be moved to where it belongs.
    fn write_beside(&self, path: &Path, text: &str) -> Result<PathBuf, ProfileError> {
        self.make_folder()?;
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        let beside = PathBuf::from(beside);
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside);
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| {
            // Half a file is of no use to anybody.
            let _left = fs::remove_file(&beside);
            failed(path)(error)
        })?;
        Ok(beside)
    }
}

/// Case of the host, the usual port and a slash at the end make no difference.
fn same_place(one: &str, other: &str) -> bool {
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
    fn one_control_plane_may_be_written_in_several_ways() {
        for (other, same) in [
            ("https://host.example", true),
            ("https://HOST.example/", true),
            ("https://host.example:443/", true),
            ("https://host.example:8443", false),
            ("http://host.example", false),
            ("https://host.example/path", false),
            ("https://other.example", false),
        ] {
            assert_eq!(same_place("https://host.example", other), same, "{other}");
        }
        assert!(same_place("https://host/path/", "https://host:443/path"));
        assert!(!same_place("nonsense", "other nonsense"));
    }
}
