//! The command line `countersign`, for whoever runs an agent or a service.

mod cli;

use cli::{Failure, with_profile};
use std::{
    io::{self, Write},
    process::ExitCode,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = cli::parse();
    let (output, profile) = (arguments.output(), arguments.named_profile());
    let profile = profile.as_deref();
    match cli::run(arguments).await {
        Ok(said) => {
            let printed = print(&said.printed(output)).map_err(|error| said.unprinted(&error));
            complain(&with_profile(&said.note, profile));
            let printed = printed.map_or_else(|failure| failed(&failure, profile), |()| ExitCode::SUCCESS);
            said.failure.map_or(printed, |failure| failed(&failure, profile))
        }
        Err(failure) => failed(&failure, profile),
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

fn failed(failure: &Failure, profile: Option<&str>) -> ExitCode {
    let next = failure.next().map(|next| format!("\nNext: {next}")).unwrap_or_default();
    complain(&with_profile(&format!("countersign: {failure}{next}"), profile));
    failure.code().into()
}

fn complain(text: &str) {
    if !text.is_empty() {
        let _closed = writeln!(io::stderr(), "{text}");
    }
}
