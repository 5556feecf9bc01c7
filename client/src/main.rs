//! The command line `countersign`, for whoever runs an agent or a service.

mod cli;

use cli::Failure;
use std::{
    io::{self, Write},
    process::ExitCode,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = cli::parse();
    let output = arguments.output();
    match cli::run(arguments).await {
        Ok(said) => {
            let printed = print(&said.printed(output)).map_err(|error| said.unprinted(&error));
            complain(&said.note);
            let printed = printed.map_or_else(|failure| failed(&failure), |()| ExitCode::SUCCESS);
            said.failure.map_or(printed, |failure| failed(&failure))
        }
        Err(failure) => failed(&failure),
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

fn failed(failure: &Failure) -> ExitCode {
    complain(&format!("countersign: {failure}"));
    complain(&failure.next().map(|next| format!("Next: {next}")).unwrap_or_default());
    failure.code().into()
}

fn complain(text: &str) {
    if !text.is_empty() {
        let _closed = writeln!(io::stderr(), "{text}");
    }
}
