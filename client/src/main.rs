//! The command line `countersign`, for whoever runs an agent or a service.

mod cli;

use clap::Parser;
use cli::Failure;
use std::{io::Write, process::ExitCode};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = cli::Arguments::parse();
    let output = arguments.output();
    match cli::run(arguments).await {
        Ok(said) => {
            // A reader that has gone away is no fault of the command's.
            let _closed = std::io::stdout().write_all(&said.printed(output));
            complain(&said.note);
            said.failure.map_or(ExitCode::SUCCESS, |failure| failed(&failure))
        }
        Err(failure) => failed(&failure),
    }
}

fn failed(failure: &Failure) -> ExitCode {
    complain(&format!("countersign: {failure}"));
    complain(&failure.next().map(|next| format!("Next: {next}")).unwrap_or_default());
    failure.code().into()
}

fn complain(text: &str) {
    if !text.is_empty() {
        let _closed = writeln!(std::io::stderr(), "{text}");
    }
}
