//! Layered settings: flag, then environment, then file, then the documented defaults.
//!
//! The commented default file is compiled in and *is* the default; whatever key it does not have does
//! not exist, and is refused with the nearest key that does.

mod known_keys;
mod merged;

pub use merged::{MergedSettings, Source};

use known_keys::KnownKeys;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

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
    /// A file that is no TOML. The line itself is not repeated: it may hold a secret.
    #[error("{path}: no TOML at line {line}: {error}")]
    InvalidToml {
        /// The file.
        path: PathBuf,
        /// Where.
        line: usize,
        /// What is wrong there.
        error: String,
    },
    /// A value of the wrong type.
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
        self.merge()?.read()
    }

    /// Puts the layers together, without looking yet whether they make sense.
    pub fn merge(&self) -> Result<MergedSettings, SettingsError> {
        MergedSettings::of(self)
    }
}

/// A variable, the key that it sets, and the value.
type Variable = (String, String, String);

/// `COUNTERSIGN_TOKENS__ACCESS_SECONDS` is `tokens.access_seconds`; with `_FILE` behind it, the value is read
/// from the file that it names.
fn from_environment(variables: &[(String, String)], known: &KnownKeys) -> Vec<Result<Variable, SettingsError>> {
    let ours = variables.iter().filter_map(|(name, value)| Some((name, name.strip_prefix(PREFIX)?, value)));
    let ours = ours.filter(|(_, rest, _)| !OF_THE_CLIENT.contains(rest));
    ours.map(|(name, rest, value)| {
        let key = rest.to_lowercase().replace("__", ".");
        match key.strip_suffix("_file") {
            Some(base) if known.find(&key).is_none() && known.find(base).is_some() => {
                Ok((name.clone(), base.to_owned(), read_file(Path::new(value))?.trim().to_owned()))
            }
            _ => Ok((name.clone(), key, value.clone())),
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
    use std::collections::BTreeMap;

    const DEFAULTS: &str =
        "name = \"a\"\n[tokens]\nseconds = 5\nkeys = []\n[doors.\"*\"]\ncolour = \"red\"\nwidth = 9\n";

    #[derive(Debug, Deserialize, PartialEq)]
    struct Settings {
        name: String,
        tokens: Tokens,
        #[serde(default)]
        doors: BTreeMap<String, Door>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Door {
        colour: String,
        width: u32,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Tokens {
        seconds: u32,
        keys: Vec<String>,
    }

    fn layers(environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Layers {
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let flags = flags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Layers { defaults: DEFAULTS, file: None, environment, flags, presets: Vec::new() }
    }

    fn read(environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        layers(environment, flags).read()
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

    #[test]
    fn a_table_may_have_a_name_of_ones_own_and_has_the_defaults_of_its_kind() {
        assert_eq!(read(&[], &[]).unwrap().doors, BTreeMap::new());
        let doors =
            read(&[("COUNTERSIGN_DOORS__FRONT__WIDTH", "12")], &[("doors.back-1.colour", "blue")]).unwrap().doors;
        assert_eq!(doors["front"], Door { colour: "red".into(), width: 12 });
        assert_eq!(doors["back-1"], Door { colour: "blue".into(), width: 9 });
    }

    #[test]
    fn in_a_table_of_ones_own_unknown_keys_and_senseless_names_are_refused() {
        let nearest = |key: &str| match read(&[], &[(key, "1")]).unwrap_err() {
            SettingsError::Unknown { nearest, .. } => nearest,
            other => panic!("{other}"),
        };
        assert_eq!(nearest("doors.front.widht"), "doors.front.width");
        assert_eq!(nearest("doors.Front.width"), "doors.front.width");
        for key in ["doors.*.width", "doors.front", "doors..width", "doors.front.width.x", "doors.a b.width"] {
            nearest(key);
        }
    }

    #[test]
    fn everything_that_is_wrong_is_told_at_once() {
        let wrong = [("COUNTERSIGN_TOKENS__SECOND", "6"), ("COUNTERSIGN_DOORS__FRONT__WIDTH", "wide")];
        let gathered = layers(&wrong, &[("tokens.seconds", "soon"), ("nane", "b")]).merge().unwrap();
        let problems = gathered.read_or_list_errors::<Settings>().unwrap_err();
        for said in ["`tokens.second` in", "`doors.front.width` in", "`tokens.seconds` in a flag", "`nane` in a flag"] {
            assert!(problems.iter().any(|problem| problem.contains(said)), "{said}: {problems:?}");
        }
        assert_eq!(problems.len(), 4, "{problems:?}");
    }

    #[test]
    fn what_is_printed_reads_back_as_the_same_and_hides_secrets() {
        let environment = [("COUNTERSIGN_DOORS__FRONT__COLOUR", "a \"b\"\nc"), ("COUNTERSIGN_TOKENS__SECONDS", "6")];
        let gathered = layers(&environment, &[("tokens.keys", "x,y")]).merge().unwrap();
        let printed = gathered.to_toml(&[]);
        assert!(printed.contains("seconds = 6 # the environment (COUNTERSIGN_TOKENS__SECONDS)\n"), "{printed}");
        assert!(printed.contains("name = \"a\" # default\n"), "{printed}");
        assert_eq!(toml::from_str::<Settings>(&printed).unwrap(), gathered.read().unwrap(), "{printed}");
        let gathered = layers(&[], &[("name", "hunter2")]).merge().unwrap();
        let printed = gathered.to_toml(&["name", "tokens.keys"]);
        assert!(printed.contains("name = \"(hidden)\" # a flag\n") && !printed.contains("hunter2"), "{printed}");
    }
}
