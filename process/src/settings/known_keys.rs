//! The valid keys, which the default file defines.
//!
//! In the default file, a table named `*` is a wildcard: the operator can add any number of named tables that have its
//! keys and default values.

use super::SettingsError;
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

    pub(super) fn get(&self, key: &str, source_name: &str) -> Result<&Value, SettingsError> {
        self.find(key).ok_or_else(|| SettingsError::Unknown {
            key: key.to_owned(),
            source_name: source_name.to_owned(),
            hint: self.hint(key),
        })
    }

    /// The keys and default values of the named table that contains `key`. Empty if `key` is not in a named table.
    pub(super) fn table_defaults(&self, key: &str) -> Vec<(String, Value)> {
        let Some((pattern, _)) = self.0.iter().find(|(pattern, _)| matches(pattern, key)) else { return Vec::new() };
        let Some((table, _)) = pattern.split_once(".*.") else { return Vec::new() };
        let siblings = self
            .0
            .iter()
            .filter(|(pattern, _)| pattern.strip_prefix(table).is_some_and(|rest| rest.starts_with(".*.")));
        siblings.map(|(pattern, value)| (fill_wildcards(pattern, key), value.clone())).collect()
    }

    /// What an unknown key may stand for: the most similar key, or else the keys of its table. Empty if nothing is similar.
    fn hint(&self, key: &str) -> String {
        let candidates: Vec<_> = self.0.keys().map(|pattern| fill_wildcards(pattern, key)).collect();
        let (table, name) = split(key);
        let siblings: Vec<_> = candidates.iter().filter(|candidate| split(candidate).0 == table).collect();
        // A key of an existing table is not taken for one of another table.
        let nearest = if siblings.is_empty() {
            nearest(&candidates, |candidate| candidate, key)
        } else {
            nearest(siblings.iter().copied(), |sibling| split(sibling).1, name)
        };
        let longer_or_shorter = siblings.iter().find(|sibling| {
            let sibling = split(sibling).1;
            !name.is_empty() && (sibling.starts_with(name) || name.starts_with(sibling))
        });
        match longer_or_shorter.copied().or(nearest) {
            Some(nearest) => format!(": did you mean `{nearest}`?"),
            None if table.is_empty() || siblings.is_empty() => String::new(),
            None => {
                let names: Vec<_> = siblings.iter().map(|sibling| format!("`{}`", split(sibling).1)).collect();
                format!(": the settings of `{table}` are {}", names.join(", "))
            }
        }
    }

    /// Converts one text in the file to a list, if the default is a list.
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

/// The table of a key, which is empty for a key outside tables, and the name in it.
fn split(key: &str) -> (&str, &str) {
    key.rsplit_once('.').unwrap_or(("", key))
}

/// The candidate whose compared part is the most similar to `text`; `None` if more than a quarter of the characters differ.
fn nearest<'a>(
    candidates: impl IntoIterator<Item = &'a String>,
    compared: impl Fn(&str) -> &str,
    text: &str,
) -> Option<&'a String> {
    let distance = |candidate: &String| strsim::osa_distance(compared(candidate), text);
    let nearest = candidates.into_iter().min_by_key(|candidate| distance(candidate))?;
    (distance(nearest) * 4 <= compared(nearest).len().max(text.len())).then_some(nearest)
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

/// Returns whether a named table can have this name. A table name may contain only characters that the names of
/// environment variables can express.
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
