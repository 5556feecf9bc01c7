//! Layered settings: flags override the environment, which overrides the file, which overrides the defaults.
//!
//! The default file is compiled into the program. Invariant: the default file defines every valid key with its default value. The
//! error about an unknown key suggests a similar valid one.

mod known_keys;
mod merged;

pub use merged::{MergedSettings, Source};

use known_keys::KnownKeys;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// The prefix of environment variables that contain settings.
const ENV_PREFIX: &str = "COUNTERSIGN_";

/// Environment variables of the command-line client, without the prefix. The servers ignore them.
const CLIENT_VARIABLES: [&str; 15] = [
    "URL",
    "CA",
    "SERVICE_ID",
    "SERVICE_KEY",
    "SERVICE_KEY_FILE",
    "HUMAN_TOKEN",
    "HUMAN_TOKEN_FILE",
    "ISSUER",
    "ISSUER_CA",
    "CLIENT_ID",
    "SYNC_URL",
    "ADMIN_URL",
    "PROFILE",
    "TOKEN",
    "WEBHOOK_SECRET",
];

/// Why settings are invalid. The message names the key and its source.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// An environment variable names a file with a value, and that file cannot be read.
    #[error("{0}")]
    UnreadableValue(String),
    /// A file, a key or a value is invalid. The message does not show an invalid line, because it may contain a secret.
    #[error("{0}")]
    Invalid(String),
    /// Several settings are invalid. Each is on a line of its own.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<SettingsError>),
}

