//! Errors of usage: the message of the parser, the usage line of the command, and the next step.
//!
//! Invariant: an error does not repeat an argument that may be a misplaced secret, and does not suggest a command that
//! cannot be undone.

use super::{
    environment::{arguments, variable},
    error::CliError,
    help,
    ids::{LONGEST_ID, agent_id, redacted_argument},
    time::positive_duration,
};
use clap::{
    Arg, Command,
    error::{ContextKind, ContextValue, ErrorKind},
};
use countersign_client::Profiles;

/// The length of the longest names of commands and flags. Anything longer may be a token or a key, so errors do not repeat it.
const LONGEST_NAME: usize = 24;

/// Names that no error suggests: a mistyped command must not become one that cannot be undone.
const NEVER_SUGGESTED: [&str; 5] = ["delete", "revoke", "rotate", "rotate-secret", "--yes"];

/// Fields of the API whose argument has another name. All other arguments are named like their field.
const ARGUMENTS_BY_FIELD: [(&str, &str); 7] = [
    ("agentId", "agent"),
    ("expiresAt", "expires"),
    ("issuer", "to_issuer"),
    ("roleId", "role"),
    ("serviceId", "service"),
    ("subject", "to"),
    ("url", "target"),
];

/// The usage line of the command that this process runs, such as `countersign role delete [OPTIONS] <ROLE>`.
pub fn usage_line() -> String {
    let usage = invoked_command(&arguments()).render_usage().to_string();
    usage.trim_start_matches("Usage: ").trim().to_owned()
}

/// The argument of the command that sets this field of the API, such as `--expires` for `expiresAt`.
pub fn argument_for_field(field: &str) -> Option<String> {
    find_argument(&invoked_command(&arguments()), field)
}

/// The command line that prints the help of the command that this process runs.
pub fn help_command() -> String {
    format!("{} --help", name(&invoked_command(&arguments())))
}

pub fn error(mut error: clap::Error) -> CliError {
    let next = next_step(&error, &arguments());
    redact(&mut error);
    CliError::usage(message(error)).with_next(next)
}

/// The command that the arguments before the first invalid argument select.
///
/// We do not use the usage line of a clap error: some errors have none, and it requires arguments that the environment sets.
fn invoked_command(arguments: &[String]) -> Command {
    let mut command = help::command();
    command.build();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            break;
        } else if argument.starts_with('-') {
            if has_separate_value(&command, argument) {
                arguments.next();
            }
        } else if let Some(subcommand) = command.find_subcommand(argument) {
            command = subcommand.clone();
        } else {
            break;
        }
    }
    command
}

fn has_separate_value(command: &Command, option: &str) -> bool {
    let matches = |candidate: &&Arg| match option.strip_prefix("--") {
        Some(long) => candidate.get_long() == Some(long),
        None => candidate.get_short().is_some_and(|short| option.ends_with(short)),
    };
    command.get_arguments().find(matches).is_some_and(|found| found.get_action().takes_values())
}

fn find_argument(command: &Command, field: &str) -> Option<String> {
    // An error in a list names the field with the index of the item, such as `permissions[0]`.
    let field = field.split(['[', '.']).next()?;
    let renamed = ARGUMENTS_BY_FIELD.iter().find(|(name, _)| *name == field).map(|(_, id)| (*id).to_owned());
    let id = renamed.unwrap_or_else(|| snake_case(field));
    let argument = command.get_arguments().find(|argument| *argument.get_id() == id && !argument.is_hide_set())?;
    match argument.get_long() {
        Some(long) => Some(format!("--{long}")),
        None => argument.get_value_names()?.first().map(ToString::to_string),
    }
}

fn snake_case(field: &str) -> String {
    field.chars().fold(String::new(), |mut name, character| {
        if character.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(character.to_ascii_lowercase());
        name
    })
}

fn name(command: &Command) -> &str {
    command.get_bin_name().unwrap_or_else(|| command.get_name())
}

fn next_step(error: &clap::Error, arguments: &[String]) -> String {
    let command = invoked_command(arguments);
    let name = name(&command);
    if unknown_argument(error) == Some("--url") {
        let target = find_argument(&command, "url").filter(|target| target.starts_with("--"));
        let target = target.map(|target| format!("`{target}` is the URL of the receiver, ")).unwrap_or_default();
        return format!("{target}`--server` is the URL of the control plane");
    }
    if let Some(option) = misplaced_option(error, &command) {
        return format!("put `{option}` after the verb: countersign NOUN VERB {option} …");
    }
    if let Some(next) = next_for_missing_agent(error, name, arguments) {
        return next;
    }
    if let Some(duration) = duration_after_wait(error, arguments) {
        return format!("write --wait={duration}");
    }
    if let Some(suggestion) = suggestion(error) {
        return format!("did you mean `{suggestion}`? `{name} --help` lists the valid names");
    }
    if name == "countersign agent exec" && !arguments.iter().any(|argument| argument == "--") {
        return "put `--` before the command: countersign agent exec -- CMD".to_owned();
    }
    format!("`{name} --help` shows what it accepts")
}

fn unknown_argument(error: &clap::Error) -> Option<&str> {
    text(error, ContextKind::InvalidArg).filter(|_| error.kind() == ErrorKind::UnknownArgument)
}

/// A duration that the user wrote after `--wait` without the necessary `=`.
fn duration_after_wait<'a>(error: &clap::Error, arguments: &'a [String]) -> Option<&'a str> {
    let typed = unknown_argument(error)?;
    let follows_wait = |pair: &&[String]| pair[0] == "--wait" && pair[1] == typed && positive_duration(typed).is_ok();
    arguments.windows(2).find(follows_wait).map(|pair| pair[1].as_str())
}

