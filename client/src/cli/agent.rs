//! `countersign agent`: keys, registration, tokens, calls of services, and the status of agents.

mod exec;
mod own;
mod register;
mod show;

pub use show::public_key_hash;

use super::{
    call::{self, CallArgs},
    login::{LoginArgs, LoginResult, TokenPolicy, login},
    oauth::{LoginChoice, OAuthArgs},
    prelude::{
        API_ALLOWS_AT_ONCE, API_REFUSES_AT_ONCE, CliError, CommandOutput, ConfirmArgs, Context, HumanArgs, Receipt,
        ReceiptArgs, RequiredAgentArg, SecretFile, value_text,
    },
    time::rfc3339,
};
use clap::{Args, Subcommand, ValueHint};
use countersign_client::{ApiError, Scope, api::ChangedRecord};
use secrecy::ExposeSecret;
use serde_json::json;
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum AgentCommand {
    /// Create a P-256 key in a new file of mode 0600 and print its public key
    #[command(after_help = "The private key stays on this machine. For a key in a TPM or HSM see `countersign \
        agent register --help`.\n\n\
        Examples:\n  $ countersign agent keygen\n  $ countersign agent keygen --key agent.key\n\n\
        Next: countersign agent register --server https://HOST:PORT --email YOU@EXAMPLE.ORG --name NAME")]
    Keygen {
        /// The file to create [default: PROFILE.key in ~/.config/countersign]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        key: Option<PathBuf>,
    },
    /// Register a public key and print the id of the agent
    #[command(after_help = register::HELP)]
    Register(register::RegisterArgs),
    /// Log in and print an access token
    #[command(
        after_help = "With --oauth, the command logs in over the OAuth token endpoint of the control plane (RFC 6749, \
        RFC 7523). --scope limits the tokens to some permissions of the agent, and --resource names a service by one of its \
        resource URIs (RFC 8707). The profile saves these options: later commands and refreshes keep the limits, until \
        --oauth sets others or --no-oauth removes them.\n\n\
        Examples:\n  $ countersign agent login\n  $ countersign agent login --oauth --scope 'read list'\n  \
        $ countersign agent login --oauth --resource https://mcp.example/\n  \
        $ curl -H \"Authorization: Bearer $(countersign agent login)\" https://service.example/\n\n\
        Next: countersign agent call URL, which logs in by itself, or countersign token inspect"
    )]
    Login(AgentLoginArgs),
    /// Refresh the stored tokens and print the new access token
    #[command(after_help = "`call` and `exec` do this themselves if the token is about to expire.\n\n\
        Examples:\n  $ countersign agent refresh\n\n\
        Next: countersign agent show")]
    Refresh(TokenArgs),
    /// Show an agent, without secrets
    #[command(
        after_help = "With COUNTERSIGN_SERVICE_ID and COUNTERSIGN_SERVICE_KEY the command also shows the agent's status \
        and trust score.\n\n\
        Examples:\n  $ countersign agent show\n  $ countersign agent show AGENT -o json\n\n\
        Next: countersign agent call URL, or countersign token inspect"
    )]
    Show(show::ShowArgs),
    /// List the agents that you have registered
    #[command(
        after_help = "Newest first. `countersign role holders` lists the agents that hold a role at a service.\n\n\
        Examples:\n  $ countersign agent list\n  $ countersign agent list -o json\n\n\
        Next: countersign agent services AGENT"
    )]
    List(HumanArgs),
    /// List the services at which an agent holds a role, and the services that it has left
    #[command(after_help = "Only the owner of the agent and administrators can list them.\n\n\
        Examples:\n  $ countersign agent services AGENT\n\n\
        Next: countersign agent leave AGENT SERVICE")]
    Services(own::ServicesArgs),
    /// Leave a service: end all roles of the agent there, and do not let the service assign new ones
    #[command(
        after_help = "The roles end within a second. The agent can still log in for the service, without a role.\n\n\
        Examples:\n  $ countersign agent leave AGENT SERVICE\n\n\
        Next: countersign agent readmit AGENT SERVICE, to allow the service to assign roles again"
    )]
    Leave(own::AdmissionArgs),
    /// Undo `leave`: allow the service to assign roles to the agent again
    #[command(after_help = "Roles that ended stay ended; the service can assign them again.\n\n\
        Examples:\n  $ countersign agent readmit AGENT SERVICE\n\n\
        Next: countersign agent services AGENT")]
    Readmit(own::AdmissionArgs),
    /// Run a program with an access token and an OAuth token endpoint in its environment
    #[command(after_help = exec::HELP)]
    Exec(exec::ExecArgs),
    /// Call a service with an access token and print the body of the response
    #[command(
        after_help = "The command logs in or refreshes the token if necessary. Exit code 3 if the service answers 401 or 403, 1 \
        for other errors of the service, 4 if it is unreachable.\n\n\
        Examples:\n  $ countersign agent call https://service.example/orders\n  \
        $ countersign agent call https://service.example/orders -d @order.json -H 'Content-Type: application/json'\n\n\
        Next: if it is denied, countersign token inspect, and `countersign role list` of the service"
    )]
    Call(Box<CallArgs>),
    /// Suspend an agent everywhere, until it is reactivated
    #[command(
        after_help = "The sessions of the agent end, and its tokens become invalid. --wait prints a receipt: at how \
        many sidecars of one service (--service, COUNTERSIGN_SERVICE_ID or the profile's) the change is in force.\n\n\
        Examples:\n  $ countersign agent suspend AGENT\n  $ countersign agent suspend AGENT --wait --service SERVICE\n\n\
        Next: countersign agent reactivate AGENT"
    )]
    Suspend(StatusArgs),
    /// Allow a suspended agent to log in again
    #[command(
        after_help = "Tokens from before the suspension stay invalid. --wait prints a receipt: at how many sidecars of \
        one service the change is in force.\n\n\
        Examples:\n  $ countersign agent reactivate AGENT\n\n\
        Next: as the agent, countersign agent login"
    )]
    Reactivate(StatusArgs),
    /// Revoke an agent everywhere; this cannot be undone
    #[command(after_help = "The agent can never log in again, and its key cannot be registered again under the same \
        name. `countersign agent suspend` can be undone. --wait prints a receipt: at how many sidecars of one service \
        (--service, COUNTERSIGN_SERVICE_ID or the profile's) the change is in force.\n\n\
        Examples:\n  $ countersign agent revoke AGENT\n  $ countersign agent revoke AGENT --yes\n  \
        $ countersign agent revoke AGENT --yes --wait --service SERVICE\n\n\
        Next: for a new agent, countersign agent keygen")]
    Revoke(RevokeArgs),
    /// Delete an agent: revoke it everywhere and erase its data; this cannot be undone
    #[command(
        after_help = "The control plane erases the owner, e-mail address, name, metadata and public key of the agent. Its id \
        remains in the audit log, and for about 30 days in the feedback of services. The key can be registered again, as \
        another agent. --wait prints a receipt: at how many sidecars of one service the change is in force.\n\n\
        Examples:\n  $ countersign agent delete AGENT\n  $ countersign agent delete AGENT --yes\n\n\
        Next: countersign agent list"
    )]
    Delete(RevokeArgs),
}

#[derive(Args)]
pub struct TokenArgs {
    #[command(flatten)]
    login: LoginArgs,
    /// Write the token to this new file of mode 0600, and print only the id of the agent
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
}

#[derive(Args)]
pub struct AgentLoginArgs {
    #[command(flatten)]
    token: TokenArgs,
    #[command(flatten)]
    oauth: OAuthArgs,
}

#[derive(Args)]
pub struct StatusArgs {
    #[command(flatten)]
    human: HumanArgs,
    #[command(flatten)]
    receipt: ReceiptArgs,
    #[command(flatten)]
    agent: RequiredAgentArg,
}

#[derive(Args)]
pub struct RevokeArgs {
    #[command(flatten)]
    status: StatusArgs,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

pub async fn run(context: &Context, command: AgentCommand) -> Result<CommandOutput, CliError> {
    let hint = hint_for_unknown_agent(&command);
    let result = run_command(context, command).await;
    result.map_err(|error| match hint {
        Some(hint) => error.with_next_for("AGENT_NOT_FOUND", || hint.to_owned()),
        None => error,
    })
}

/// The next step if an agent that logs in does not exist.
pub const UNKNOWN_AGENT_AT_LOGIN: &str = "the agent may be deleted; `countersign agent register --email YOU@EXAMPLE.ORG --name NAME` registers the key again, as \
     another agent";

/// The next step if the agent of the command does not exist. If `None`, [`super::hints`] chooses the step.
const fn hint_for_unknown_agent(command: &AgentCommand) -> Option<&'static str> {
    match command {
        AgentCommand::Login(_) | AgentCommand::Refresh(_) | AgentCommand::Exec(_) | AgentCommand::Call(_) => {
            Some(UNKNOWN_AGENT_AT_LOGIN)
        }
        AgentCommand::Services(_)
        | AgentCommand::Leave(_)
        | AgentCommand::Readmit(_)
        | AgentCommand::Suspend(_)
        | AgentCommand::Reactivate(_)
        | AgentCommand::Revoke(_)
        | AgentCommand::Delete(_) => Some("`countersign agent list` shows your agents"),
        AgentCommand::Keygen { .. } | AgentCommand::Register(_) | AgentCommand::Show(_) | AgentCommand::List(_) => None,
    }
}

async fn run_command(context: &Context, command: AgentCommand) -> Result<CommandOutput, CliError> {
    match command {
        AgentCommand::Keygen { key } => register::keygen(context, key),
        AgentCommand::Register(args) => register::register(context, args).await,
        AgentCommand::Login(AgentLoginArgs { token, oauth }) => {
            get_token(context, &token, oauth.choice()?, TokenPolicy::NewLogin).await
        }
        AgentCommand::Refresh(args) => get_token(context, &args, LoginChoice::OfProfile, TokenPolicy::Refresh).await,
        AgentCommand::Show(args) => show::show(context, args).await,
        AgentCommand::List(args) => own::list(context, args).await,
        AgentCommand::Services(args) => own::services(context, args).await,
        AgentCommand::Leave(args) => own::set_admission(context, args, false).await,
        AgentCommand::Readmit(args) => own::set_admission(context, args, true).await,
        AgentCommand::Exec(args) => exec::exec(context, args).await,
        AgentCommand::Call(args) => call::run(context, &args).await,
        AgentCommand::Suspend(args) => set_status(context, args, "suspended").await,
        AgentCommand::Reactivate(args) => set_status(context, args, "active").await,
        AgentCommand::Revoke(RevokeArgs { status, confirm }) => {
            let agent = context.agent(&status.agent)?;
            let consequence = "The agent can never log in again. This cannot be undone.";
            confirm.confirm(&context.messages, &format!("Revoke the agent {agent}"), consequence)?;
            set_status(context, status, "revoked").await
        }
        AgentCommand::Delete(args) => delete(context, args).await,
    }
}

async fn get_token(
    context: &Context,
    args: &TokenArgs,
    choice: LoginChoice<'_>,
    policy: TokenPolicy,
) -> Result<CommandOutput, CliError> {
    let file = args.out.as_deref().map(SecretFile::create).transpose()?;
    let LoginResult { tokens, saved } = login(context, &args.login, choice, policy).await?;
    let agent = context.agent_or_default(&args.login.agent)?;
    let mut notes: Vec<_> = tokens.scope.iter().map(granted_scope).collect();
    let mut json = json!({ "agentId": agent, "expiresAt": rfc3339(tokens.expires_at), "scope": tokens.scope });
    let output = if let Some(file) = file {
        let path = file.write(&tokens.access_token)?;
        json["file"] = json!(path);
        notes.insert(0, format!("The token is in {}.", path.display()));
        CommandOutput::new(agent, json)
    } else {
        let access_token = tokens.access_token.expose_secret();
        json["accessToken"] = json!(access_token);
        let hint_if_lost = "the token was not printed; `countersign agent login` prints a new one".to_owned();
        CommandOutput::new(access_token, json).with_hint_if_lost(hint_if_lost)
    };
    Ok(output.with_note(notes.join("\n")).with_profile_result(saved))
}

fn granted_scope(scope: &Scope) -> String {
    if scope.is_empty() {
        return "Granted scope: none, because the agent has none of the requested permissions.".to_owned();
    }
    format!("Granted scope: {scope}")
}

async fn delete(context: &Context, args: RevokeArgs) -> Result<CommandOutput, CliError> {
    let RevokeArgs { status: StatusArgs { human, receipt, agent }, confirm } = args;
    let agent = context.agent(&agent)?;
    let api = human.api(context).await?;
    let wait = receipt.wait(context, &api.api, &human.server, &human.token).await?;
    let consequence = "It can never log in again, and its data is erased. This cannot be undone.";
    confirm.confirm(&context.messages, &format!("Delete the agent {agent}"), consequence)?;
    let revision = api.delete_agent(&agent).await?;
    let receipt = Receipt::of(context, wait, revision).await;
    let text = receipt.details([("agentId", agent.clone()), ("deleted", "true".into())], API_REFUSES_AT_ONCE);
    Ok(receipt.output(text, json!({ "deleted": true, "agentId": agent }), None))
}

async fn set_status(context: &Context, args: StatusArgs, status: &str) -> Result<CommandOutput, CliError> {
    let StatusArgs { human, receipt, agent } = args;
    let agent = context.agent(&agent)?;
    let api = human.api(context).await?;
    let wait = receipt.wait(context, &api.api, &human.server, &human.token).await?;
    let changed = api.set_agent_status(&agent, status).await.map_err(with_conflict_reason)?;
    let ChangedRecord { mut record, revision } = changed;
    let receipt = Receipt::of(context, wait, revision).await;
    // The response of the control plane names the agent's id `id`; all output of the command line names it `agentId`.
    if let Some(fields) = record.as_object_mut()
        && let Some(id) = fields.remove("id")
    {
        fields.insert("agentId".into(), id);
    }
    let rows = ["agentId", "name", "status"].map(|name| (name, value_text(&record[name])));
    let (without_sidecars, next) = match status {
        "suspended" => (API_REFUSES_AT_ONCE, "Next: countersign agent reactivate AGENT"),
        "revoked" => (API_REFUSES_AT_ONCE, "Next: for a new agent, countersign agent keygen --profile NAME"),
        _ => (API_ALLOWS_AT_ONCE, "Next: as the agent, countersign agent login"),
    };
    let text = receipt.details(rows, without_sidecars);
    Ok(receipt.output(text, record, Some(next)))
}

/// Adds the reason `agent_revoked` to a conflict: a change of status conflicts only if the agent is revoked.
fn with_conflict_reason(mut error: ApiError) -> ApiError {
    if let ApiError::Refused { status: 409, reason, .. } = &mut error {
        *reason = Some("agent_revoked".to_owned());
    }
    error
}
