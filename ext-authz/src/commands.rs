//! The subcommands of the program. They print to standard output, and errors to standard error.

mod check;
mod config;
mod explain;
mod token;

use crate::{
    check::DescribedRequest,
    config::read_at_most,
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
    /// Checks a rules file, and prints all errors with their lines. Prints a warning if a dry run takes requests from an enforced rule,
    /// or if a rule allows encoded slashes that another rule refuses.
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
    /// The method of the MCP message in the body, such as `tools/call`.
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
        Some(McpMessage::Call { method: self.mcp_method.as_deref()?, name: self.mcp_name.as_deref() })
    }

    /// The request with the context extensions of its route and a token.
    fn with(self, context_extensions: Vec<(String, String)>, token: Option<String>) -> DescribedRequest {
        let Self { method, host, path, mcp_method, mcp_name } = self;
        let context_extensions = context_extensions.into_iter().collect();
        DescribedRequest { method, host, path, mcp_method, mcp_name, context_extensions, token: token.map(Into::into) }
    }
}

/// Parses the value of a flag such as `--set`.
pub fn parse_key_value(text: &str) -> Result<(String, String), &'static str> {
    text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or("must have the form KEY=VALUE")
}

/// The exit code of a command, as in the command-line client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandExit {
    /// The command succeeded.
    Succeeded = 0,
    /// The command failed, or the file has errors.
    Failed = 1,
    /// The settings are wrong.
    WrongSettings = 2,
    /// The request is refused, or `check` gets another answer than the expected one.
    Denied = 3,
    /// The sidecar does not answer.
    Unreachable = 4,
}

impl From<CommandExit> for ExitCode {
    fn from(exit: CommandExit) -> Self {
        Self::from(exit as u8)
    }
}

/// The text that a command prints to standard output, and its exit code.
struct Output {
    text: String,
    exit: CommandExit,
}

/// The lines that a command prints to standard error because it failed, and its exit code.
struct Failure {
    errors: String,
    exit: CommandExit,
}

impl From<String> for Failure {
    fn from(errors: String) -> Self {
        Self { errors, exit: CommandExit::Failed }
    }
}

/// Runs a command.
pub fn run(command: Command) -> CommandExit {
    let result = match command {
        Command::Rules(command) => run_rules(command),
        Command::Explain(arguments) => explain::run(arguments),
        Command::Check(arguments) => check::run(*arguments),
        Command::Config(command) => config::run(command),
    };
    match result {
        // If standard output is a closed pipe, the command fails without a message, because its reader wants no more output.
        Ok(Output { text, exit }) => write_stdout(text).map_or(CommandExit::Failed, |()| exit),
        Err(Failure { errors, exit }) => {
            errors.lines().for_each(write_stderr_line);
            exit
        }
    }
}

fn run_rules(command: RulesCommand) -> Result<Output, Failure> {
    match command {
        RulesCommand::Check { file } => {
            let (rules, file) = (load(&file)?, file.display());
            let warning = |text: String| format!("{file}: warning: {text}\n");
            let warnings: String = rules.warnings().into_iter().map(warning).collect();
            let text = format!("{warnings}{file}: {} rules, no errors\n", rules.count());
            Ok(Output { text, exit: CommandExit::Succeeded })
        }
        RulesCommand::Explain { file, request } => {
            let rules = load(&file)?;
            let explanation = rules.explain(request.target(), request.mcp_message());
            let exit = if explanation.is_refused() { CommandExit::Denied } else { CommandExit::Succeeded };
            Ok(Output { text: explanation.to_string(), exit })
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
