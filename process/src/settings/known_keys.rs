//! The valid keys: those of the commented default file.
//!
//! A table named `*` there is a wildcard: the operator may add any number of named tables with its keys and defaults.

use super::SettingsError;
use config::{Config, Value, ValueKind};
use std::collections::BTreeMap;

/// The name of a wildcard table in the default file.
const WILDCARD: &str = "*";

/// The valid keys with their defaults.
pub(super) struct KnownKeys(BTreeMap<String, Value>);

impl KnownKeys {
    pub(super) fn from_defaults(defaults: &Config) -> Self {
        Self(leaves(&defaults.cache))
    }

    /// The keys outside wildcard tables, which exist in every configuration.
    pub(super) fn without_wildcards(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0.iter().filter(|(key, _)| !key.split('.').any(|part| part == WILDCARD))
    }

    /// The default of a key; `None` if the key is unknown.
    pub(super) fn find(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(pattern, _)| matches(pattern, key)).map(|(_, value)| value)
    }

    pub(super) fn get(&self, key: &str, source_name: &str) -> Result<&Value, SettingsError> {
        self.find(key).ok_or_else(|| SettingsError::Unknown {
            key: key.to_owned(),
            source_name: source_name.to_owned(),
            nearest: self.nearest(key),
        })
    }

    /// All keys and defaults of the named table that contains this key; empty if the key is in no named table.
    pub(super) fn table_defaults(&self, key: &str) -> Vec<(String, Value)> {
        let Some((pattern, _)) = self.0.iter().find(|(pattern, _)| matches(pattern, key)) else { return Vec::new() };
        let Some((table, _)) = pattern.split_once(".*.") else { return Vec::new() };
        let siblings = self
            .0
            .iter()
            .filter(|(pattern, _)| pattern.strip_prefix(table).is_some_and(|rest| rest.starts_with(".*.")));
        siblings.map(|(pattern, value)| (instantiate(pattern, key), value.clone())).collect()
    }

    /// The most similar valid key; `None` if more than one of four characters differs.
    fn nearest(&self, key: &str) -> Option<String> {
        let candidates = self.0.keys().map(|pattern| instantiate(pattern, key));
        let distances = candidates.map(|candidate| (strsim::osa_distance(&candidate, key), candidate));
        let (distance, nearest) = distances.min()?;
        (distance * 4 <= nearest.len().max(key.len())).then_some(nearest)
    }

    /// Converts text to a value. If the default is a list, the text is split at commas and line ends.
    pub(super) fn parse(&self, key: &str, text: String) -> ValueKind {
        match self.find(key).map(|value| &value.kind) {
            Some(ValueKind::Array(_)) => {
                let items = text.split([',', '\n']).map(str::trim).filter(|item| !item.is_empty());
                ValueKind::Array(items.map(|item| Value::from(item.to_owned())).collect())
            }
            _ => ValueKind::String(text),
        }
    }
}

/// Whether the key matches the pattern, which may contain a wildcard.
fn matches(pattern: &str, key: &str) -> bool {
    let (mut pattern, mut key) = (pattern.split('.'), key.split('.'));
    loop {
        match (pattern.next(), key.next()) {
            (None, None) => return true,
            (Some(WILDCARD), Some(name)) if is_name(name) => {}
            (Some(part), Some(same)) if part == same && part != WILDCARD => {}
            _ => return false,
        }
    }
}

/// Whether the name is valid for a named table: environment variables can express it too.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    !name.is_empty() && name.bytes().all(plain)
}

/// The pattern with its wildcards replaced by the names in `key`.
fn instantiate(pattern: &str, key: &str) -> String {
    let mut names = key.split('.');
    let parts = pattern.split('.').map(|part| match names.next() {
        Some(name) if part == WILDCARD && is_name(&name.to_lowercase()) => name.to_lowercase(),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join(".")
}

/// The dotted keys and values of all entries that are not tables.
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
