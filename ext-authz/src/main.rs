//! The sidecar as a program: flags in, exit code out.

use clap::Parser;
use countersign_ext_authz::{Failure, Settings, config, run};
use countersign_process::{Shutdown, SystemClock, telemetry};
use std::{path::PathBuf, process::ExitCode, sync::Arc};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The exit code for flags and settings that are not usable, as clap's own.
const USAGE: u8 = 2;

/// Verifies agents for Envoy, by its external authorization API.
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    /// A TOML file of settings.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// A setting, such as `sync.url=https://control-plane:8444`; may be repeated and beats all else.
    #[arg(long, value_name = "KEY=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
}

fn assignment(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err("expected key=value"),
    }
}

fn main() -> ExitCode {
    let Flags { config, set } = Flags::parse();
    let environment =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    match config::read(config, environment.collect(), set) {
        Ok(settings) => outcome(start(settings)),
        Err(error) => usage(&error),
    }
}

fn outcome(ended: Result<(), Failure>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ Failure::Setting { .. }) => usage(&error),
        Err(error) => {
            tracing::error!(%error, "stopped");
            ExitCode::FAILURE
        }
    }
}

fn usage(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("countersign-ext-authz: {error}");
    ExitCode::from(USAGE)
}

fn start(settings: Settings) -> Result<(), Failure> {
    telemetry::init(&settings.log).map_err(|error| Failure::Setting { key: "log", error })?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let shutdown = Shutdown::on_signals()?;
        run(settings, Arc::new(SystemClock), shutdown).await
    })
}
