//! Parsing of the command line, and errors of usage.
//!
//! Invariant: an error does not repeat an argument that may be a misplaced secret, and does not suggest a command that
//! cannot be undone.

use super::{Arguments, Messages, OutputFormat, error::USAGE, help, messages::print};
use clap::{
    Command, FromArgMatches,
    builder::Resettable,
    error::{ContextKind, ContextValue, ErrorKind},
};
use std::process::ExitCode;

/// No name of a command or a flag is longer. Tokens and keys are.
const LONGEST_NAME: usize = 24;

/// Names that no error suggests: a mistyped command must not become one that cannot be undone.
const NEVER_SUGGESTED: [&str; 5] = ["delete", "revoke", "rotate", "rotate-secret", "--yes"];

/// Parses the arguments of this process. Prints help, version and errors, and returns the exit code then.
pub fn parse() -> Result<Arguments, ExitCode> {
    let matches = without_empty_variables(help::command()).try_get_matches();
    matches.and_then(|matches| Arguments::from_arg_matches(&matches)).map_err(report)
}

/// An environment variable that is set and not empty.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

fn without_empty_variables(command: Command) -> Command {
    let command = command.mut_args(|argument| {
        let value = argument.get_env().and_then(std::env::var_os);
        if value.is_some_and(|value| value.to_string_lossy().trim().is_empty()) {
            argument.env(Resettable::Reset)
        } else {
            argument
        }
    });
    command.mut_subcommands(without_empty_variables)
}

/// Prints what the parser returned instead of arguments.
fn report(mut error: clap::Error) -> ExitCode {
    let messages = Messages::new(requested_format(std::env::args().skip(1)), false, None);
    if !error.use_stderr() {
        return print(error.render().to_string().as_bytes()).map_or_else(
            |error| messages.error(&super::CommandOutput::default().not_printed(&error)),
            |()| ExitCode::SUCCESS,
        );
    }
    redact(&mut error);
    remove_irreversible_suggestions(&mut error);
    // The usage lists the arguments that came from the environment as if they had to be typed.
    error.remove(ContextKind::Usage);
    let text = error.render().to_string();
    match messages.format() {
        OutputFormat::Text => messages.write(text.trim_end()),
        OutputFormat::Json => messages.usage_error(&text),
    }
    USAGE.into()
}

/// Removes a surplus argument, or one that is too long to be a mistyped name.
fn redact(error: &mut clap::Error) {
    let kind = match error.kind() {
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        _ => return,
    };
    let Some(ContextValue::String(typed)) = error.get(kind) else { return };
    let surplus = kind == ContextKind::InvalidArg && !typed.starts_with('-');
    if surplus || typed.len() > LONGEST_NAME {
        error.insert(kind, ContextValue::String("…".into()));
        error.remove(ContextKind::Suggested);
    }
}

fn remove_irreversible_suggestions(error: &mut clap::Error) {
    let allowed = |name: &String| !NEVER_SUGGESTED.contains(&name.as_str());
    for kind in [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg] {
        let remaining = match error.get(kind) {
            Some(ContextValue::String(name)) => Some(vec![name.clone()]),
            Some(ContextValue::Strings(names)) => Some(names.clone()),
            _ => None,
        };
        let Some(remaining) = remaining else { continue };
        error.remove(kind);
        let remaining: Vec<_> = remaining.into_iter().filter(allowed).collect();
        if kind == ContextKind::SuggestedArg {
            if let Some(name) = remaining.into_iter().next() {
                error.insert(kind, ContextValue::String(name));
            }
        } else if !remaining.is_empty() {
            error.insert(kind, ContextValue::Strings(remaining));
        }
    }
}

/// The output format that the arguments ask for, also if they cannot be parsed.
fn requested_format(arguments: impl Iterator<Item = String>) -> OutputFormat {
    let arguments: Vec<_> = arguments.take_while(|argument| argument != "--").collect();
    let separate = arguments.windows(2).any(|pair| {
        let short = pair[0].starts_with('-') && !pair[0].starts_with("--") && pair[0].ends_with('o');
        (short || pair[0] == "--output") && pair[1] == "json"
    });
    let joined = arguments.iter().any(|argument| {
        let value = argument.strip_prefix('-').map(|short| short.trim_start_matches(['q', 'v', 'y']));
        ["--output=json", "-o=json"].contains(&argument.as_str()) || value == Some("ojson")
    });
    if separate || joined { OutputFormat::Json } else { OutputFormat::Text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requested_format_finds_the_option_in_every_spelling() {
        let format = |line: &str| requested_format(line.split(' ').map(str::to_owned));
        for line in ["-o json role", "role -ojson", "role --output json x", "--output=json", "-qo json", "-qojson"] {
            assert_eq!(format(line), OutputFormat::Json, "{line}");
        }
        for line in ["role list", "-o text", "agent exec -- -o json", "--output=text"] {
            assert_eq!(format(line), OutputFormat::Text, "{line}");
        }
    }
}
