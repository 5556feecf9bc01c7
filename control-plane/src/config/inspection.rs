//! Lists the effective settings with their sources, and all problems in the settings, without starting the server.

use super::{Config, ConfigError, layers};
use countersign_process::settings::MergedSettings;
use std::path::PathBuf;

/// Keys whose values are never printed. A test checks that the list of secret keys is complete.
const SECRETS: [&str; 4] = ["database.url", "redis.url", "secrets.master_key", "secrets.previous_master_keys"];

/// The settings from all sources, merged but not yet parsed.
pub struct ConfigInspection {
    merged: MergedSettings,
    dev: bool,
}

impl ConfigInspection {
    /// Merges the defaults, the file, the environment and the flags.
    pub fn read(
        file: Option<PathBuf>,
        environment: Vec<(String, String)>,
        flags: Vec<(String, String)>,
        dev: bool,
    ) -> Result<Self, ConfigError> {
        Ok(Self { merged: layers(file, environment, flags, dev).merge()?, dev })
    }

    /// All problems in the settings for which the server would refuse to start. The files that settings name are not checked.
    pub fn problems(&self) -> Vec<String> {
        match self.merged.read_or_list_errors::<Config>() {
            Ok(config) => Config { dev: self.dev, ..config }.problems(),
            Err(problems) => problems,
        }
    }

    /// The effective settings, if they can be parsed.
    pub fn config(&self) -> Option<Config> {
        self.merged.read_or_list_errors().ok().map(|config: Config| Config { dev: self.dev, ..config })
    }

    /// The effective settings as TOML, without secrets.
    pub fn print(&self) -> String {
        self.merged.to_toml(&SECRETS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inspect(flags: &[(&str, &str)]) -> ConfigInspection {
        let flags = flags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        ConfigInspection::read(None, Vec::new(), flags, true).unwrap()
    }

    #[test]
    fn settings_hidden_in_debug_output_are_hidden_in_print() {
        let marker = "unique-marker-4711";
        let keys: Vec<_> = toml::from_str::<toml::Table>(&inspect(&[]).print()).unwrap().into_iter().collect();
        let tables = keys.iter().filter_map(|(name, value)| Some((name, value.as_table()?)));
        let keys = tables.flat_map(|(table, keys)| keys.keys().map(move |key| format!("{table}.{key}")));
        let mut tested = 0;
        for key in keys {
            let inspection = inspect(&[(&key, marker)]);
            // Skip settings that are a number or a flag: the marker is a text.
            let Ok(config) = inspection.merged.read_or_list_errors::<Config>() else { continue };
            tested += 1;
            let is_visible = format!("{config:?}").contains(marker);
            assert_eq!(inspection.print().contains(marker), is_visible, "{key}: `print` and `Debug` differ");
        }
        assert!(tested > 4, "{tested}");
    }
}
