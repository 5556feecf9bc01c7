//! The commands: noun, then verb. A file per noun.
//!
//! Neighbours: the library beneath, which does the work; `main`, which prints. The rule of the room: data
//! goes to standard output, advice to standard error; a secret is printed only by a command that is for it.

mod agent;
mod audit;
mod call;
mod context;
mod doctor;
mod failure;
mod key;
mod login;
mod parse;
mod role;
mod said;
mod secret_file;
mod service;
mod signing_key;
mod token;
mod webhook;
mod when;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
pub use failure::Failure;
pub use parse::parse;
pub use said::{Said, with_profile};

const WAY: &str = "\
From a key to a call, as an agent:
  countersign agent keygen                                    makes a key
  countersign agent register --url URL --email E --name N     hands in its public half
  countersign agent call https://service.example/             logs in, and calls with a token

As a service, with COUNTERSIGN_URL, COUNTERSIGN_SERVICE_ID and COUNTERSIGN_SERVICE_KEY set:
  countersign role create reader --permission read            defines a role
  countersign role assign reader --agent AGENT                gives it to an agent
  countersign webhook listen                                  shows the service's events as they come

`countersign-control-plane --dev` is one to try things out with. It writes all of these into the file dev.env
of its data folder, and says where that is; unless it was told another: `set -a; . countersign-dev/dev.env; set +a`.
What an agent needs is remembered in a profile (~/.config/countersign/NAME.toml); flags win over the
environment, which wins over the profile. A variable that is empty says nothing.

Exit codes: 0 good, 1 failed, 2 wrong use, 3 denied or not found, 4 unreachable; of `agent exec` its command's own.

Next: countersign agent keygen --help";

/// Talks to a Countersign control plane.
#[derive(Parser)]
#[command(name = "countersign", version, after_help = WAY)]
pub struct Arguments {
    /// What is remembered between commands; one profile for each agent
    #[arg(
        long,
        global = true,
        env = "COUNTERSIGN_PROFILE",
        default_value = "default",
        value_name = "NAME",
        display_order = 900
    )]
    profile: String,
    /// `text` for people, `json` for programs, errors on standard error included
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value_t = Output::Text,
        value_name = "FORM",
        hide_possible_values = true,
        display_order = 901
    )]
    output: Output,
    #[command(subcommand)]
    command: Command,
}

/// For whom data is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Text,
    /// For programs
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// An agent: its key, its registration, its login, its calls
    #[command(subcommand)]
    Agent(agent::Agent),
    /// Services, which people make and own
    #[command(subcommand)]
    Service(service::Service),
    /// The API keys of a service
    #[command(subcommand)]
    Key(key::Key),
    /// The roles of a service, and who holds them
    #[command(subcommand)]
    Role(role::Role),
    /// Webhooks: where the events of a service are delivered to
    #[command(subcommand)]
    Webhook(webhook::Webhook),
    /// The keys that sign access tokens, for administrators
    #[command(subcommand)]
    SigningKey(signing_key::SigningKey),
    /// The record of who did what
    #[command(subcommand)]
    Audit(audit::Audit),
    /// Tokens: what they say, whether they are good, and their end
    #[command(subcommand)]
    Token(token::Token),
    /// Look at everything that these commands rest on: profile, server, clock, keys, credentials
    #[command(
        after_help = "It logs the profile's agent in, and out again. Exit code 0 if nothing is wrong, else that of \
        the first thing that is.\n\nNext: what it says after `Next`"
    )]
    Doctor(doctor::Doctor),
    /// Print a script that completes these commands in a shell
    #[command(after_help = "Next, for bash: countersign completions bash > \
                            ~/.local/share/bash-completion/completions/countersign")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

impl Arguments {
    /// The profile, if advice has to name it: neither the usual one nor what the environment says.
    pub fn named_profile(&self) -> Option<String> {
        let usual = parse::variable("COUNTERSIGN_PROFILE").unwrap_or_else(|| "default".to_owned());
        Some(self.profile.clone()).filter(|named| *named != usual)
    }

    /// For whom data is printed.
    pub const fn output(&self) -> Output {
        self.output
    }
}

/// Does what was asked.
pub async fn run(arguments: Arguments) -> Result<Said, Failure> {
    let Arguments { profile, output, command } = arguments;
    if let Command::Completions { shell } = command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Arguments::command(), "countersign", &mut script);
        return Ok(Said::raw(script));
    }
    let context = context::Context::open(profile)?;
    match command {
        Command::Agent(command) => agent::run(&context, command).await,
        Command::Service(command) => service::run(&context, command).await,
        Command::Key(command) => key::run(&context, command).await,
        Command::Role(command) => role::run(&context, command).await,
        Command::Webhook(command) => webhook::run(&context, command, output).await,
        Command::SigningKey(command) => signing_key::run(&context, command).await,
        Command::Audit(command) => audit::run(&context, command).await,
        Command::Token(command) => token::run(&context, command).await,
        Command::Doctor(asked) => doctor::run(&context, asked).await,
        Command::Completions { .. } => Ok(Said::raw(Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_well_formed_and_each_says_what_comes_next() {
        let mut root = Arguments::command();
        root.build();
        root.clone().debug_assert();
        let mut left = vec![root];
        while let Some(command) = left.pop() {
            left.extend(command.get_subcommands().filter(|command| command.get_name() != "help").cloned());
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(command.has_subcommands() || help.contains("Next"), "{}", command.get_name());
        }
    }
}
