//! Shell completion of commands, options and values. The completion script of a shell runs `countersign` to get candidates.
//!
//! The candidates for values come from the profiles on this machine. Completion sends no request, to be fast and use no credential.

use super::{error::CliError, output::CommandOutput};
use clap_complete::{
    CompletionCandidate, Shell,
    env::{EnvCompleter, Shells},
};
use countersign_client::{Profile, Profiles, webhook::EVENT_KINDS};
use std::ffi::OsStr;

pub const HELP: &str = "\
Examples:
  $ countersign completions bash > ~/.local/share/bash-completion/completions/countersign
  $ countersign completions zsh > ~/.zfunc/_countersign
  $ countersign completions fish > ~/.config/fish/completions/countersign.fish

Values are completed too: names of profiles, and the ids of agents and services in them.

Next: start a new shell, and press Tab after `countersign `";

/// The environment variable that completion scripts set when they request candidates.
pub const VARIABLE: &str = "_COUNTERSIGN_COMPLETE";

const AUDIT_ACTIONS: [&str; 31] = [
    "agent.deleted",
    "agent.left",
    "agent.registered",
    "agent.service_readmitted",
    "agent.status_changed",
    "audit.archived",
    "audit.began",
    "database.restored",
    "master_key.rotated",
    "role.assigned",
    "role.changed",
    "role.created",
    "role.deleted",
    "role.revoked",
    "service.changed",
    "service.created",
    "service.deleted",
    "service.transfer_offered",
    "service.transfer_withdrawn",
    "service.transferred",
    "service_key.created",
    "service_key.revoked",
    "signing_key.revoked",
    "signing_key.rotated",
    "webhook.changed",
    "webhook.created",
    "webhook.deleted",
    "webhook.disabled",
    "webhook.replayed",
    "webhook.secret_rotated",
    "webhook.tested",
];

pub fn script(shell: Shell) -> Result<CommandOutput, CliError> {
    let shells = Shells::builtins();
    let unknown = || CliError::usage(format!("no completion for {shell}"));
    let completer: &dyn EnvCompleter = shells.completer(&shell.to_string()).ok_or_else(unknown)?;
    let mut script = Vec::new();
    let written = completer.write_registration(VARIABLE, "countersign", "countersign", "countersign", &mut script);
    written.map_err(|error| CliError::failed(format!("completion script: {error}")))?;
    Ok(CommandOutput::raw(script))
}

pub fn profile_names() -> Vec<CompletionCandidate> {
    let names = Profiles::of_user().map(|profiles| profiles.names()).unwrap_or_default();
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// The ids of the agents in the profiles.
pub fn agent_ids() -> Vec<CompletionCandidate> {
    from_profiles(|profile| profile.agent)
}

/// The ids of the services in the profiles.
pub fn service_ids() -> Vec<CompletionCandidate> {
    from_profiles(|profile| profile.service.or(profile.audience))
}

/// The event kinds, as candidates for the last item of a comma-separated list.
pub fn event_kinds(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let (complete, last) = typed.rsplit_once(',').map_or(("", &*typed), |(complete, last)| (complete, last));
    let separator = if complete.is_empty() { "" } else { "," };
    let kinds = EVENT_KINDS.into_iter().filter(|kind| kind.starts_with(last));
    kinds.map(|kind| CompletionCandidate::new(format!("{complete}{separator}{kind}"))).collect()
}

pub fn audit_actions() -> Vec<CompletionCandidate> {
    AUDIT_ACTIONS.into_iter().map(CompletionCandidate::new).collect()
}

/// The values of a field in all profiles, each with the name of its profile. Skips profiles that cannot be read.
fn from_profiles(value: impl Fn(Profile) -> Option<String>) -> Vec<CompletionCandidate> {
    let Ok(profiles) = Profiles::of_user() else { return Vec::new() };
    let candidate = |name: String| {
        let value = value(profiles.load(&name).ok()?)?;
        Some(CompletionCandidate::new(value).help(Some(format!("profile {name}").into())))
    };
    profiles.names().into_iter().filter_map(candidate).collect()
}
