//! Defines the commands of `countersign`, and runs them.

use super::{
    agent, apply,
    args::{GlobalArgs, ManagerArgs},
    audit, complete,
    context::Context,
    doctor, envoy,
    error::CliError,
    human, key,
    messages::Messages,
    output::CommandOutput,
    role, service, sidecar, signing_key, token, webhook,
};
use clap::{Parser, Subcommand};
use clap_complete::Shell;

/// Manage agents, their roles and the services that trust them.
#[derive(Parser)]
#[command(name = "countersign", version)]
pub struct Arguments {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: Command,
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
    /// Change services, roles, assignments, webhooks and API keys to what files declare
    #[command(after_help = apply::HELP)]
    Apply(Box<apply::ApplyArgs>),
    /// Write services in the format of `apply`
    #[command(after_help = apply::EXPORT_HELP)]
    Export(Box<ManagerArgs>),
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
    Whoami(ManagerArgs),
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
    pub fn messages(&self) -> Messages {
        let GlobalArgs { profile, output, quiet, verbose: _, timeout: _ } = &self.global;
        Messages::new(*output, *quiet, Some(profile.clone()))
    }
}

pub async fn run(arguments: Arguments, messages: &Messages) -> Result<CommandOutput, CliError> {
    let Arguments { global, command } = arguments;
    // A completion script needs no profile, so we print it before we read the profile, which may be malformed.
    if let Command::Completions { shell } = command {
        return complete::script(shell);
    }
    let context = Context::open(global, messages.clone())?;
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
