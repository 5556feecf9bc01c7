//! The keys that exist: those of the commented default file, and no others.
//!
//! A table named `*` there stands for any number of tables with a name of the operator's choice: its keys
//! exist in each of them, with these defaults.

use super::SettingsError;
use config::{Config, Value, ValueKind};
use std::collections::BTreeMap;

/// In the default file: a table with any name.
const ANY: &str = "*";

/// The keys that exist, with their defaults.
pub(super) struct KnownKeys(BTreeMap<String, Value>);

impl KnownKeys {
    pub(super) fn of(defaults: &Config) -> Self {
        Self(leaves(&defaults.cache))
    }

    /// What is there though nobody says anything: everything that is in no table of the operator's choice.
    pub(super) fn always(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0.iter().filter(|(key, _)| !key.split('.').any(|part| part == ANY))
    }

    /// The default of a key that exists.
    pub(super) fn find(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| fits(known, key)).map(|(_, value)| value)
    }

    pub(super) fn get(&self, key: &str, source_name: &str) -> Result<&Value, SettingsError> {
        self.find(key).ok_or_else(|| SettingsError::Unknown {
            key: key.to_owned(),
            source_name: source_name.to_owned(),
            nearest: self.nearest(key),
        })
    }

    /// The keys and defaults of the table with a chosen name in which this key stands, if it stands in one.
    pub(super) fn beside(&self, key: &str) -> Vec<(String, Value)> {
        let Some((pattern, _)) = self.0.iter().find(|(known, _)| fits(known, key)) else { return Vec::new() };
        let Some((table, _)) = pattern.split_once(".*.") else { return Vec::new() };
        let all =
            self.0.iter().filter(|(known, _)| known.starts_with(table) && known[table.len()..].starts_with(".*."));
        all.map(|(known, value)| (named_as(known, key), value.clone())).collect()
    }

    fn nearest(&self, key: &str) -> String {
        let candidates = self.0.keys().map(|known| named_as(known, key));
        let similarity = |known: &String| strsim::jaro_winkler(known, key);
        candidates.max_by(|a, b| similarity(a).total_cmp(&similarity(b))).unwrap_or_default()
    }

    /// A list in the default file makes its key a list everywhere: commas separate.
    pub(super) fn typed(&self, key: &str, text: String) -> ValueKind {
        match self.find(key).map(|value| &value.kind) {
            Some(ValueKind::Array(_)) => {
                let items = text.split([',', '\n']).map(str::trim).filter(|item| !item.is_empty());
                ValueKind::Array(items.map(|item| Value::from(item.to_owned())).collect())
            }
            _ => ValueKind::String(text),
        }
    }
}

/// Whether a key is the known one, or one of those that a `*` in it stands for.
fn fits(known: &str, key: &str) -> bool {
    let (mut known, mut key) = (known.split('.'), key.split('.'));
    loop {
        match (known.next(), key.next()) {
            (None, None) => return true,
            (Some(ANY), Some(name)) if is_name(name) => {}
            (Some(part), Some(same)) if part == same && part != ANY => {}
            _ => return false,
        }
    }
}

/// What an environment variable can say too.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    !name.is_empty() && name.bytes().all(plain)
}

/// The known key with the names that `key` has where it has a `*`.
fn named_as(known: &str, key: &str) -> String {
    let mut names = key.split('.');
    let parts = known.split('.').map(|part| match names.next() {
        Some(name) if part == ANY && is_name(&name.to_lowercase()) => name.to_lowercase(),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join(".")
}

/// Dotted keys of everything that is not a table.
pub(super) fn leaves(root: &Value) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    let mut open: Vec<(String, Value)> = vec![(String::new(), root.clone())];
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
