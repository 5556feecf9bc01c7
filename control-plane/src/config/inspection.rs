//! The settings as an operator looks at them before a start: what holds, who said it, and all that is wrong.

use super::{Config, ConfigError, layers};
use countersign_process::settings::MergedSettings;
use std::path::PathBuf;

/// Keys whose values are printed for nobody. A test finds those that are missing here.
const SECRETS: [&str; 4] = ["database.url", "redis.url", "redis.sentinel_password", "secrets.master_key"];

/// All layers, put together and not used.
pub struct Inspection {
    gathered: MergedSettings,
    dev: bool,
}

impl Inspection {
    /// Reads all layers.
    pub fn read(
        file: Option<PathBuf>,
        environment: Vec<(String, String)>,
        flags: Vec<(String, String)>,
        dev: bool,
    ) -> Result<Self, ConfigError> {
        Ok(Self { gathered: layers(file, environment, flags, dev).merge()?, dev })
    }

    /// Everything for which a start would be refused.
    pub fn problems(&self) -> Vec<String> {
        match self.gathered.read_or_list_errors::<Config>() {
            Ok(config) => Config { dev: self.dev, ..config }.problems(),
            Err(problems) => problems,
        }
    }

    /// What holds, if it reads.
    pub fn config(&self) -> Option<Config> {
        self.gathered.read_or_list_errors().ok()
    }

    /// What holds, as TOML; secrets are hidden.
    pub fn print(&self) -> String {
        self.gathered.to_toml(&SECRETS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inspect(flags: &[(&str, &str)]) -> Inspection {
        let flags = flags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Inspection::read(None, Vec::new(), flags, true).unwrap()
    }

    #[test]
    fn a_setting_that_does_not_print_elsewhere_is_not_printed_here() {
        let marker = "unmistakable-4711";
        let keys: Vec<_> = toml::from_str::<toml::Table>(&inspect(&[]).print()).unwrap().into_iter().collect();
        let tables = keys.iter().filter_map(|(name, value)| Some((name, value.as_table()?)));
        let keys = tables.flat_map(|(table, keys)| keys.keys().map(move |key| format!("{table}.{key}")));
        let mut tried = 0;
        for key in keys {
            let inspection = inspect(&[(&key, marker)]);
            let Ok(config) = inspection.gathered.read_or_list_errors::<Config>() else { continue };
            tried += 1;
            let shown = format!("{config:?}").contains(marker);
            assert_eq!(inspection.print().contains(marker), shown, "{key}: is it a secret?");
        }
        assert!(tried > 4, "{tried}");
    }
}