impl From<config::ConfigError> for SettingsError {
    fn from(error: config::ConfigError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl SettingsError {
    /// Whether the only problem is that files with values cannot be read now. A later start may succeed, when a secret is mounted.
    pub fn is_unreadable_value(&self) -> bool {
        match self {
            Self::UnreadableValue(_) => true,
            Self::Invalid(_) => false,
            Self::Several(errors) => errors.iter().all(Self::is_unreadable_value),
        }
    }
}

/// The layers of settings, from which [`MergedSettings`] are computed.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    /// The content of the default file.
    pub defaults: &'static str,
    /// The path of the operator's TOML file.
    pub file: Option<PathBuf>,
    /// The environment variables. Only environment variables with the prefix `COUNTERSIGN_` are used.
    pub environment: Vec<(String, String)>,
    /// The flags, each a dotted key and a value.
    pub flags: Vec<(String, String)>,
    /// The values that a mode such as `--dev` sets, which override only the defaults.
    pub presets: Vec<(String, String)>,
}

/// The environment variables that are UTF-8. Others cannot be settings.
pub fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

impl Layers {
    /// Merges the layers and deserializes the settings.
    pub fn read<T: DeserializeOwned>(self) -> Result<T, SettingsError> {
        self.merge()?.read()
    }
}

/// The name of an environment variable, the key that it sets, and the value.
type Variable = (String, String, String);

/// Converts environment variables to keys: `COUNTERSIGN_TOKENS__ACCESS_SECONDS` sets `tokens.access_seconds`. A variable with the
/// suffix `_FILE` contains the path of a file with the value, unless a key has this suffix itself.
fn parse_environment(variables: &[(String, String)], known_keys: &KnownKeys) -> Vec<Result<Variable, SettingsError>> {
    let settings = variables.iter().filter_map(|(name, value)| Some((name, name.strip_prefix(ENV_PREFIX)?, value)));
    let settings = settings.filter(|(_, rest, _)| !CLIENT_VARIABLES.contains(rest));
    settings
        .map(|(name, rest, value)| {
            let key = rest.to_lowercase().replace("__", ".");
            match key.strip_suffix("_file") {
                Some(base) if known_keys.find(&key).is_none() && known_keys.find(base).is_some() => {
                    Ok((name.clone(), base.to_owned(), read_value_from_file(name, Path::new(value))?.trim().to_owned()))
                }
                _ => Ok((name.clone(), key, value.clone())),
            }
        })
        .collect()
}

/// Reads the value of a setting from the file that a variable names.
fn read_value_from_file(variable: &str, path: &Path) -> Result<String, SettingsError> {
    std::fs::read_to_string(path).map_err(|error| {
        let path = path.display();
        SettingsError::UnreadableValue(format!("{variable} names the file {path}, which cannot be read: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    const DEFAULT_SETTINGS: &str =
        "name = \"a\"\n[tokens]\nseconds = 5\nkeys = []\n[targets.\"*\"]\ncolour = \"red\"\nwidth = 9\n";

    #[derive(Debug, Deserialize, PartialEq)]
    struct Settings {
        name: String,
        tokens: Tokens,
        #[serde(default)]
        targets: BTreeMap<String, Target>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Target {
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
        Layers { defaults: DEFAULT_SETTINGS, file: None, environment, flags, presets: Vec::new() }
    }

    fn read(environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        layers(environment, flags).read()
    }

    #[test]
    fn flags_override_environment_and_environment_overrides_defaults() {
        assert_eq!(read(&[], &[]).unwrap().tokens.seconds, 5);
        let environment = [("COUNTERSIGN_TOKENS__SECONDS", "6"), ("COUNTERSIGN_URL", "x"), ("HOME", "y")];
        assert_eq!(read(&environment, &[]).unwrap().tokens.seconds, 6);
        assert_eq!(read(&environment, &[("tokens.seconds", "7")]).unwrap().tokens.seconds, 7);
        assert_eq!(read(&[("COUNTERSIGN_TOKENS__KEYS", "a, b")], &[]).unwrap().tokens.keys, ["a", "b"]);
    }

    #[test]
    fn list_in_the_file_can_be_one_text() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, expected) in
            [("\"a\"", &["a"][..]), ("\"a, b\"", &["a", "b"]), ("[\"a, b\"]", &["a, b"]), ("\"\"", &[])]
        {
            std::fs::write(file.path(), format!("[tokens]\nkeys = {text}\n")).unwrap();
            let layers = Layers { file: Some(file.path().to_owned()), ..layers(&[], &[]) };
            assert_eq!(layers.read::<Settings>().unwrap().tokens.keys, expected, "{text}");
        }
    }

    #[test]
    fn refuses_unknown_key_and_suggests_the_nearest() {
        let error = read(&[("COUNTERSIGN_TOKENS__SECOND", "6")], &[]).unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown setting `tokens.second` in the environment (COUNTERSIGN_TOKENS__SECOND): did you mean `tokens.seconds`?"
        );
    }

    #[test]
    fn hint_about_an_unknown_key_in_a_table_is_about_that_table() {
        let hint = |key: &str| {
            let error = read(&[], &[(key, "1")]).unwrap_err().to_string();
            error.strip_prefix(&format!("unknown setting `{key}` in a flag")).unwrap().to_owned()
        };
        assert_eq!(hint("tokens.keys_file"), ": did you mean `tokens.keys`?");
        assert_eq!(hint("targets.first.size"), ": the settings of `targets.first` are `colour`, `width`");
        assert_eq!(hint("targets.first.widht"), ": did you mean `targets.first.width`?");
        assert_eq!(hint("targets.First.width"), ": did you mean `targets.first.width`?");
        assert_eq!((hint("nothing.keys"), hint("nope")), (String::new(), String::new()));
        for key in ["targets.*.width", "targets.first", "targets..width", "targets.first.width.x", "targets.a b.width"]
        {
            hint(key);
        }
    }

    #[test]
    fn error_about_the_file_of_a_variable_names_the_variable() {
        let error = read(&[("COUNTERSIGN_NAME_FILE", "/nowhere")], &[]).unwrap_err().to_string();
        assert!(error.starts_with("COUNTERSIGN_NAME_FILE names the file /nowhere, which cannot be read: "), "{error}");
    }

    #[test]
    fn two_variables_of_one_setting_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let of_file = ("COUNTERSIGN_NAME_FILE", file.path().to_str().unwrap());
        let error = read(&[("COUNTERSIGN_NAME", "a"), of_file], &[]).unwrap_err().to_string();
        assert_eq!(error, "COUNTERSIGN_NAME and COUNTERSIGN_NAME_FILE both set `name`: unset one of them");
    }

    #[test]
    fn error_about_an_item_of_a_list_names_the_item() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[tokens]\nkeys = [\"a\", { b = 1 }]\n").unwrap();
        let layers = Layers { file: Some(file.path().to_owned()), ..layers(&[], &[]) };
        let error = layers.read::<Settings>().unwrap_err().to_string();
        assert!(error.starts_with("`tokens.keys[1]` in "), "{error}");
    }

    #[test]
    fn refuses_wrong_type() {
        assert!(read(&[("COUNTERSIGN_TOKENS__SECONDS", "soon")], &[]).is_err());
        // The library would read `true` and `yes` as 1.
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[tokens]\nseconds = true\n").unwrap();
        let in_file = Layers { file: Some(file.path().to_owned()), ..layers(&[], &[]) }.read::<Settings>();
        for result in [in_file, read(&[], &[("tokens.seconds", "true")]), read(&[], &[("tokens.seconds", "yes")])] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("`tokens.seconds` in ") && error.contains("is not a number"), "{error}");
        }
    }

    #[test]
    fn named_table_has_the_defaults_of_its_wildcard_table() {
        assert_eq!(read(&[], &[]).unwrap().targets, BTreeMap::new());
        let targets = read(&[("COUNTERSIGN_TARGETS__FIRST__WIDTH", "12")], &[("targets.second-1.colour", "blue")])
            .unwrap()
            .targets;
        assert_eq!(targets["first"], Target { colour: "red".into(), width: 12 });
        assert_eq!(targets["second-1"], Target { colour: "blue".into(), width: 9 });
    }

    #[test]
    fn read_or_list_errors_reports_all_errors() {
        let invalid = [("COUNTERSIGN_TOKENS__SECOND", "6"), ("COUNTERSIGN_TARGETS__FIRST__WIDTH", "wide")];
        let merged = layers(&invalid, &[("tokens.seconds", "soon"), ("nane", "b")]).merge().unwrap();
        let problems = merged.read_or_list_errors::<Settings>().unwrap_err();
        for expected in
            ["`tokens.second` in", "`targets.first.width` in", "`tokens.seconds` in a flag", "`nane` in a flag"]
        {
            assert!(problems.iter().any(|problem| problem.contains(expected)), "{expected}: {problems:?}");
        }
        assert_eq!(problems.len(), 4, "{problems:?}");
    }

    #[test]
    fn to_toml_round_trips_and_hides_secrets() {
        let environment = [("COUNTERSIGN_TARGETS__FIRST__COLOUR", "a \"b\"\nc"), ("COUNTERSIGN_TOKENS__SECONDS", "6")];
        let merged = layers(&environment, &[("tokens.keys", "x,y")]).merge().unwrap();
        let toml = merged.to_toml(&[]);
        assert!(toml.contains("seconds = 6 # the environment (COUNTERSIGN_TOKENS__SECONDS)\n"), "{toml}");
        assert!(toml.contains("name = \"a\" # default\n"), "{toml}");
        assert_eq!(toml::from_str::<Settings>(&toml).unwrap(), merged.read().unwrap(), "{toml}");
        let merged = layers(&[], &[("name", "hunter2")]).merge().unwrap();
        let toml = merged.to_toml(&["name", "tokens.keys"]);
        assert!(toml.contains("name = \"(hidden)\" # a flag\n") && !toml.contains("hunter2"), "{toml}");
    }
}