/// An unknown option that the user probably placed before the verb, because a subcommand has an option of this name.
fn misplaced_option<'a>(error: &'a clap::Error, command: &Command) -> Option<&'a str> {
    let typed = unknown_argument(error)?;
    let option = typed.split('=').next()?;
    let long = option.strip_prefix("--")?;
    let has_option = |command: &Command| {
        command.get_arguments().any(|argument| argument.get_long() == Some(long) && !argument.is_hide_set())
    };
    let subcommands = command.get_subcommands().flat_map(|noun| std::iter::once(noun).chain(noun.get_subcommands()));
    std::iter::once(command).chain(subcommands).any(has_option).then_some(option)
}

/// The next step if a command on roles lacks the argument AGENT. The step names the profile's agent, but the user has to choose.
fn next_for_missing_agent(error: &clap::Error, name: &str, arguments: &[String]) -> Option<String> {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != ErrorKind::MissingRequiredArgument
        || !name.starts_with("countersign role ")
        || !missing.iter().any(|argument| argument == "<AGENT>")
    {
        return None;
    }
    let profile = profile_name(arguments);
    let agent = Profiles::of_user().and_then(|profiles| profiles.load(&profile)).ok().and_then(|loaded| loaded.agent);
    let agent = agent.and_then(|id| agent_id(id).ok());
    Some(match agent {
        Some(agent) => format!("pass the id of the agent as AGENT; the agent of the profile `{profile}` is {agent}"),
        None => "pass the id of the agent as AGENT; `countersign agent register` prints the id".to_owned(),
    })
}

/// The name of the profile that the arguments or the environment select.
fn profile_name(arguments: &[String]) -> String {
    let separate = arguments.windows(2).filter(|pair| pair[0] == "--profile").map(|pair| pair[1].clone());
    let joined = arguments.iter().filter_map(|argument| argument.strip_prefix("--profile=").map(str::to_owned));
    let selected = separate.chain(joined).next();
    selected.or_else(|| variable("COUNTERSIGN_PROFILE")).unwrap_or_else(|| "default".to_owned())
}

/// A valid name that is similar to the typed one.
fn suggestion(error: &clap::Error) -> Option<String> {
    let (typed, suggested) = match error.kind() {
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        ErrorKind::InvalidValue => (ContextKind::InvalidValue, ContextKind::SuggestedValue),
        _ => return None,
    };
    let typed = text(error, typed)?;
    let candidates = match error.get(suggested)? {
        ContextValue::String(name) => std::slice::from_ref(name),
        ContextValue::Strings(names) => names,
        _ => return None,
    };
    let allowed = |name: &&String| is_similar(typed, name) && !NEVER_SUGGESTED.contains(&name.as_str());
    candidates.iter().find(allowed).cloned()
}

/// Whether at most a third of the characters differs. Clap is less strict: it would suggest `zsh` for `tcsh`.
fn is_similar(typed: &str, candidate: &str) -> bool {
    let longest = typed.chars().count().max(candidate.chars().count());
    strsim::osa_distance(typed, candidate) * 3 <= longest
}

/// Replaces by `…` an argument that the command does not take, and text that may be a secret.
fn redact(error: &mut clap::Error) {
    let (kind, longest) = match error.kind() {
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, LONGEST_NAME),
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, LONGEST_NAME),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => (ContextKind::InvalidValue, LONGEST_ID),
        _ => return,
    };
    let Some(typed) = text(error, kind) else { return };
    let is_surplus = kind == ContextKind::InvalidArg && !typed.starts_with('-');
    let shown = if is_surplus { "…" } else { redacted_argument(typed, longest) }.to_owned();
    error.insert(kind, ContextValue::String(shown));
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    }
}

/// The message of the parser, without its prefix, tips and usage.
fn message(mut error: clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "a subcommand is required".to_owned();
    }
    for kind in [
        ContextKind::Suggested,
        ContextKind::SuggestedArg,
        ContextKind::SuggestedCommand,
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedValue,
        ContextKind::Usage,
    ] {
        error.remove(kind);
    }
    let text = error.render().to_string();
    let message = text.split("\n\nFor more information").next().unwrap_or_default();
    message.trim_start_matches("error: ").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invoked(line: &str) -> String {
        name(&invoked_command(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())).to_owned()
    }

    #[test]
    fn invoked_command_skips_the_values_of_options() {
        for (line, expected) in [
            ("role assign reader", "countersign role assign"),
            ("--profile agent role list", "countersign role list"),
            ("-qo json --timeout=5s key list --bogus", "countersign key list"),
            ("role lst", "countersign role"),
            ("agent exec -- role list", "countersign agent exec"),
            ("nonsense", "countersign"),
        ] {
            assert_eq!(invoked(line), expected, "{line}");
        }
    }

    #[test]
    fn fields_of_the_api_have_arguments() {
        for (line, field, argument) in [
            ("role assign", "expiresAt", Some("--expires")),
            ("role create", "permissions[1]", Some("--permission")),
            ("role create", "name", Some("NAME")),
            ("key create", "name", Some("--name")),
            ("webhook create", "url", Some("URL")),
            ("webhook change", "url", Some("--target")),
            ("audit list", "agentId", Some("--agent")),
            ("role create", "url", None),
        ] {
            let command = invoked_command(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(find_argument(&command, field).as_deref(), argument, "{line} {field}");
        }
    }

    #[test]
    fn similar_names_differ_in_few_characters() {
        for (typed, candidate, expected) in
            [("lst", "list", true), ("--quie", "--quiet", true), ("tcsh", "zsh", false), ("nope", "role", false)]
        {
            assert_eq!(is_similar(typed, candidate), expected, "{typed} {candidate}");
        }
    }
}
