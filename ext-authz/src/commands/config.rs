//! The command `config check` reads the settings and the files that they name, as the sidecar does at its start. It changes nothing.

use super::{CommandExit, Failure, Output, parse_key_value};
use crate::{
    app::settings_problems,
    config::{self, ConfigError},
};
use clap::{Args, Subcommand};
use countersign_process::settings::environment;
use std::path::PathBuf;

/// A command about the settings.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Prints `ok`, or all reasons for which the sidecar would refuse to start.
    Check(CheckArguments),
}

/// The settings, as the sidecar gets them.
#[derive(Debug, Args)]
pub struct CheckArguments {
    /// Path of the TOML file with the settings.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A setting. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_key_value)]
    set: Vec<(String, String)>,
}

pub(super) fn run(command: ConfigCommand) -> Result<Output, Failure> {
    let ConfigCommand::Check(CheckArguments { config: file, set }) = command;
    let settings = config::read(file, environment(), set).map_err(|error| match &error {
        // The file of a variable with the suffix `_FILE` cannot be read now. The settings are not wrong: a later start may succeed.
        ConfigError::Source(source) if source.is_unreadable_value() => Failure::from(error.to_string()),
        ConfigError::Source(_) | ConfigError::Invalid(_) => wrong_settings(error.to_string()),
    })?;
    let problems = settings_problems(&settings);
    if problems.is_empty() {
        Ok(Output { text: "ok\n".to_owned(), exit: CommandExit::Succeeded })
    } else {
        Err(wrong_settings(problems.join("\n")))
    }
}

fn wrong_settings(errors: String) -> Failure {
    Failure { errors, exit: CommandExit::WrongSettings }
}
