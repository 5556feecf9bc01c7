//! Parsing of the command line. [`super::usage`] formats usage errors.

use super::{
    commands::Arguments,
    complete,
    environment::arguments,
    help,
    messages::{Messages, write_line},
    output::{CommandOutput, OutputFormat, ignore_closed_pipe, print},
    report::{USAGE, report},
    usage,
};
use clap::{Command, FromArgMatches, builder::Resettable, error::ErrorKind};
use clap_complete::CompleteEnv;
use std::process::ExitCode;

/// If a completion script started this process, prints candidates and ends the process.
pub fn complete_from_environment() {
    CompleteEnv::with_factory(help::command).var(complete::VARIABLE).complete();
}

/// Parses the arguments of this process. If the result is help, the version or an error, prints it and returns the exit code.
pub fn parse() -> Result<Arguments, ExitCode> {
    let matches = without_empty_variables(help::command()).try_get_matches();
    matches.and_then(|matches| Arguments::from_arg_matches(&matches)).map_err(print_instead)
}

/// Treats environment variables that are set but empty as not set.
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

/// Prints what the parser returned instead of arguments: help, the version or an error.
fn print_instead(error: clap::Error) -> ExitCode {
    let arguments = arguments();
    let quiet = arguments.iter().any(|argument| argument == "-q" || argument == "--quiet");
    let messages = Messages::new(requested_format(&arguments), quiet, None);
    if !error.use_stderr() {
        let printed = ignore_closed_pipe(print(error.render().to_string().as_bytes()));
        return printed.map_or_else(
            |error| report(&CommandOutput::default().not_printed(&error), &messages),
            |()| ExitCode::SUCCESS,
        );
    }
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help && messages.format == OutputFormat::Text {
        write_line(error.render().to_string().trim_end());
        return USAGE.into();
    }
    report(&usage::error(error), &messages)
}

/// The output format that the arguments request, even if they cannot be parsed.
fn requested_format(arguments: &[String]) -> OutputFormat {
    let arguments: Vec<_> = arguments.iter().take_while(|argument| *argument != "--").collect();
    let separate = arguments.windows(2).any(|pair| {
        let short = pair[0].starts_with('-') && !pair[0].starts_with("--") && pair[0].ends_with('o');
        (short || pair[0] == "--output") && pair[1] == "json"
    });
    let joined = arguments.iter().any(|argument| {
        // Short options without a value can precede `o`, as in `-qojson`.
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
        let format = |line: &str| requested_format(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for line in ["-o json role", "role -ojson", "role --output json x", "--output=json", "-qo json", "-qojson"] {
            assert_eq!(format(line), OutputFormat::Json, "{line}");
        }
        for line in ["role list", "-o text", "agent exec -- -o json", "--output=text"] {
            assert_eq!(format(line), OutputFormat::Text, "{line}");
        }
    }
}
