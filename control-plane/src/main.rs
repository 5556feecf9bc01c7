//! The command line of the control plane.

use clap::{Parser, Subcommand};
use countersign_control_plane::{
    AppError, Config, ConfigError, ConfigInspection, api_description, archive_audit, backup, backup_to_directory,
    check_files, describe_master_keys, export_audit, migrate, migrate_to_postgres, mint_human_token,
    mint_human_token_to_file, restore, rotate_secrets, run, verify_audit,
};
use countersign_process::{
    FlushAtExit, Shutdown,
    output::{write_stderr_line, write_stdout},
    settings::environment,
    shutdown, telemetry,
};
use secrecy::SecretString;
use std::{
    fmt::Display,
    io::{self, BufWriter, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Registers software agents by their public keys and issues their access tokens
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Development mode: loopback only, a generated certificate authority, open registration, a first service, high rate limits
    #[arg(long, global = true)]
    dev: bool,
    /// A TOML file with settings
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// A single setting, such as listen.api=127.0.0.1:9443; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_key_value, global = true)]
    set: Vec<(String, String)>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server (the default)
    Serve,
    /// Issue tokens for human users, signed with the operator key of a server with the embedded database
    #[command(subcommand)]
    HumanToken(HumanToken),
    /// Verify, export or archive the audit log in the configured database
    #[command(subcommand)]
    Audit(Audit),
    #[command(flatten)]
    Database(DatabaseCommand),
    /// Manage the secrets in the configured database
    #[command(subcommand)]
    Secrets(SecretsCommand),
    /// Print the OpenAPI 3.1 description of the API
    Openapi,
    /// Check or print the settings without starting the server
    #[command(subcommand)]
    Config(ConfigCommand),
}

/// Commands that work on the whole database.
#[derive(Subcommand)]
enum DatabaseCommand {
    /// Update the database schema and exit; replicas of the release before may keep running
    Migrate {
        /// Copy the embedded database to this empty PostgreSQL database instead, and compare both; stop the server first.
        /// Prefer PGPASSWORD or ~/.pgpass to a password in the URL
        #[arg(long, value_name = "URL")]
        to: Option<SecretString>,
    },
    /// Copy the embedded database to a file while the server runs; for PostgreSQL use its own tools
    Backup {
        /// The new file; it must not exist
        #[arg(required_unless_present = "directory", conflicts_with = "directory")]
        file: Option<PathBuf>,
        /// Instead of a file: a directory, in which the file is named after the time (countersign-20261126T031700Z.db)
        #[arg(long, value_name = "DIR")]
        directory: Option<PathBuf>,
        /// Then delete the oldest backups in the directory, so that this many remain
        #[arg(long, value_name = "NUMBER", requires = "directory", conflicts_with = "file", value_parser = clap::value_parser!(u32).range(1..))]
        keep: Option<u32>,
    },
    /// Replace the embedded database with a backup, and revoke all credentials that may have changed since; stop the server
    /// first. Without a file, only revoke: for a database that was restored by other means, for example by `pg_restore`
    Restore {
        /// The backup
        file: Option<PathBuf>,
        /// Replace an existing database, which is renamed and kept
        #[arg(long, requires = "file")]
        replace: bool,
    },
}

#[derive(Subcommand)]
enum SecretsCommand {
    /// Make the configured master key the current one and encrypt all secrets in the database with it, while servers run. First
    /// set this key and the previous master keys at all servers. If this is interrupted, run it again
    Rotate,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Print `ok`, or all reasons for which the server would refuse to start
    Check,
    /// Print the effective settings as TOML, with the source of each; secrets are hidden
    Print,
}

#[derive(Subcommand)]
enum Audit {
    /// Check that no entry of a chain was changed, moved, added or removed; print the first invalid one
    Verify {
        #[command(flatten)]
        filter: ChainFilter,
        /// An archive of older entries, which is verified too; name all archives, the oldest first
        #[arg(long = "archive", value_name = "FILE")]
        archives: Vec<PathBuf>,
    },
    /// Write all entries as JSON lines, up to the first invalid one
    Export(ChainFilter),
    /// Move entries before a date to a new file of JSON lines, while servers run; if it is interrupted, run it with another file
    Archive {
        /// A date (UTC) or a time in the format of RFC 3339
        #[arg(long, value_name = "DATE")]
        before: String,
        /// The new file; keep it
        #[arg(long, value_name = "FILE")]
        output: PathBuf,
    },
}

/// The selected audit chains.
#[derive(clap::Args)]
struct ChainFilter {
    /// The service; without it, all services and the deployment
    #[arg(long, value_name = "ID")]
    service: Option<String>,
}

#[derive(Subcommand)]
enum HumanToken {
    /// Issue a token and print it; requires the operator key of a server that has started before
    Mint {
        /// The human user; becomes the owner of what is created with the token
        #[arg(long, value_parser = parse_subject)]
        subject: String,
        /// Make the user an administrator
        #[arg(long)]
        admin: bool,
        /// Lifetime of the token in hours
        #[arg(long, default_value_t = 8)]
        hours: u32,
        /// Write the token to this new file of mode 0600, and print nothing
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

/// The exit code for invalid settings or arguments.
const USAGE_EXIT_CODE: u8 = 2;

fn main() -> ExitCode {
    let _flush_at_exit = FlushAtExit;
    let arguments = Arguments::parse();
    shutdown::block_on(execute(arguments)).unwrap_or_else(|error| fail(1, &error))
}

async fn execute(arguments: Arguments) -> ExitCode {
    let Arguments { dev, config, set, command } = arguments;
    if let Some(Command::Config(command)) = command {
        return inspect(&command, ConfigInspection::read(config, environment(), set, dev)).await;
    }
    let config = match Config::read(config, environment(), set, dev) {
        Ok(config) => config,
        // A later start may succeed, for example when a secret is mounted, so the settings are not invalid.
        Err(ConfigError::Settings(error)) if error.is_unreadable_value() => return fail_with_each_line(1, &error),
        Err(error) => return fail_with_each_line(USAGE_EXIT_CODE, &error),
    };
    if let Err(error) = telemetry::init(&config.log) {
        return fail(USAGE_EXIT_CODE, &error);
    }
    let result = match command.unwrap_or(Command::Serve) {
        Command::Serve => match config.check() {
            Ok(()) => serve(config).await,
            Err(error) => return fail_with_each_line(USAGE_EXIT_CODE, &error),
        },
        Command::Config(_) => return ExitCode::SUCCESS, // handled above
        Command::HumanToken(command) => mint(&config, command),
        Command::Audit(command) => audit(&config, command).await,
        Command::Database(command) => database(&config, command).await,
        Command::Secrets(SecretsCommand::Rotate) => rotate(&config).await,
        Command::Openapi => print_ignoring_closed_pipe(api_description()),
    };
    result.map_or_else(|error| fail(1, &error), |()| ExitCode::SUCCESS)
}

async fn serve(config: Config) -> Result<(), AppError> {
    run(config, Shutdown::on_signals().map_err(AppError::Signals)?).await
}

fn mint(config: &Config, command: HumanToken) -> Result<(), AppError> {
    let HumanToken::Mint { subject, admin, hours, out } = command;
    let lifetime = Duration::from_secs(u64::from(hours) * 3600);
    if let Some(file) = out {
        return mint_human_token_to_file(config, &subject, admin, lifetime, &file);
    }
    // A closed standard output is an error, because the token would be lost.
    print(format_args!("{}\n", mint_human_token(config, &subject, admin, lifetime)?))
}

async fn audit(config: &Config, command: Audit) -> Result<(), AppError> {
    let mut out = BufWriter::new(io::stdout());
    let result = match command {
        Audit::Verify { filter: ChainFilter { service }, archives } => {
            verify_audit(config, service.as_deref(), &archives, &mut out).await
        }
        Audit::Export(ChainFilter { service }) => export_audit(config, service.as_deref(), &mut out).await,
        Audit::Archive { before, output } => {
            return archive_audit(config, &before, &output).await?.write_to(io::stdout());
        }
    };
    let flushed = out.flush().map_err(AppError::Output);
    result.and(flushed)
}

async fn database(config: &Config, command: DatabaseCommand) -> Result<(), AppError> {
    let report = match command {
        DatabaseCommand::Migrate { to: None } => migrate(config).await,
        DatabaseCommand::Migrate { to: Some(target) } => migrate_to_postgres(config, &target).await,
        DatabaseCommand::Backup { file: Some(file), directory: _, keep: _ } => backup(config, &file).await,
        DatabaseCommand::Backup { file: None, directory, keep } => {
            backup_to_directory(config, &directory.unwrap_or_default(), keep).await
        }
        DatabaseCommand::Restore { file, replace } => restore(config, file.as_deref(), replace).await,
    }?;
    report.write_to(io::stdout())
}

async fn rotate(config: &Config) -> Result<(), AppError> {
    rotate_secrets(config).await?.write_to(io::stdout())
}

/// Runs `config check` or `config print`, and reports each problem in the settings.
async fn inspect(command: &ConfigCommand, inspection: Result<ConfigInspection, ConfigError>) -> ExitCode {
    let inspection = match inspection {
        Ok(inspection) => inspection,
        Err(error) => return fail(USAGE_EXIT_CODE, &error),
    };
    let mut problems = inspection.problems();
    let mut master_keys = String::new();
    if let (ConfigCommand::Check, true, Some(config)) = (command, problems.is_empty(), inspection.config()) {
        problems.extend(check_files(&config).await.iter().map(ToString::to_string));
        match describe_master_keys(&config) {
            Ok(description) => master_keys = description,
            Err(error) => problems.push(error.to_string()),
        }
    }
    let printed = match command {
        ConfigCommand::Check if problems.is_empty() => print(format_args!("ok\n{master_keys}")),
        ConfigCommand::Print => print_ignoring_closed_pipe(inspection.print()),
        ConfigCommand::Check => Ok(()),
    };
    let code = printed.map_or_else(|error| fail(1, &error), |()| ExitCode::SUCCESS);
    problems.iter().fold(code, |_, problem| fail(USAGE_EXIT_CODE, problem))
}

fn print(text: impl Display) -> Result<(), AppError> {
    write_stdout(text).map_err(AppError::Output)
}

/// Like [`print()`], but succeeds if the reader, such as `head`, closes the pipe early.
fn print_ignoring_closed_pipe(text: impl Display) -> Result<(), AppError> {
    match print(text) {
        Err(AppError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Prints each line of `errors` as an error.
fn fail_with_each_line(code: u8, errors: &dyn Display) -> ExitCode {
    errors.to_string().lines().fold(code.into(), |_, error| fail(code, &error))
}

/// Prints an error. If standard error is closed or full, only the exit code reports the error.
fn fail(code: u8, error: &dyn Display) -> ExitCode {
    write_stderr_line(format_args!("countersign-control-plane: {error}"));
    code.into()
}

/// Parses a `sub` as defined in OpenID Connect Core, section 2.
fn parse_subject(text: &str) -> Result<String, &'static str> {
    let is_valid = (1..=255).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    is_valid.then(|| text.to_owned()).ok_or("must be 1 to 255 characters, without control characters")
}

fn parse_key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}
