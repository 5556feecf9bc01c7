//! The command line of the control plane.

use clap::{Parser, Subcommand};
use countersign_control_plane::{
    AuditError, Config, ConfigError, DatabaseCommandError, Inspection, api_description, backup, export_audit, migrate,
    migrate_to_postgres, mint_human_token, restore, run, unreadable, verify_audit,
};
use countersign_process::{Shutdown, telemetry};
use secrecy::SecretString;
use std::{
    io::{self, BufWriter, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Registers software agents by their public keys and issues their access tokens.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// For trying things out: loopback only, a development authority, public registration, a first service
    #[arg(long, global = true)]
    dev: bool,
    /// A TOML file with settings
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// A single setting, such as listen.api=127.0.0.1:9443; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value, global = true)]
    set: Vec<(String, String)>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the API (the default)
    Serve,
    /// Tokens for people, signed with the operator key beside the embedded database
    #[command(subcommand)]
    HumanToken(HumanToken),
    /// The record of who did what, in the database of the settings
    #[command(subcommand)]
    Audit(Audit),
    #[command(flatten)]
    DatabaseCommand(DatabaseCommand),
    /// Print the description of the API (OpenAPI 3.1)
    Openapi,
    /// The settings, without starting anything
    #[command(subcommand)]
    Config(ConfigCommand),
}

/// The database as a whole.
#[derive(Subcommand)]
enum DatabaseCommand {
    /// Bring the schema of the database up to date, beside replicas of before that serve, and end
    Migrate {
        /// Instead, copy the embedded database to an empty one of PostgreSQL, with nobody serving it, and compare both; a password
        /// is better in PGPASSWORD or ~/.pgpass than in the URL
        #[arg(long, value_name = "URL")]
        to: Option<SecretString>,
    },
    /// Copy the embedded database into a file, beside the running server; PostgreSQL has its own tools for that
    Backup {
        /// Where to; nothing must be there
        file: PathBuf,
    },
    /// Put a backup into the place of the embedded database, with nobody serving it, and end what may have changed since;
    /// without a file, do the latter for a database that was restored otherwise, as by `pg_restore`
    Restore {
        /// A backup
        file: Option<PathBuf>,
        /// Also if there is a database, which is kept beside
        #[arg(long, requires = "file")]
        replace: bool,
    },
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Say `ok`, or everything for which a start would be refused
    Check,
    /// Print the settings that hold, as TOML, each with who said it; secrets are hidden
    Print,
}

#[derive(Subcommand)]
enum Audit {
    /// Check that no link of a chain was changed, moved, added or taken; name the first that is broken
    Verify(Chains),
    /// Write all links as JSON lines, up to the first that is broken
    Export(Chains),
}

/// Which chains.
#[derive(clap::Args)]
struct Chains {
    /// The service; left out: all, and the one of the deployment
    #[arg(long, value_name = "ID")]
    service: Option<String>,
}

#[derive(Subcommand)]
enum HumanToken {
    /// Mint a token and print it
    Mint {
        /// Whom the token speaks of: becomes the owner of what is created with it
        #[arg(long, value_parser = subject)]
        subject: String,
        /// Whether the person manages everything
        #[arg(long)]
        admin: bool,
        /// Life of the token, in hours
        #[arg(long, default_value_t = 8)]
        hours: u32,
    },
}

/// Wrong settings or arguments.
const USAGE: u8 = 2;

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { dev, config, set, command } = Arguments::parse();
    if let Some(Command::Config(command)) = command {
        return inspect(&command, Inspection::read(config, environment(), set, dev));
    }
    let config = match Config::read(config, environment(), set, dev) {
        Ok(config) => config,
        Err(error) => return fail(USAGE, &error),
    };
    if let Err(error) = telemetry::init(&config.log) {
        return fail(USAGE, &error);
    }
    let done = match command.unwrap_or(Command::Serve) {
        Command::Serve => match config.check() {
            Ok(()) => serve(config).await,
            Err(error) => return fail(USAGE, &error),
        },
        Command::Config(_) => return ExitCode::SUCCESS, // answered above
        Command::HumanToken(HumanToken::Mint { subject, admin, hours }) => mint(&config, &subject, admin, hours),
        Command::Audit(command) => audit(&config, command).await.map_err(Into::into),
        Command::DatabaseCommand(command) => run_database_command(&config, command).await.map_err(Into::into),
        Command::Openapi => describe().map_err(Into::into),
    };
    done.map_or_else(|error| fail(1, &error), |()| ExitCode::SUCCESS)
}

async fn serve(config: Config) -> Result<(), Box<dyn std::error::Error>> {
    Ok(run(config, Shutdown::on_signals()?).await?)
}

#[expect(clippy::print_stdout, reason = "the token is what the command is for")]
fn mint(config: &Config, subject: &str, admin: bool, hours: u32) -> Result<(), Box<dyn std::error::Error>> {
    let life = Duration::from_secs(u64::from(hours) * 3600);
    println!("{}", mint_human_token(config, subject, admin, life)?);
    Ok(())
}

async fn audit(config: &Config, command: Audit) -> Result<(), AuditError> {
    let out = BufWriter::new(std::io::stdout());
    match command {
        Audit::Verify(Chains { service }) => verify_audit(config, service.as_deref(), out).await,
        Audit::Export(Chains { service }) => export_audit(config, service.as_deref(), out).await,
    }
}

/// What concerns the database as a whole.
async fn run_database_command(config: &Config, command: DatabaseCommand) -> Result<(), DatabaseCommandError> {
    let report = match command {
        DatabaseCommand::Migrate { to: None } => migrate(config).await,
        DatabaseCommand::Migrate { to: Some(target) } => migrate_to_postgres(config, &target).await,
        DatabaseCommand::Backup { file } => backup(config, &file).await,
        DatabaseCommand::Restore { file, replace } => restore(config, file.as_deref(), replace).await,
    }?;
    report.write_to(io::stdout())
}

#[expect(clippy::print_stdout, reason = "what the command is for")]
fn inspect(command: &ConfigCommand, inspection: Result<Inspection, ConfigError>) -> ExitCode {
    let inspection = match inspection {
        Ok(inspection) => inspection,
        Err(error) => return fail(USAGE, &error),
    };
    let mut problems = inspection.problems();
    if let (ConfigCommand::Check, true) = (command, problems.is_empty()) {
        problems.extend(unreadable(&inspection).map(|error| error.to_string()));
    }
    match command {
        ConfigCommand::Check if problems.is_empty() => println!("ok"),
        ConfigCommand::Print => print!("{}", inspection.print()),
        ConfigCommand::Check => {}
    }
    problems.iter().fold(ExitCode::SUCCESS, |_, problem| fail(USAGE, problem))
}

fn describe() -> io::Result<()> {
    io::stdout().write_all(api_description().as_bytes())
}

#[expect(clippy::print_stderr, reason = "an error of the command line belongs on standard error")]
fn fail(code: u8, error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("countersign-control-plane: {error}");
    code.into()
}

/// Variables that are no text are none of ours.
fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// What an issuer's token may say too (OpenID Connect Core, section 2).
fn subject(text: &str) -> Result<String, &'static str> {
    let good = (1..=255).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    good.then(|| text.to_owned()).ok_or("must be 1 to 255 characters, without control characters")
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}
