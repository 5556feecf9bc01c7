//! Loads the rules file at the start, and again when it changes. If it has an error at the start, the sidecar does not start. If a
//! changed file has an error, the sidecar keeps its rules.

use super::AuthorizerError;
use crate::{
    config::{RulesSettings, read_at_most},
    metrics::Metrics,
    rules::{MAX_FILE_BYTES, RuleSet},
};
use arc_swap::ArcSwap;
use countersign_process::{
    Clock,
    file_reload::{FileContents, FileReloader, LoadedFiles},
};
use std::sync::Arc;

const KEY: &str = "rules.file";

/// How many warnings about a rules file are logged at most. The command `rules check` prints all.
const MAX_LOGGED_WARNINGS: usize = 10;

/// Loads the rules, and returns the task that reloads them. If the settings name no rules file, there are no rules and no task.
pub fn load(
    settings: &RulesSettings,
    metrics: &Arc<Metrics>,
    clock: &Arc<dyn Clock>,
) -> Result<(Arc<ArcSwap<RuleSet>>, Option<FileReloader>), AuthorizerError> {
    let Some(path) = &settings.file else { return Ok((Arc::default(), None)) };
    let in_file = |error: &dyn std::fmt::Display| {
        error.to_string().lines().map(|line| format!("{}: {line}", path.display())).collect::<Vec<_>>().join("\n")
    };
    let content =
        read_at_most(path, MAX_FILE_BYTES).map_err(|error| AuthorizerError::unavailable(KEY, in_file(&error)))?;
    let initial = RuleSet::parse(&content).map_err(|error| AuthorizerError::setting(KEY, in_file(&error)))?;
    metrics.rules_loaded(initial.count());
    log_warnings(&initial);
    let rules = Arc::new(ArcSwap::from_pointee(initial));
    let (in_use, metrics_of_reload) = (Arc::clone(&rules), Arc::clone(metrics));
    let reload = move |contents: &FileContents| {
        // There is always one content, because `files` has one path.
        let content = contents.first().map(|content| content.as_slice()).unwrap_or_default();
        let changed = RuleSet::parse(content).map_err(|errors| errors.to_string())?;
        let description = format!("{} rules", changed.count());
        metrics_of_reload.rules_loaded(changed.count());
        log_warnings(&changed);
        in_use.store(Arc::new(changed));
        Ok(description)
    };
    let files = LoadedFiles::new(KEY, &[(path, &content)]);
    let reloader = FileReloader::new(files, Box::new(reload), &metrics.file_reloads, Arc::clone(clock));
    Ok((rules, Some(reloader)))
}

fn log_warnings(rules: &RuleSet) {
    for warning in rules.warnings().into_iter().take(MAX_LOGGED_WARNINGS) {
        tracing::warn!(setting = KEY, "{warning}");
    }
}
