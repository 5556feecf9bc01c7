//! The help of `countersign` itself: its commands by group, with examples.

use super::commands::Arguments;
use clap::{Command, CommandFactory};
use std::fmt::Write;

/// The groups of commands, in the order of the help.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Agent commands", &["agent", "token"]),
    ("Commands of human users", &["login", "whoami", "logout"]),
    ("Service commands", &["service", "key", "role", "sidecar", "webhook", "envoy"]),
    ("Declared state commands", &["apply", "export"]),
    ("Administration commands", &["audit", "signing-key"]),
    ("Other commands", &["doctor", "completions"]),
];

const AFTER_HELP: &str = "\
Examples:
  Create an agent and call a service:
    $ countersign agent keygen
    $ countersign agent register --server https://HOST:8443 --email YOU@EXAMPLE.ORG --name NAME
    $ countersign agent call https://service.example/

  Log in as a human user, and create a service:
    $ countersign login --server https://HOST:8443 --issuer https://LOGIN.EXAMPLE.ORG --client-id ID
    $ countersign service create Shop

  Give an agent a role, with COUNTERSIGN_SERVICE_ID and COUNTERSIGN_SERVICE_KEY set:
    $ countersign role create reader --permission read
    $ countersign role assign reader AGENT

  Try it with a development server, which writes these variables to a file:
    $ countersign-control-plane --dev
    $ set -a; . countersign-dev/dev.env; set +a

Environment:
  COUNTERSIGN_URL, COUNTERSIGN_CA    The control plane, and the authority that signed its certificate
  COUNTERSIGN_SERVICE_ID             The service that management commands use
  COUNTERSIGN_SERVICE_KEY            An API key of that service
  COUNTERSIGN_HUMAN_TOKEN            The token of a human user, instead of the token of `countersign login`
  COUNTERSIGN_SERVICE_KEY_FILE, COUNTERSIGN_HUMAN_TOKEN_FILE
                                     Files with the API key and the token, if these are not set
  COUNTERSIGN_ISSUER, COUNTERSIGN_CLIENT_ID, COUNTERSIGN_ISSUER_CA
                                     The issuer, client and authority for `countersign login`
  COUNTERSIGN_TOKEN                  An agent's token, for `countersign token`
  COUNTERSIGN_PROFILE                The profile
  An empty variable counts as not set. Flags override variables, which override the profile \
(~/.config/countersign/NAME.toml).

Exit codes:
  0  success
  1  failure
  2  wrong usage
  3  denied or not found
  4  unreachable
  10 `apply --dry-run --exit-code`: something would change
  `countersign agent exec` exits with the code of its program.

Next: countersign agent keygen --help";

pub fn command() -> Command {
    let command = Arguments::command();
    let mut groups = String::new();
    for (title, names) in GROUPS {
        let _infallible = writeln!(groups, "{title}:");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string);
            let _infallible = writeln!(groups, "  {name:12} {}", about.unwrap_or_default());
        }
        groups.push('\n');
    }
    let template =
        format!("{{about}}\n\n{{usage-heading}} {{usage}}\n\n{groups}Global options:\n{{options}}{{after-help}}");
    command
        .override_usage("countersign <COMMAND> <SUBCOMMAND> [OPTIONS]")
        .after_help(AFTER_HELP)
        .help_template(template)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_wraps_no_sentence_by_hand() {
        let mut commands = vec![command()];
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands().cloned());
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<_> = help.lines().collect();
            for pair in lines.windows(2) {
                let is_separate = pair[0].is_empty() || pair[0].ends_with([':', '.']) || pair[1].is_empty();
                let begins_entry = pair[1].starts_with("  ") || pair[1].starts_with("Next");
                assert!(is_separate || begins_entry, "{}: {pair:?}", command.get_name());
            }
        }
    }

    #[test]
    fn commands_are_valid_and_each_has_examples_and_a_next_step() {
        let mut root = command();
        root.build();
        root.clone().debug_assert();
        let mut commands = vec![root];
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands().filter(|command| command.get_name() != "help").cloned());
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let complete = help.contains("Examples:") && help.contains("Next");
            assert!(command.has_subcommands() || complete, "{}", command.get_name());
        }
    }

    #[test]
    fn root_help_lists_every_command() {
        let command = command();
        let listed: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let existing: Vec<_> =
            command.get_subcommands().map(Command::get_name).filter(|name| *name != "help").collect();
        assert!(existing.iter().all(|name| listed.contains(name)) && existing.len() == listed.len(), "{existing:?}");
    }
}
