//! The commands of `countersign`: a module per noun, a subcommand per verb.
//!
//! Depends on the library of this crate for all requests. Invariant: data goes to standard output, everything else to
//! standard error; only commands that create or request a secret print secrets.

mod agent;
mod apply;
mod args;
mod audit;
mod call;
mod complete;
mod confirm;
mod context;
mod doctor;
mod enforcement;
mod envoy;
mod error;
mod help;
mod hints;
mod holders;
mod human;
mod ids;
mod key;
mod login;
mod loopback;
mod messages;
mod oauth;
mod output;
mod parse;
mod placeholders;
mod role;
mod secret_file;
mod service;
mod sidecar;
mod signing_key;
mod table;
mod time;
mod token;
mod trace;
mod transfer;
mod usage;
mod webhook;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::{ArgValueCandidates, Shell};
pub use complete::complete_from_environment;
pub use error::CliError;
pub use messages::Messages;
pub use output::CommandOutput;
pub use parse::parse;
use std::time::Duration;

/// Manage agents, their roles and the services that trust them.
#[derive(Parser)]
#[command(name = "countersign", version)]
pub struct Arguments {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// The profile: the settings and tokens of one agent, and the login of a human user
    #[arg(
        long,
        global = true,
        env = "COUNTERSIGN_PROFILE",
        default_value = "default",
        value_name = "NAME",
        display_order = 900,
        add = ArgValueCandidates::new(complete::profile_names)
    )]
    profile: String,
    /// Output format, for standard output and standard error: text or json. Help, --version and `completions` are always
    /// text
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value_t = OutputFormat::Text,
        value_name = "FORMAT",
        hide_possible_values = true,
        display_order = 901
    )]
    output: OutputFormat,
    /// Print errors only: no notes, hints and warnings
    #[arg(short, long, global = true, display_order = 902, conflicts_with = "verbose")]
    quiet: bool,
    /// Print each request to standard error: method, URL, status, duration and request id
    #[arg(short, long, global = true, display_order = 903)]
    verbose: bool,
    /// Timeout of each request, such as 500ms, 5s or 1m
    #[arg(
        long,
        global = true,
        value_name = "DURATION",
        default_value = "30s",
        value_parser = time::positive_duration,
        display_order = 904
    )]
    timeout: Duration,
}

/// The format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Tables and sentences
    Text,
    /// JSON with the field names of the API
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// Create keys, register agents, log in, call services
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    /// Inspect, verify and revoke tokens
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Create and configure services
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// Manage the API keys of a service
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Manage the roles of a service and assign them to agents
    #[command(subcommand)]
    Role(role::RoleCommand),
    /// Show the sidecars of a service, and with which data they decide
    #[command(subcommand)]
    Sidecar(sidecar::SidecarCommand),
    /// Deliver the events of a service to a URL
    #[command(subcommand)]
    Webhook(webhook::WebhookCommand),
    /// Make services, roles, assignments, webhooks and API keys as files describe them
    #[command(after_help = apply::HELP)]
    Apply(Box<apply::ApplyArgs>),
    /// Write services in the format of `apply`
    #[command(after_help = apply::EXPORT_HELP)]
    Export(Box<apply::ExportArgs>),
    /// Read the audit log
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Rotate and revoke the keys that sign access tokens
    #[command(subcommand)]
    SigningKey(signing_key::SigningKeyCommand),
    /// Log in as a human user: an owner or an administrator
    #[command(after_help = human::LOGIN_HELP)]
    Login(Box<human::LoginArgs>),
    /// Show which human user, agent and API key the commands use
    #[command(after_help = human::WHOAMI_HELP)]
    Whoami(args::ManagerArgs),
    /// Delete the login of the human user, and revoke its refresh token
    #[command(after_help = human::LOGOUT_HELP)]
    Logout,
    /// Print configurations of Envoy, gateways and nginx for a service
    #[command(subcommand)]
    Envoy(envoy::EnvoyCommand),
    /// Check the profile, the connection, the clock, keys and credentials
    #[command(after_help = doctor::HELP)]
    Doctor(doctor::DoctorArgs),
    /// Print a completion script for a shell
    #[command(after_help = complete::HELP)]
    Completions {
        /// The shell
        shell: Shell,
    },
}

impl Arguments {
    /// The writer of messages that these options configure.
    pub fn messages(&self) -> Messages {
        let GlobalArgs { profile, output, quiet, .. } = &self.global;
        Messages::new(*output, *quiet, Some(profile.clone()))
    }
}

/// Runs the command.
pub async fn run(arguments: Arguments, messages: &Messages) -> Result<CommandOutput, CliError> {
    let Arguments { global, command } = arguments;
    if let Command::Completions { shell } = command {
        return complete::script(shell);
    }
    let context = context::Context::open(global, messages.clone())?;
    let result = match command {
        Command::Agent(command) => agent::run(&context, command).await,
        Command::Token(command) => token::run(&context, command).await,
        Command::Service(command) => service::run(&context, command).await,
        Command::Key(command) => key::run(&context, command).await,
        Command::Role(command) => role::run(&context, command).await,
        Command::Sidecar(command) => sidecar::run(&context, command).await,
        Command::Webhook(command) => webhook::run(&context, command).await,
        Command::Apply(args) => apply::run(&context, *args).await,
        Command::Export(args) => apply::export(&context, *args).await,
        Command::Audit(command) => audit::run(&context, command).await,
        Command::SigningKey(command) => signing_key::run(&context, command).await,
        Command::Login(args) => human::login(&context, *args).await,
        Command::Whoami(args) => human::whoami(&context, args).await,
        Command::Logout => human::logout(&context).await,
        Command::Envoy(command) => envoy::run(&context, command),
        Command::Doctor(args) => doctor::run(&context, args).await,
        Command::Completions { .. } => Ok(CommandOutput::default()),
    };
    result.map_err(|error| context.with_context_hint(error))
}
