//! The API keys that open sync streams. When their file changes, the next connection uses the new keys, and open streams continue.

use super::AuthorizerError;
use crate::{
    config::{ApiKey, SyncSettings},
    metrics::Metrics,
    sync::Authorization,
};
use arc_swap::ArcSwap;
use countersign_process::{
    Clock,
    file_reload::{FileContents, FileReloader, LoadedFiles},
};
use std::sync::Arc;
use tonic::metadata::{Ascii, MetadataValue};

/// The credentials of all API keys, in their order in the settings.
pub fn authorizations(settings: &SyncSettings) -> Result<Vec<Authorization>, AuthorizerError> {
    let authorization = |key| Ok(Arc::new(ArcSwap::from_pointee(authorization_metadata(key)?)));
    let all: Result<_, String> = settings.keys.iter().map(authorization).collect();
    all.map_err(|error| AuthorizerError::setting("sync.keys", error))
}

/// Replaces credentials when the file with the API keys changes. `None` if the API keys are not in a file.
pub fn follow_keys_file(
    settings: &SyncSettings,
    authorizations: &[Authorization],
    metrics: &Metrics,
    clock: &Arc<dyn Clock>,
) -> Option<FileReloader> {
    let path = settings.keys_file.as_deref()?;
    // If the file has changed since the settings were read, we tell the reloader that an empty file is in use, so that it loads
    // this one.
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let is_in_use = ApiKey::parse_list(&text).is_ok_and(|keys| exposed(&keys) == exposed(&settings.keys));
    let content: &[u8] = if is_in_use { text.as_bytes() } else { &[] };
    let (mut keys, authorizations) = (settings.keys.clone(), authorizations.to_vec());
    let load = move |contents: &FileContents| {
        let text = contents.first().and_then(|content| std::str::from_utf8(content).ok()).ok_or("is not UTF-8 text")?;
        let changed = replace_keys(&keys, ApiKey::parse_list(text)?)?;
        let values: Vec<_> = changed.iter().map(authorization_metadata).collect::<Result<_, _>>()?;
        for (authorization, value) in authorizations.iter().zip(values) {
            authorization.store(Arc::new(value));
        }
        keys = changed;
        Ok("API keys for the next connections to the control plane".to_owned())
    };
    let files = LoadedFiles::new("sync.keys", &[(path, content)]);
    Some(FileReloader::new(files, Box::new(load), &metrics.file_reloads, Arc::clone(clock)))
}

/// The API keys to use after the file has changed. A key that is still in the file keeps its index, because its sync stream
/// continues. New keys get the indexes of the keys that were removed.
fn replace_keys(in_use: &[ApiKey], in_file: Vec<ApiKey>) -> Result<Vec<ApiKey>, String> {
    let (old, new) = (in_use.len(), in_file.len());
    if old != new {
        return Err(format!("contains {new} API keys instead of {old}: restart the sidecar to change their number"));
    }
    let contains = |keys: &[ApiKey], key: &ApiKey| keys.iter().any(|other| other.expose() == key.expose());
    let kept: Vec<_> = in_use.iter().map(|key| contains(&in_file, key)).collect();
    let mut new_keys = in_file.into_iter().filter(|key| !contains(in_use, key));
    let key_at_place = |(key, is_kept): (&ApiKey, bool)| if is_kept { Some(key.clone()) } else { new_keys.next() };
    let changed: Option<_> = in_use.iter().zip(kept).map(key_at_place).collect();
    // Both lists have the same length, so the new keys suffice unless the file contains a key twice.
    changed.ok_or_else(|| "contains an API key twice".to_owned())
}

fn exposed(keys: &[ApiKey]) -> Vec<&str> {
    keys.iter().map(ApiKey::expose).collect()
}

fn authorization_metadata(key: &ApiKey) -> Result<MetadataValue<Ascii>, String> {
    let mut value = MetadataValue::try_from(format!("Bearer {}", key.expose()))
        .map_err(|_| "contains a key that is not valid in a header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each letter stands for an API key.
    fn replace(in_use: &str, in_file: &str) -> Result<String, String> {
        let keys = |text: &str| {
            let key = |letter: char| if letter.is_alphabetic() { format!("svc_sk_{letter}") } else { letter.into() };
            ApiKey::parse_list(&text.chars().map(key).collect::<String>()).unwrap()
        };
        replace_keys(&keys(in_use), keys(in_file)).map(|keys| exposed(&keys).join(" ").replace("svc_sk_", ""))
    }

    #[test]
    fn new_key_takes_the_place_of_the_removed_one() {
        assert_eq!(replace("a\nb\nc", "a\nx\nc").unwrap(), "a x c");
        assert_eq!(replace("a\nb\nc", "c\na\nx\n").unwrap(), "a x c");
        assert_eq!(replace("a, b", "b\r\na").unwrap(), "a b");
        assert!(replace("a", "a\nb").unwrap_err().contains("2 API keys instead of 1"));
        assert!(replace("a\nb", "").unwrap_err().contains("0 API keys instead of 2"));
        assert!(replace("a\nb", "a\na").unwrap_err().contains("twice"));
    }

    #[test]
    fn text_that_is_no_api_key_is_refused() {
        for text in ["<html>", "garbage", "svc_sk_", "svc_sk_a b", "{\"error\":\"not found\"}"] {
            assert!(ApiKey::parse_list(text).is_err(), "{text}");
        }
    }
}
