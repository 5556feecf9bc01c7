//! The program `countersign-ext-authz`: parses flags, runs the sidecar or a command, and sets the exit code.

use clap::Parser;
use countersign_ext_authz::{
    AuthorizerError, Settings,
    commands::{self, parse_key_value},
    config::{self, ConfigError},
    run,
};
use countersign_process::{
    FlushAtExit, Shutdown, SystemClock, output::write_stderr_line, settings::environment, shutdown, telemetry,
};
use std::{path::PathBuf, process::ExitCode, sync::Arc};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The exit code for invalid settings, which is also clap's exit code for invalid flags.
const USAGE_ERROR: u8 = 2;

/// The Countersign sidecar, which Envoy asks whether a request of an agent is allowed.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Flags {
    /// Path of a TOML file with settings.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// A setting, such as `sync.urls=https://control-plane:8444`. Can be repeated. Overrides the file and the environment.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_key_value)]
    set: Vec<(String, String)>,

    /// Without a command, the sidecar runs.
    #[command(subcommand)]
    command: Option<commands::Command>,
}

fn main() -> ExitCode {
    let _flush_at_exit = FlushAtExit;
    let Flags { config, set, command } = Flags::parse();
    if let Some(command) = command {
        return commands::run(command).into();
    }
    // With huge pages, a sidecar with a small view takes much more memory than it needs. A failure (a kernel without them) is
    // harmless.
    let _ignored = nix::sys::prctl::set_thp_disable(true);
    match config::read(config, environment(), set) {
        Ok(settings) => exit_code(run_with_settings(settings)),
        // The file of a variable with the suffix `_FILE` cannot be read now. The settings are not wrong: a later start may succeed.
        Err(ConfigError::Source(error)) if error.is_unreadable_value() => fail(ExitCode::FAILURE, &error),
        Err(error) => fail(ExitCode::from(USAGE_ERROR), &error),
    }
}

fn exit_code(result: Result<(), AuthorizerError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ AuthorizerError::Setting { .. }) => fail(ExitCode::from(USAGE_ERROR), &error),
        Err(error) => {
            tracing::error!(%error, "the sidecar failed");
            ExitCode::FAILURE
        }
    }
}

fn fail(code: ExitCode, error: &dyn std::error::Error) -> ExitCode {
    for line in error.to_string().lines() {
        write_stderr_line(format_args!("countersign-ext-authz: {line}"));
    }
    code
}

fn run_with_settings(settings: Settings) -> Result<(), AuthorizerError> {
    telemetry::init(&settings.log).map_err(|error| AuthorizerError::Setting { key: "log", error })?;
    shutdown::block_on(async {
        let shutdown = Shutdown::on_signals()?;
        run(settings, Arc::new(SystemClock), shutdown).await
    })?
}
