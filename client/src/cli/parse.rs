//! The command line is taken apart. What was typed may be a secret in the wrong place, so it is not repeated.

use super::Arguments;
use clap::{
    Command, CommandFactory, FromArgMatches,
    builder::Resettable,
    error::{ContextKind, ContextValue, ErrorKind},
};

/// No name of a command or a flag is longer; tokens and keys are.
const LONGEST_NAME: usize = 24;

/// The arguments of this process; ends it if they are wrong.
pub fn parse() -> Arguments {
    let given = without_empty_variables(Arguments::command()).try_get_matches();
    given.and_then(|given| Arguments::from_arg_matches(&given)).unwrap_or_else(|mut error| {
        discreet(&mut error);
        // It lists what came from the environment as if that had to be typed.
        error.remove(ContextKind::Usage);
        error.exit()
    })
}

/// A variable, unless it is empty: that is how many say that there is none.
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

/// A surplus argument is not repeated, nor is one that is too long to be a mistyped name.
fn discreet(error: &mut clap::Error) {
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
