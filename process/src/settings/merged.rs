//! All layers together: what holds, where it was said, and what is wrong with it.

use super::{Layers, SettingsError, from_environment, known_keys::KnownKeys, known_keys::leaves, read_file};
use config::{Config, File, FileFormat, Map, Value, ValueKind};
use serde::de::DeserializeOwned;
use std::{
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
    path::{Path, PathBuf},
};

/// Who said it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The commented default file.
    Default,
    /// A mode such as `--dev`.
    Mode,
    /// The operator's file.
    File(PathBuf),
    /// A variable of the environment.
    Environment(String),
    /// A flag.
    Flag,
}

impl Display for Source {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Mode => f.write_str("the default of this mode"),
            Self::File(path) => path.display().fmt(f),
            Self::Environment(name) => write!(f, "the environment ({name})"),
            Self::Flag => f.write_str("a flag"),
        }
    }
}

/// A setting that holds.
#[derive(Debug, Clone)]
struct Held {
    value: Value,
    source: Source,
}

/// What all layers together say.
pub struct MergedSettings {
    defaults: BTreeMap<String, Value>,
    held: BTreeMap<String, Held>,
    problems: Vec<SettingsError>,
}

impl MergedSettings {
    /// Reads all layers; what is wrong with one does not hide what is wrong with the next.
    pub(super) fn of(layers: &Layers) -> Result<Self, SettingsError> {
        let defaults = Config::builder().add_source(File::from_str(layers.defaults, FileFormat::Toml)).build()?;
        let known = KnownKeys::of(&defaults);
        let always: BTreeMap<_, _> = known.always().map(|(key, value)| (key.clone(), value.clone())).collect();
        let held = always.iter().map(|(key, value)| (key.clone(), Held::by_default(value.clone()))).collect();
        let mut all = Self { defaults: always, held, problems: Vec::new() };
        for (key, text) in &layers.presets {
            all.say(&known, key, known.typed(key, text.clone()).into(), Source::Mode);
        }
        if let Some(path) = &layers.file {
            match read_file(path).and_then(|text| read_toml(path, &text)) {
                Ok(file) => {
                    for (key, value) in leaves(&file.cache) {
                        all.say(&known, &key, value, Source::File(path.clone()));
                    }
                }
                Err(error) => all.problems.push(error),
            }
        }
        for said in from_environment(&layers.environment, &known) {
            match said {
                Ok((name, key, text)) => {
                    all.say(&known, &key, known.typed(&key, text).into(), Source::Environment(name));
                }
                Err(error) => all.problems.push(error),
            }
        }
        for (key, text) in &layers.flags {
            all.say(&known, key, known.typed(key, text.clone()).into(), Source::Flag);
        }
        Ok(all)
    }

    fn say(&mut self, known: &KnownKeys, key: &str, value: Value, source: Source) {
        if let Err(problem) = known.get(key, &source.to_string()) {
            return self.problems.push(problem);
        }
        for (beside, default) in known.beside(key) {
            self.defaults.insert(beside.clone(), default.clone());
            self.held.entry(beside).or_insert_with(|| Held::by_default(default));
        }
        self.held.insert(key.to_owned(), Held { value, source });
    }

    /// The settings, or the first thing that is wrong with them.
    pub fn read<T: DeserializeOwned>(mut self) -> Result<T, SettingsError> {
        if self.problems.is_empty() { whole(&self.held) } else { Err(self.problems.remove(0)) }
    }

    /// The settings, or a text for everything that is wrong with them.
    pub fn read_or_list_errors<T: DeserializeOwned>(&self) -> Result<T, Vec<String>> {
        let wrong = self.held.iter().filter_map(|(key, held)| self.mistyped::<T>(key, held));
        let problems: Vec<_> = self.problems.iter().map(ToString::to_string).chain(wrong).collect();
        if problems.is_empty() { whole(&self.held).map_err(|error| vec![error.to_string()]) } else { Err(problems) }
    }

    /// What is wrong with one setting if all others were as they are by default.
    fn mistyped<T: DeserializeOwned>(&self, key: &str, held: &Held) -> Option<String> {
        if held.source == Source::Default {
            return None;
        }
        let defaults = self.defaults.iter().map(|(key, value)| (key.clone(), Held::by_default(value.clone())));
        let mut alone: BTreeMap<_, _> = defaults.collect();
        alone.insert(key.to_owned(), held.clone());
        let error = whole::<T>(&alone).err()?;
        Some(format!("`{key}` in {}: {error}", held.source))
    }

    /// The settings as TOML, each with who said it; of `secrets` only whether they are there.
    pub fn to_toml(&self, secrets: &[&str]) -> String {
        let mut tables: BTreeMap<&str, String> = BTreeMap::new();
        for (key, held) in &self.held {
            let (table, name) = key.rsplit_once('.').unwrap_or(("", key));
            let value = match self.defaults.get(key) {
                Some(default) => alike(&held.value, default),
                None => held.value.clone(),
            };
            let hidden = secrets.contains(&key.as_str()) && !value.to_string().is_empty();
            let value = if hidden { "\"(hidden)\"".to_owned() } else { in_toml(&value).to_string() };
            let line = format!("{name} = {value} # {}\n", held.source.to_string().replace(char::is_control, " "));
            tables.entry(table).or_default().push_str(&line);
        }
        let text = tables.iter().map(|(table, lines)| match *table {
            "" => lines.clone(),
            table => format!("\n[{table}]\n{lines}"),
        });
        text.collect()
    }
}

impl Held {
    const fn by_default(value: Value) -> Self {
        Self { value, source: Source::Default }
    }
}

fn read_toml(path: &Path, text: &str) -> Result<Config, SettingsError> {
    toml::from_str::<toml::Table>(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        SettingsError::InvalidToml { path: path.to_owned(), line, error: error.message().to_owned() }
    })?;
    Ok(Config::builder().add_source(File::from_str(text, FileFormat::Toml)).build()?)
}

fn whole<T: DeserializeOwned>(held: &BTreeMap<String, Held>) -> Result<T, SettingsError> {
    let mut root = Map::new();
    for (key, held) in held {
        insert(&mut root, key, held.value.clone());
    }
    Ok(Value::from(ValueKind::Table(root)).try_deserialize()?)
}

/// Puts a value where its dotted key says.
fn insert(table: &mut Map<String, Value>, key: &str, value: Value) {
    let Some((first, rest)) = key.split_once('.') else { return drop(table.insert(key.to_owned(), value)) };
    let inner = table.entry(first.to_owned()).or_insert_with(|| Value::from(ValueKind::Table(Map::new())));
    if let ValueKind::Table(inner) = &mut inner.kind {
        insert(inner, rest, value);
    }
}

/// The value in the type of the default: environment and flags say everything as text.
fn alike(value: &Value, default: &Value) -> Value {
    let same = match default.kind {
        ValueKind::I64(_) => value.clone().into_int().ok().map(Value::from),
        ValueKind::Boolean(_) => value.clone().into_bool().ok().map(Value::from),
        ValueKind::Float(_) => value.clone().into_float().ok().map(Value::from),
        _ => None,
    };
    same.unwrap_or_else(|| value.clone())
}

fn in_toml(value: &Value) -> toml::Value {
    match &value.kind {
        ValueKind::Boolean(truth) => (*truth).into(),
        ValueKind::I64(number) => (*number).into(),
        ValueKind::Float(number) => (*number).into(),
        ValueKind::Array(items) => toml::Value::Array(items.iter().map(in_toml).collect()),
        _ => value.to_string().into(),
    }
}
