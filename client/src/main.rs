//! The program `countersign`, the command line of Countersign.

mod cli;

use cli::{Arguments, CommandOutput, Messages, OutputFormat, report};
use std::process::ExitCode;

fn main() -> ExitCode {
    // Shell completion changes environment variables, so it runs before there is a second thread.
    cli::complete_from_environment();
    match cli::parse() {
        Ok(arguments) => run(arguments),
        Err(code) => code,
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run(arguments: Arguments) -> ExitCode {
    let messages = arguments.messages();
    match cli::run(arguments, &messages).await {
        Ok(output) => finish(&output, &messages),
        Err(error) => report(&error, &messages),
    }
}

/// Prints the data on standard output, then the note and the errors on standard error. Returns the exit code of the program. A
/// command that fails in part returns data and an error. If the data cannot be printed, that error is reported as well.
fn finish(output: &CommandOutput, messages: &Messages) -> ExitCode {
    let printed = output.print(messages.format);
    let failed = printed.is_err() || output.error.is_some();
    // With the format JSON, standard error contains either a note or an error.
    if messages.format == OutputFormat::Text || !failed {
        messages.note(&output.note);
    }
    let code = printed.map_or_else(|error| report(&error, messages), |()| output.program_exit_code.into());
    output.error.as_ref().map_or(code, |error| report(error, messages))
}
