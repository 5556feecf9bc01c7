//! The command line is taken apart. What was typed may be a secret in the wrong place, so it is not repeated.

use super::Arguments;
use clap::{
    Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};

/// No name of a command or a flag is longer; tokens and keys are.
const LONGEST_NAME: usize = 24;

/// The arguments of this process; ends it if they are wrong.
pub fn parse() -> Arguments {
    Arguments::try_parse().unwrap_or_else(|mut error| {
        discreet(&mut error);
        error.exit()
    })
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
