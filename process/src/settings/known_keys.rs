//! The valid keys, which the default file defines.
//!
//! In the default file, a table named `*` is a wildcard: in its place, the operator can add any number of tables with names. Each
//! such table has the keys and default values of the wildcard.

use config::{Config, Value, ValueKind};
use std::collections::BTreeMap;

/// The name of a wildcard table in the default file.
const WILDCARD: &str = "*";

/// The valid keys with their default values.
pub(super) struct KnownKeys(BTreeMap<String, Value>);

impl KnownKeys {
    pub(super) fn from_defaults(defaults: &Config) -> Self {
        Self(flatten(&defaults.cache))
    }

    /// The keys outside wildcard tables, which every configuration has.
    pub(super) fn without_wildcards(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0.iter().filter(|(key, _)| !key.split('.').any(|part| part == WILDCARD))
    }

    /// The default value of a key; `None` if the key is unknown.
    pub(super) fn find(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(pattern, _)| matches(pattern, key)).map(|(_, value)| value)
    }

    /// The keys and default values of the wildcard table of `key`, with the names of `key` in place of `*`. Empty if it has none.
    pub(super) fn table_defaults(&self, key: &str) -> Vec<(String, Value)> {
        let Some((pattern, _)) = self.0.iter().find(|(pattern, _)| matches(pattern, key)) else { return Vec::new() };
        let Some((table, _)) = pattern.split_once(".*.") else { return Vec::new() };
        let siblings = self
            .0
            .iter()
            .filter(|(pattern, _)| pattern.strip_prefix(table).is_some_and(|rest| rest.starts_with(".*.")));
        siblings.map(|(pattern, value)| (fill_wildcards(pattern, key), value.clone())).collect()
    }

    /// Suggests what the operator may have meant by an unknown key: the most similar key, or else all keys of its table, if any.
    pub(super) fn hint(&self, key: &str) -> String {
        let (table, name) = split(key);
        let mut candidates: Vec<_> = self.0.keys().map(|pattern| fill_wildcards(pattern, key)).collect();
        let has_table = candidates.iter().any(|candidate| split(candidate).0 == table);
        if has_table {
            // The operator has named a table that exists, so keys of other tables are not suggested.
            candidates.retain(|candidate| split(candidate).0 == table);
        }
        let has_same_start = |candidate: &str| {
            let other = split(candidate).1;
            has_table && !name.is_empty() && (other.starts_with(name) || name.starts_with(other))
        };
        let distance = |candidate: &str| strsim::osa_distance(candidate, key);
        let nearest = candidates.iter().min_by_key(|candidate| (!has_same_start(candidate), distance(candidate)));
        // At least three quarters of the characters must be the same. The name of an existing table does not count: it is always the same.
        let shared = if has_table { key.len() - name.len() } else { 0 };
        let is_similar = |candidate: &&String| {
            has_same_start(candidate) || distance(candidate) * 4 <= candidate.len().max(key.len()) - shared
        };
        if let Some(nearest) = nearest.filter(is_similar) {
            return format!(": did you mean `{nearest}`?");
        }
        if table.is_empty() || !has_table {
            return String::new();
        }
        let names: Vec<_> = candidates.iter().map(|candidate| format!("`{}`", split(candidate).1)).collect();
        format!(": the settings of `{table}` are {}", names.join(", "))
    }

    /// If the default is a list, splits a text as [`Self::parse`] does: the operator's file may contain a text or a list.
    pub(super) fn split_text(&self, key: &str, value: Value) -> Value {
        match (&value.kind, self.find(key).map(|default| &default.kind)) {
            (ValueKind::String(text), Some(ValueKind::Array(_))) => self.parse(key, text.clone()).into(),
            _ => value,
        }
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

/// The table of a key, which is empty for a key outside tables, and its name in this table.
fn split(key: &str) -> (&str, &str) {
    key.rsplit_once('.').unwrap_or(("", key))
}

/// Returns whether the key matches the pattern, which may contain wildcards.
fn matches(pattern: &str, key: &str) -> bool {
    let (mut pattern, mut key) = (pattern.split('.'), key.split('.'));
    loop {
        match (pattern.next(), key.next()) {
            (None, None) => return true,
            (Some(WILDCARD), Some(name)) if is_table_name(name) => {}
            (Some(part), Some(same)) if part == same && part != WILDCARD => {}
            _ => return false,
        }
    }
}

/// Returns whether a table in place of a wildcard can have this name: environment variables must be able to express it.
fn is_table_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    !name.is_empty() && name.bytes().all(is_allowed)
}

/// Replaces the wildcards of the pattern with the names in `key`.
fn fill_wildcards(pattern: &str, key: &str) -> String {
    let mut names = key.split('.');
    let parts = pattern.split('.').map(|part| match names.next() {
        Some(name) if part == WILDCARD && is_table_name(&name.to_lowercase()) => name.to_lowercase(),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join(".")
}

/// Converts nested tables to dotted keys with their values.
pub(super) fn flatten(root: &Value) -> BTreeMap<String, Value> {
    let mut flattened = BTreeMap::new();
    let mut pending: Vec<(String, Value)> = vec![(String::new(), root.clone())];
    while let Some((path, value)) = pending.pop() {
        match value.kind {
            ValueKind::Table(entries) => pending.extend(
                entries
                    .into_iter()
                    .map(|(name, value)| (if path.is_empty() { name } else { format!("{path}.{name}") }, value)),
            ),
            _ => drop(flattened.insert(path, value)),
        }
    }
    flattened
}
