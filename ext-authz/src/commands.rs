//! The subcommands of the program. They print to standard output, and errors to standard error.

mod check;
mod config;
mod explain;
mod token;

use crate::{
    check::OfflineAuthorizer,
    config::{Settings, read_at_most},
    rules::{MAX_FILE_BYTES, McpMessage, RequestTarget, RuleSet},
};
use clap::{Args, Subcommand, builder::ArgPredicate};
use countersign_process::output::{write_stderr_line, write_stdout};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

/// A subcommand.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Checks a rules file, or explains which of its rules applies to a request.
    #[command(subcommand)]
    Rules(RulesCommand),
    /// Explains the decision of the running sidecar about a request, or with `--copy` the decision with the copy on disk. Reads the
    /// token from standard input; an empty input stands for no token.
    Explain(explain::ExplainArguments),
    /// Sends one check to a running sidecar, as Envoy does, and prints its answer. Reads the token from standard input or a file; an
    /// empty token stands for none.
    Check(Box<check::CheckArguments>),
    /// Checks the settings without starting the sidecar.
    #[command(subcommand)]
    Config(config::ConfigCommand),
}

/// A command about a rules file.
#[derive(Debug, Subcommand)]
pub enum RulesCommand {
    /// Checks a rules file, and prints all errors with their lines. Prints a warning if a dry run takes requests from an enforced rule.
    Check {
        /// The rules file.
        file: PathBuf,
    },
    /// Prints which rule applies to a request, and why the other matching rules do not apply.
    Explain {
        /// The rules file.
        file: PathBuf,
        /// The request.
        #[command(flatten)]
        request: RequestArguments,
    },
}

/// The request of a command.
#[derive(Debug, Args)]
pub struct RequestArguments {
    /// The method of the request. The default is GET, or POST with `--mcp-method`.
    #[arg(long, default_value = "GET", default_value_if("mcp_method", ArgPredicate::IsPresent, "POST"))]
    pub method: String,
    /// The host of the request, with or without port.
    #[arg(long)]
    pub host: String,
    /// The path of the request, with or without query.
    #[arg(long)]
    pub path: String,
    /// The method of the MCP message in the body, such as `tools/call`, as Envoy's MCP filter would report it.
    #[arg(long, value_name = "METHOD")]
    pub mcp_method: Option<String>,
    /// The name of the tool or prompt, or the URI of the resource, that the MCP message uses.
    #[arg(long, value_name = "NAME", requires = "mcp_method")]
    pub mcp_name: Option<String>,
}

impl RequestArguments {
    fn target(&self) -> RequestTarget<'_> {
        RequestTarget { method: &self.method, host: &self.host, path: &self.path }
    }

    fn mcp_message(&self) -> Option<McpMessage<'_>> {
        Some(McpMessage { method: self.mcp_method.as_deref()?, name: self.mcp_name.as_deref() })
    }
}

fn parse_key_value(text: &str) -> Result<(String, String), &'static str> {
    text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or("must have the form KEY=VALUE")
}

/// The exit code of a command, as in the command-line client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandExit {
    /// The command succeeded.
    Succeeded,
    /// The command failed, or the file has errors.
    Failed,
    /// The request is refused.
    Denied,
    /// The sidecar does not answer.
    Unreachable,
    /// The settings are wrong.
    WrongSettings,
}

impl From<CommandExit> for ExitCode {
    fn from(exit: CommandExit) -> Self {
        match exit {
            CommandExit::Succeeded => Self::SUCCESS,
            CommandExit::Failed => Self::FAILURE,
            CommandExit::WrongSettings => Self::from(2),
            CommandExit::Denied => Self::from(3),
            CommandExit::Unreachable => Self::from(4),
        }
    }
}

/// Reads the copies on disk to decide with them, or says why none of them can be used.
pub type AuthorizerFromCopies = fn(Settings) -> Result<OfflineAuthorizer, String>;

/// Reads what the settings name, and returns all problems.
pub type SettingsCheck = fn(&Settings) -> Vec<String>;

/// Runs a command.
pub fn run(command: Command, from_copies: AuthorizerFromCopies, check_settings: SettingsCheck) -> CommandExit {
    let result = match command {
        Command::Rules(command) => run_rules(command).map_err(|errors| (errors, CommandExit::Failed)),
        Command::Explain(arguments) => explain::run(arguments, from_copies),
        Command::Check(arguments) => check::run(*arguments),
        Command::Config(command) => config::run(command, check_settings),
    };
    let (text, exit) = match result {
        Ok(result) => result,
        Err((errors, exit)) => {
            for line in errors.lines() {
                write_stderr_line(line);
            }
            return exit;
        }
    };
    // The reader of a closed pipe needs no more output.
    if write_stdout(text).is_ok() { exit } else { CommandExit::Failed }
}

fn run_rules(command: RulesCommand) -> Result<(String, CommandExit), String> {
    match command {
        RulesCommand::Check { file } => {
            let (rules, file) = (load(&file)?, file.display());
            let warning = |text: String| format!("{file}: warning: {text}\n");
            let warnings: String = rules.warnings().into_iter().map(warning).collect();
            Ok((format!("{warnings}{file}: {} rules, no errors\n", rules.len()), CommandExit::Succeeded))
        }
        RulesCommand::Explain { file, request } => {
            let rules = load(&file)?;
            let explanation = rules.explain(request.target(), request.mcp_message());
            let exit = if explanation.is_refused() { CommandExit::Denied } else { CommandExit::Succeeded };
            Ok((explanation.to_string(), exit))
        }
    }
}

/// Loads a rules file. Each error is on a line of its own, with the path of the file.
fn load(file: &Path) -> Result<RuleSet, String> {
    let in_file = |errors: String| {
        errors.lines().map(|error| format!("{}: {error}", file.display())).collect::<Vec<_>>().join("\n")
    };
    let content = read_at_most(file, MAX_FILE_BYTES).map_err(|error| in_file(error.to_string()))?;
    RuleSet::parse(&content).map_err(|errors| in_file(errors.to_string()))
}
