//! The command line `countersign`, for whoever runs an agent or a service.

mod cli;

use cli::{Failure, Output, with_profile};
use std::{
    io::{self, Write},
    process::ExitCode,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = cli::parse();
    let teller = Teller { output: arguments.output(), profile: arguments.named_profile() };
    match cli::run(arguments).await {
        Ok(said) => {
            let printed = print(&said.printed(teller.output)).map_err(|error| said.unprinted(&error));
            // A program finds the error on standard error, and nothing beside it.
            if teller.output == Output::Text || (printed.is_ok() && said.failure.is_none()) {
                teller.complain(&said.note);
            }
            let printed = printed.map_or_else(|failure| teller.failed(&failure), |()| ExitCode::SUCCESS);
            said.failure.map_or(printed, |failure| teller.failed(&failure))
        }
        Err(failure) => teller.failed(&failure),
    }
}

/// What it writes to standard error for, and the profile that advice has to name.
struct Teller {
    output: Output,
    profile: Option<String>,
}

impl Teller {
    fn failed(&self, failure: &Failure) -> ExitCode {
        match self.output {
            Output::Text => {
                let next = failure.next().map(|next| format!("\nNext: {next}")).unwrap_or_default();
                self.complain(&format!("countersign: {failure}{next}"));
            }
            Output::Json => self.complain(&format!("{:#}", failure.value())),
        }
        failure.code().into()
    }

    fn complain(&self, text: &str) {
        if !text.is_empty() {
            let _closed = writeln!(io::stderr(), "{}", with_profile(text, self.profile.as_deref()));
        }
    }
}

fn print(data: &[u8]) -> io::Result<()> {
    let mut out = io::stdout();
    match out.write_all(data).and_then(|()| out.flush()) {
        // A reader that has gone away is no fault of the command's.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}
