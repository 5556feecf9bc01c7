//! The command line for whoever runs an agent.

use clap::{Args, Parser, Subcommand};
use countersign_client::{Api, ApiError, KeyError, PrivateKey};
use secrecy::{ExposeSecret, SecretString};
use std::{path::PathBuf, process::ExitCode};

/// Talks to a Countersign control plane.
#[derive(Parser)]
#[command(name = "countersign", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// An agent: its key, its registration, its login
    #[command(subcommand)]
    Agent(Agent),
}

#[derive(Subcommand)]
enum Agent {
    /// Make a P-256 key in a new file with mode 0600 and print its public half
    Keygen {
        /// The file to make
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
    },
    /// Register the public half of a key and print the agent's id
    Register {
        #[command(flatten)]
        server: Server,
        /// The agent's private key
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Where the registrant can be written to
        #[arg(long)]
        email: String,
        /// What people call the agent
        #[arg(long)]
        name: String,
        /// A person's token, where registration is not public
        #[arg(long, env = "COUNTERSIGN_HUMAN_TOKEN", hide_env_values = true)]
        human_token: Option<SecretString>,
    },
    /// Answer a challenge and print an access token
    Login {
        #[command(flatten)]
        server: Server,
        /// The agent's private key
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// The agent's id
        #[arg(long)]
        agent: String,
        /// The service that the token is for; left out: that of the agent's oldest role
        #[arg(long)]
        service: Option<String>,
    },
}

#[derive(Args)]
struct Server {
    /// The control plane
    #[arg(long, env = "COUNTERSIGN_URL")]
    url: String,
    /// A PEM file with the authorities to trust instead of the system's
    #[arg(long, env = "COUNTERSIGN_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// Exit codes: 1 failed, 3 denied, 4 unreachable.
const FAILED: u8 = 1;
const DENIED: u8 = 3;
const UNREACHABLE: u8 = 4;

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line talks")]
async fn main() -> ExitCode {
    let Command::Agent(command) = Arguments::parse().command;
    match run(command).await {
        Ok(text) => {
            println!("{}", text.trim_end());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("countersign: {error}");
            code_of(&error).into()
        }
    }
}

async fn run(command: Agent) -> Result<String, ApiError> {
    match command {
        Agent::Keygen { key } => {
            let made = PrivateKey::generate();
            made.write(&key)?;
            Ok(made.public_pem()?)
        }
        Agent::Register { server, key, email, name, human_token } => {
            let key = PrivateKey::read(&key)?;
            Ok(server.connect()?.register(&key, &email, &name, human_token.as_ref()).await?.agent_id)
        }
        Agent::Login { server, key, agent, service } => {
            let key = PrivateKey::read(&key)?;
            let tokens = server.connect()?.login(&key, &agent, service.as_deref()).await?;
            Ok(tokens.access_token.expose_secret().to_owned())
        }
    }
}

impl Server {
    fn connect(&self) -> Result<Api, ApiError> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|error| KeyError::File { path: path.display().to_string(), error })
        };
        let authority = self.ca.as_ref().map(read).transpose()?;
        Api::new(&self.url, authority.as_deref())
    }
}

const fn code_of(error: &ApiError) -> u8 {
    match error {
        ApiError::Refused { .. } => DENIED,
        ApiError::Unreachable { .. } => UNREACHABLE,
        ApiError::Unreadable(_) | ApiError::Url(_) | ApiError::Authority(_) | ApiError::Key(_) => FAILED,
    }
}
