//! The merged layers: the effective value of each key, its source, and all errors. In the default file, a table `*` (a wildcard)
//! stands for any number of tables that the operator names.

use super::{Layers, SettingsError, known_keys::KnownKeys, known_keys::flatten, parse_environment};
use config::{Config, File, FileFormat, Map, Value, ValueKind};
use serde::de::DeserializeOwned;
use std::{
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
    path::{Path, PathBuf},
};

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The value is from the default file.
    Default,
    /// The value is a preset of a mode such as `--dev`.
    Preset,
    /// The value is from the operator's file.
    File(PathBuf),
    /// The value is from the environment variable with this name.
    Environment(String),
    /// The value is from a flag.
    Flag,
}

impl Display for Source {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Preset => f.write_str("the default of this mode"),
            Self::File(path) => path.display().fmt(f),
            Self::Environment(name) => write!(f, "the environment ({name})"),
            Self::Flag => f.write_str("a flag"),
        }
    }
}

/// The effective value of a key.
#[derive(Debug, Clone)]
struct Setting {
    value: Value,
    source: Source,
}

/// The effective settings of all layers.
pub struct MergedSettings {
    defaults: BTreeMap<String, Value>,
    settings: BTreeMap<String, Setting>,
    problems: Vec<SettingsError>,
}

impl Layers {
    /// Merges the layers and collects their errors. Does not check the types of values.
    pub fn merge(&self) -> Result<MergedSettings, SettingsError> {
        let defaults = Config::builder().add_source(File::from_str(self.defaults, FileFormat::Toml)).build()?;
        let known_keys = KnownKeys::from_defaults(&defaults);
        let defaults: BTreeMap<_, _> =
            known_keys.without_wildcards().map(|(key, value)| (key.clone(), value.clone())).collect();
        let settings =
            defaults.iter().map(|(key, value)| (key.clone(), Setting::from_default(value.clone()))).collect();
        let mut merged = MergedSettings { defaults, settings, problems: Vec::new() };
        for (key, text) in &self.presets {
            merged.set(&known_keys, key, known_keys.parse(key, text.clone()).into(), Source::Preset);
        }
        if let Some(path) = &self.file {
            match read_toml(path) {
                Ok(file) => {
                    for (key, value) in flatten(&file.cache) {
                        let value = known_keys.split_text(&key, value);
                        merged.set(&known_keys, &key, value, Source::File(path.clone()));
                    }
                }
                Err(error) => merged.problems.push(error),
            }
        }
        for variable in parse_environment(&self.environment, &known_keys) {
            match variable {
                Ok((name, key, text)) => {
                    if let Some(Setting { source: Source::Environment(other), .. }) = merged.settings.get(&key) {
                        let error = format!("{other} and {name} both set `{key}`: unset one of them");
                        merged.problems.push(SettingsError::Invalid(error));
                    }
                    merged.set(&known_keys, &key, known_keys.parse(&key, text).into(), Source::Environment(name));
                }
                Err(error) => merged.problems.push(error),
            }
        }
        for (key, text) in &self.flags {
            merged.set(&known_keys, key, known_keys.parse(key, text.clone()).into(), Source::Flag);
        }
        Ok(merged)
    }
}

impl MergedSettings {
    /// Sets the value of a key. If the key is in a table that the operator names, the other keys of this table get their defaults,
    /// unless they are set already. Records unknown keys as errors.
    fn set(&mut self, known_keys: &KnownKeys, key: &str, value: Value, source: Source) {
        if known_keys.find(key).is_none() {
            let error = format!("unknown setting `{key}` in {source}{}", known_keys.hint(key));
            return self.problems.push(SettingsError::Invalid(error));
        }
        for (sibling, default) in known_keys.table_defaults(key) {
            self.defaults.insert(sibling.clone(), default.clone());
            self.settings.entry(sibling).or_insert_with(|| Setting::from_default(default));
        }
        self.settings.insert(key.to_owned(), Setting { value, source });
    }

    /// Deserializes and consumes the settings. Several errors become one error.
    pub fn read<T: DeserializeOwned>(mut self) -> Result<T, SettingsError> {
        let type_errors = self.type_errors::<T>();
        self.problems.extend(type_errors);
        match self.problems.len() {
            0 => deserialize(&self.settings),
            1 => Err(self.problems.remove(0)),
            _ => Err(SettingsError::Several(self.problems)),
        }
    }

    /// Deserializes the settings, but keeps them, so that the caller can also print them. Each error becomes a text of its own.
    pub fn read_or_list_errors<T: DeserializeOwned>(&self) -> Result<T, Vec<String>> {
        let problems: Vec<_> = self.problems.iter().chain(&self.type_errors::<T>()).map(ToString::to_string).collect();
        if problems.is_empty() {
            deserialize(&self.settings).map_err(|error| vec![error.to_string()])
        } else {
            Err(problems)
        }
    }

    fn type_errors<T: DeserializeOwned>(&self) -> Vec<SettingsError> {
        self.settings.iter().filter_map(|(key, setting)| self.type_error::<T>(key, setting)).collect()
    }

