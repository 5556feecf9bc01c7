//! Layered settings: flag, then environment, then file, then the documented defaults.
//!
//! The commented default file is compiled in and *is* the default; whatever key it does not have does
//! not exist, and is refused with the nearest key that does.

use config::{Config, File, FileFormat, Value, ValueKind};
use serde::de::DeserializeOwned;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// What environment variables of ours begin with.
const PREFIX: &str = "COUNTERSIGN_";

/// Variables that the command-line client reads from the same environment.
const OF_THE_CLIENT: [&str; 7] = ["URL", "CA", "SERVICE_ID", "SERVICE_KEY", "HUMAN_TOKEN", "SYNC_URL", "ADMIN_URL"];

/// Why settings are not accepted; the text names the key and its source.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A key that no setting has.
    #[error("unknown setting `{key}` in {source_name}: did you mean `{nearest}`?")]
    Unknown {
        /// The key as read.
        key: String,
        /// Where it was read.
        source_name: String,
        /// The most similar key that exists.
        nearest: String,
    },
    /// A file that cannot be read.
    #[error("{path}: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A value of the wrong type, or a file that is no TOML.
    #[error("{0}")]
    Invalid(#[from] config::ConfigError),
}

/// Everything settings are read from, the strongest last.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    /// The commented default file.
    pub defaults: &'static str,
    /// The operator's TOML file.
    pub file: Option<PathBuf>,
    /// The environment; only names with our prefix are looked at.
    pub environment: Vec<(String, String)>,
    /// Flags given, as dotted key and value.
    pub flags: Vec<(String, String)>,
    /// What a mode such as `--dev` puts over the defaults; everything else wins over it.
    pub presets: Vec<(String, String)>,
}

impl Layers {
    /// Reads the settings.
    pub fn read<T: DeserializeOwned>(self) -> Result<T, SettingsError> {
        let defaults = Config::builder().add_source(File::from_str(self.defaults, FileFormat::Toml)).build()?;
        let known = Known(leaves(&defaults));
        let mut builder = Config::builder().add_source(File::from_str(self.defaults, FileFormat::Toml));
        let mut presets = Config::builder();
        for (key, value) in self.presets {
            let typed = known.typed(&key, value);
            presets = presets.set_override(key, typed)?;
        }
        builder = builder.add_source(presets.build()?);
        if let Some(path) = &self.file {
            let text = read_file(path)?;
            let file = Config::builder().add_source(File::from_str(&text, FileFormat::Toml)).build()?;
            for key in leaves(&file).keys() {
                known.get(key, &path.display().to_string())?;
            }
            builder = builder.add_source(file);
        }
        for (key, value) in from_environment(&self.environment, &known)? {
            let typed = known.typed(&key, value);
            builder = builder.set_override(key, typed)?;
        }
        for (key, value) in self.flags {
            known.get(&key, "a flag")?;
            let typed = known.typed(&key, value);
            builder = builder.set_override(key, typed)?;
        }
        Ok(builder.build()?.try_deserialize()?)
    }
}

/// The keys that exist, with their defaults.
struct Known(BTreeMap<String, Value>);

impl Known {
    fn get(&self, key: &str, source_name: &str) -> Result<&Value, SettingsError> {
        self.0.get(key).ok_or_else(|| SettingsError::Unknown {
            key: key.to_owned(),
            source_name: source_name.to_owned(),
            nearest: self.nearest(key),
        })
    }

    fn nearest(&self, key: &str) -> String {
        let similarity = |known: &&String| strsim::jaro_winkler(known, key);
        let nearest = self.0.keys().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
        nearest.cloned().unwrap_or_default()
    }

    /// A list in the default file makes its key a list everywhere: commas separate.
    fn typed(&self, key: &str, text: String) -> ValueKind {
        match self.0.get(key).map(|value| &value.kind) {
            Some(ValueKind::Array(_)) => {
                let items = text.split([',', '\n']).map(str::trim).filter(|item| !item.is_empty());
                ValueKind::Array(items.map(|item| Value::from(item.to_owned())).collect())
            }
            _ => ValueKind::String(text),
        }
    }
}

/// Dotted keys of everything that is not a table.
fn leaves(config: &Config) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    let mut open: Vec<(String, Value)> = vec![(String::new(), config.cache.clone())];
    while let Some((path, value)) = open.pop() {
        match value.kind {
            ValueKind::Table(entries) => open.extend(
                entries
                    .into_iter()
                    .map(|(name, value)| (if path.is_empty() { name } else { format!("{path}.{name}") }, value)),
            ),
            _ => drop(found.insert(path, value)),
        }
    }
    found
}

/// `COUNTERSIGN_TOKENS__ACCESS_SECONDS` is `tokens.access_seconds`; with `_FILE` behind it, the value is read
/// from the file that it names.
fn from_environment(variables: &[(String, String)], known: &Known) -> Result<Vec<(String, String)>, SettingsError> {
    let ours = variables.iter().filter_map(|(name, value)| Some((name, name.strip_prefix(PREFIX)?, value)));
    let ours = ours.filter(|(_, rest, _)| !OF_THE_CLIENT.contains(rest));
    ours.map(|(name, rest, value)| {
        let key = rest.to_lowercase().replace("__", ".");
        match key.strip_suffix("_file") {
            Some(base) if !known.0.contains_key(&key) && known.0.contains_key(base) => {
                Ok((base.to_owned(), read_file(Path::new(value))?.trim().to_owned()))
            }
            _ => known.get(&key, &format!("the environment ({name})")).map(|_| (key.clone(), value.clone())),
        }
    })
    .collect()
}

fn read_file(path: &Path) -> Result<String, SettingsError> {
    std::fs::read_to_string(path).map_err(|error| SettingsError::Unreadable { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    const DEFAULTS: &str = "name = \"a\"\n[tokens]\nseconds = 5\nkeys = []\n";

    #[derive(Debug, Deserialize, PartialEq)]
    struct Settings {
        name: String,
        tokens: Tokens,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Tokens {
        seconds: u32,
        keys: Vec<String>,
    }

    fn read(environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let flags = flags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Layers { defaults: DEFAULTS, file: None, environment, flags, presets: Vec::new() }.read()
    }

    #[test]
    fn a_flag_beats_the_environment_which_beats_the_default() {
        assert_eq!(read(&[], &[]).unwrap().tokens.seconds, 5);
        let environment = [("COUNTERSIGN_TOKENS__SECONDS", "6"), ("COUNTERSIGN_URL", "x"), ("HOME", "y")];
        assert_eq!(read(&environment, &[]).unwrap().tokens.seconds, 6);
        assert_eq!(read(&environment, &[("tokens.seconds", "7")]).unwrap().tokens.seconds, 7);
        assert_eq!(read(&[("COUNTERSIGN_TOKENS__KEYS", "a, b")], &[]).unwrap().tokens.keys, ["a", "b"]);
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_known_one() {
        let error = read(&[("COUNTERSIGN_TOKENS__SECOND", "6")], &[]).unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown setting `tokens.second` in the environment (COUNTERSIGN_TOKENS__SECOND): did you mean `tokens.seconds`?"
        );
    }

    #[test]
    fn a_wrong_type_is_refused() {
        assert!(read(&[("COUNTERSIGN_TOKENS__SECONDS", "soon")], &[]).is_err());
    }
}
