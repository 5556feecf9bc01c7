//! `countersign agent`: a key, a registration, tokens, and what is done with them.

mod register;
mod show;

use super::{
    Failure, Said,
    call::{self, Call},
    context::{Context, Human, agent_id, missing, person},
    login::{Got, Want, Who, tokens},
    said::{shown, table},
};
use clap::{Args, Subcommand};
use countersign_client::ApiError;
use countersign_identity::Timestamp;
use secrecy::ExposeSecret;
use serde_json::json;
use std::{io::Write, os::unix::process::CommandExt, path::PathBuf};

#[derive(Subcommand)]
pub enum Agent {
    /// Make a P-256 key in a new file with mode 0600 and print its public half
    #[command(after_help = "The private key stays on this machine. A key that something else holds (a TPM, an HSM) \
        needs no keygen: see `countersign agent register --help`.\n\n\
        Next: countersign agent register --url https://HOST:PORT --email YOU@EXAMPLE.ORG --name NAME")]
    Keygen {
        /// The file to make; left out: PROFILE.key in ~/.config/countersign
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
    },
    /// Register the public half of a key and print the agent's id
    #[command(after_help = "Key, name, and e-mail (or, with a person's token, that person) together are the agent: \
        the same again are the same agent, whatever became of it since; another name or key is another agent.\n\n\
        A control plane started with --dev writes what --url and --ca want to know into the file dev.env of its data \
        folder and says where that is; where nobody chose another folder: `set -a; . countersign-dev/dev.env; set +a`.\n\nThe profile then remembers the control plane, the agent and its key, so that later \
        commands need no flags.\n\nA key in a TPM or HSM: --signer 'COMMAND' --public-key FILE. The command gets the \
        nonce on standard input and prints the signature, as `openssl dgst -sha256 -sign KEY` does; it is tried once \
        before anything is registered.\n\n\
        Next: the service gives the agent a role (countersign role create --help), then\n\
        countersign agent call URL")]
    Register(register::Register),
    /// Answer a challenge and print an access token
    #[command(
        after_help = "Next: countersign agent call URL, which needs no login before it, or countersign token inspect"
    )]
    Login(Who),
    /// Replace the tokens that are kept and print the new access token
    #[command(after_help = "`call` and `exec` refresh by themselves when a token is about to expire.\n\n\
        Next: countersign agent show")]
    Refresh(Who),
    /// Show the agent of this profile: no secrets
    #[command(after_help = "With COUNTERSIGN_SERVICE_KEY set it also shows how the service sees the agent.\n\n\
        Next: countersign agent call URL, or countersign token inspect")]
    Show(show::Show),
    /// Run a command with an access token in its environment
    #[command(
        after_help = "The token is in COUNTERSIGN_TOKEN. The exit code is the command's own; 127 if there is no such command, 126 if it \
        cannot be run. The token is good for its life, mostly an hour, and \
        is not replaced while the command runs.\n\n\
        Next: countersign agent exec -- sh -c 'curl -H \"Authorization: Bearer $COUNTERSIGN_TOKEN\" URL'"
    )]
    Exec(Exec),
    /// Call a service with an access token, and print the answer's body
    #[command(
        after_help = "Logs in or refreshes when needed. Exit code 3 if the service answers 401 or 403, 1 for any \
        other error of it, 4 if it does not answer.\n\n\
        Next, if it is denied: countersign token inspect, and the service's `countersign role list`"
    )]
    Call(Box<Call>),
    /// Refuse an agent everywhere, until it is reactivated
    #[command(after_help = "Its logins end and its tokens die.\n\nNext: countersign agent reactivate AGENT")]
    Suspend(Status),
    /// Let a suspended agent log in again
    #[command(after_help = "Tokens of before stay dead.\n\nNext, as the agent: countersign agent login")]
    Reactivate(Status),
    /// Refuse an agent everywhere, for good
    #[command(after_help = "Nothing brings it back. Next: a new agent begins with countersign agent keygen")]
    Revoke(Status),
}

#[derive(Args)]
pub struct Exec {
    #[command(flatten)]
    who: Who,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<std::ffi::OsString>,
}

#[derive(Args)]
pub struct Status {
    #[command(flatten)]
    human: Human,
    /// The agent's id
    agent: String,
}

/// Does what was asked.
pub async fn run(context: &Context, command: Agent) -> Result<Said, Failure> {
    match command {
        Agent::Keygen { key } => register::keygen(context, key),
        Agent::Register(asked) => register::register(context, asked).await,
        Agent::Login(who) => printed(context, &who, Want::Login).await,
        Agent::Refresh(who) => printed(context, &who, Want::Fresh).await,
        Agent::Show(asked) => show::show(context, asked).await,
        Agent::Exec(exec) => self::exec(context, exec).await,
        Agent::Call(call) => call::run(context, &call).await,
        Agent::Suspend(status) => set_status(context, status, "suspended").await,
        Agent::Reactivate(status) => set_status(context, status, "active").await,
        Agent::Revoke(status) => set_status(context, status, "revoked").await,
    }
}

async fn printed(context: &Context, who: &Who, want: Want) -> Result<Said, Failure> {
    let Got { held, saved } = tokens(context, who, want).await?;
    let token = held.access_token.expose_secret();
    let value = json!({
        "agentId": context.agent(who.agent.clone())?,
        "accessToken": token,
        "expiresAt": instant(held.expires_at),
    });
    Ok(Said::new(token, value).remembered(saved))
}

async fn exec(context: &Context, exec: Exec) -> Result<Said, Failure> {
    let Some((program, arguments)) = exec.command.split_first() else {
        return Err(missing("which command", "countersign agent exec -- CMD"));
    };
    let got = tokens(context, &exec.who, Want::Good).await?;
    let note = got.unremembered();
    if !note.is_empty() {
        let _closed = writeln!(std::io::stderr(), "{note}");
    }
    // Takes this process's place: signals and the exit code need nobody in between.
    let error = std::process::Command::new(program)
        .args(arguments)
        .env("COUNTERSIGN_TOKEN", got.held.access_token.expose_secret())
        .exec();
    Err(Failure::NotRun { program: program.to_string_lossy().into_owned(), error })
}

async fn set_status(context: &Context, asked: Status, status: &str) -> Result<Said, Failure> {
    let Status { human, agent } = asked;
    let api = context.api(&human.server)?;
    let agent = agent_id(agent)?;
    let changed = api.set_agent_status(person(human.human_token.as_ref())?, &agent, status).await;
    let mut seen = changed.map_err(|error| match error {
        // Nothing else stands in the way of another status.
        ApiError::Refused { status: status @ 409, code, message, reason: _, retry_after } => {
            ApiError::Refused { status, code, message, reason: Some("agent_revoked".into()), retry_after }
        }
        error => error,
    })?;
    if let Some(fields) = seen.as_object_mut()
        && let Some(id) = fields.remove("id")
    {
        fields.insert("agentId".into(), id);
    }
    let rows = ["agentId", "name", "status"].map(|name| [name.to_owned(), shown(&seen[name])]);
    let next = match status {
        "suspended" => format!("Next: countersign agent reactivate {agent}"),
        "revoked" => "Next: a new agent begins with countersign agent keygen --profile NAME".to_owned(),
        _ => "Next, as the agent: countersign agent login".to_owned(),
    };
    Ok(Said::new(table(&rows), seen).noting(next))
}

/// RFC 3339, in UTC, to the second.
pub fn instant(at: Timestamp) -> String {
    jiff::Timestamp::from_second(at.seconds()).map(|at| at.to_string()).unwrap_or_default()
}