    /// The type error of a setting, if it has one. To find it, we deserialize the setting together with the defaults of all other keys.
    fn type_error<T: DeserializeOwned>(&self, key: &str, setting: &Setting) -> Option<SettingsError> {
        if setting.source == Source::Default {
            return None;
        }
        let settings = self.defaults.iter().map(|(key, value)| (key.clone(), Setting::from_default(value.clone())));
        let mut settings: BTreeMap<_, _> = settings.collect();
        settings.insert(key.to_owned(), setting.clone());
        let is_number = self.defaults.get(key).is_some_and(|default| matches!(default.kind, ValueKind::I64(_)));
        let error = if is_number && is_boolean(&setting.value) {
            format!("`{}` is not a number", setting.value)
        } else {
            deserialize::<T>(&settings).err()?.to_string()
        };
        // Our message begins with the key. If the error of the library ends with the key of an item (`sync.urls[1]`), we take that.
        let named = error.strip_suffix('`').and_then(|error| error.rsplit_once(" for key `"));
        let (error, key) = named.filter(|(_, name)| name.starts_with(key)).unwrap_or((&error, key));
        Some(SettingsError::Invalid(format!("`{key}` in {}: {error}", setting.source)))
    }

    /// Prints the settings as TOML, each with its source in a comment. Hides the values of the keys in `secrets` unless they are empty.
    pub fn to_toml(&self, secrets: &[&str]) -> String {
        let mut tables: BTreeMap<&str, String> = BTreeMap::new();
        for (key, setting) in &self.settings {
            let (table, name) = key.rsplit_once('.').unwrap_or(("", key));
            let value = match self.defaults.get(key) {
                Some(default) => with_type_of(&setting.value, default),
                None => setting.value.clone(),
            };
            let is_hidden = secrets.contains(&key.as_str()) && !value.to_string().is_empty();
            let value = if is_hidden { "\"(hidden)\"".to_owned() } else { to_toml_value(&value).to_string() };
            let line = format!("{name} = {value} # {}\n", setting.source.to_string().replace(char::is_control, " "));
            tables.entry(table).or_default().push_str(&line);
        }
        let text = tables.iter().map(|(table, lines)| match *table {
            "" => lines.clone(),
            table => format!("\n[{table}]\n{lines}"),
        });
        text.collect()
    }
}

/// Whether the value is `true` or `false`, or a text such as `yes`. The crate `config` would convert it to the number 1 or 0.
fn is_boolean(value: &Value) -> bool {
    match &value.kind {
        ValueKind::Boolean(_) => true,
        ValueKind::String(text) => text.parse::<f64>().is_err() && value.clone().into_bool().is_ok(),
        _ => false,
    }
}

impl Setting {
    const fn from_default(value: Value) -> Self {
        Self { value, source: Source::Default }
    }
}

fn read_toml(path: &Path) -> Result<Config, SettingsError> {
    let in_file = |error: String| SettingsError::Invalid(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| in_file(error.to_string()))?;
    // Only the error of the crate `toml` contains the position, so we parse with this crate first.
    toml::from_str::<toml::Table>(&text).map_err(|error| {
        let text_before_error = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = text_before_error.matches('\n').count() + 1;
        in_file(format!("invalid TOML at line {line}: {}", error.message()))
    })?;
    Ok(Config::builder().add_source(File::from_str(&text, FileFormat::Toml)).build()?)
}

fn deserialize<T: DeserializeOwned>(settings: &BTreeMap<String, Setting>) -> Result<T, SettingsError> {
    let mut root = Map::new();
    for (key, setting) in settings {
        insert(&mut root, key, setting.value.clone());
    }
    Ok(Value::from(ValueKind::Table(root)).try_deserialize()?)
}

/// Inserts a value into nested tables at its dotted key.
fn insert(table: &mut Map<String, Value>, key: &str, value: Value) {
    let Some((first, rest)) = key.split_once('.') else { return drop(table.insert(key.to_owned(), value)) };
    let inner = table.entry(first.to_owned()).or_insert_with(|| Value::from(ValueKind::Table(Map::new())));
    if let ValueKind::Table(inner) = &mut inner.kind {
        insert(inner, rest, value);
    }
}

/// Converts the value to the type of the default, because values from the environment and from flags are text.
fn with_type_of(value: &Value, default: &Value) -> Value {
    let converted = match default.kind {
        ValueKind::I64(_) => value.clone().into_int().ok().map(Value::from),
        ValueKind::Boolean(_) => value.clone().into_bool().ok().map(Value::from),
        ValueKind::Float(_) => value.clone().into_float().ok().map(Value::from),
        _ => None,
    };
    converted.unwrap_or_else(|| value.clone())
}

fn to_toml_value(value: &Value) -> toml::Value {
    match &value.kind {
        ValueKind::Boolean(boolean) => (*boolean).into(),
        ValueKind::I64(number) => (*number).into(),
        ValueKind::Float(number) => (*number).into(),
        ValueKind::Array(items) => toml::Value::Array(items.iter().map(to_toml_value).collect()),
        _ => value.to_string().into(),
    }
}
