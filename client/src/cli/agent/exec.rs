//! `countersign agent exec`: runs a program that gets access tokens of the agent from a token endpoint on this machine.
//!
//! `child` runs the program. `endpoint` answers the program's token requests: `client_authentication` checks the client secret,
//! `token_request` the requested scope and resource, and `token_source` obtains tokens from the control plane. Invariants: no
//! access token of the program exceeds `--scope` and `--resource`. The program gets neither the private key nor a refresh token.
//! The client secret is only in the environment of the program, never in an argument list.

mod child;
mod client_authentication;
mod endpoint;
mod token_request;
mod token_source;

use crate::cli::{
    login::{LoginArgs, TokenPolicy, login},
    loopback::BoundServer,
    oauth::{LimitArgs, LoginChoice},
    prelude::{Cause, CliError, CommandOutput, Context},
};
use clap::{Args, ValueHint};
use client_authentication::ClientCredentials;
use countersign_client::TokenRequest;
use endpoint::{Endpoint, EndpointUrls};
use secrecy::ExposeSecret;
use std::{ffi::OsString, sync::Arc};
use token_source::{NoTokens, TokenSource};
use tokio::process::Command;

/// Variables with credentials of people and services, which the program does not get.
const OTHER_CREDENTIALS: [&str; 5] = [
    "COUNTERSIGN_HUMAN_TOKEN",
    "COUNTERSIGN_HUMAN_TOKEN_FILE",
    "COUNTERSIGN_SERVICE_KEY",
    "COUNTERSIGN_SERVICE_KEY_FILE",
    "COUNTERSIGN_WEBHOOK_SECRET",
];

pub const HELP: &str = "\
The program finds an access token in COUNTERSIGN_TOKEN. The token is not refreshed. A program that outlives it, or that expects \
an OAuth server, requests tokens from a token endpoint that runs on 127.0.0.1 as long as the program does. The endpoint \
supports the grant type client_credentials, and the client authentication client_secret_basic and client_secret_post.

Variables of the program:
  COUNTERSIGN_TOKEN                  An access token
  OAUTH_TOKEN_URL                    The URL of the token endpoint
  OAUTH_CLIENT_ID                    The id of the agent
  OAUTH_CLIENT_SECRET                A random secret, which is valid for this run
  OAUTH_ISSUER                       The issuer; its server metadata (RFC 8414) name the token endpoint
  OAUTH_SCOPE, OAUTH_RESOURCE        The scope, and the service or resource, if the tokens are limited
  NO_PROXY, no_proxy                 The inherited value and 127.0.0.1, if a proxy is set

The tokens are limited to --scope, and are for --service or --resource. The program can request a narrower scope, but no wider \
one and no other resource. Without these options, the settings of the profile apply. With --scope or --resource, the command \
logs in over OAuth, and does not change the profile. When the program ends, the tokens of the endpoint are revoked. Without \
--scope and --resource, COUNTERSIGN_TOKEN is the token of the profile and stays valid.

Signals are passed on to the program. The exit code is that of the program, or 128 plus the number of the signal that ended \
the program. It is 127 if the program is not found, and 126 if it cannot be executed.

Examples:
  $ countersign agent exec -- ./job.sh
  $ countersign agent exec --scope read --resource https://mcp.example/ -- ./mcp-client
  $ countersign agent exec -- sh -c 'TOKEN_ENDPOINT=$OAUTH_TOKEN_URL exec ./other-names'

Next: countersign agent show";

#[derive(Args)]
pub struct ExecArgs {
    #[command(flatten)]
    login: LoginArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// Runs the program, and returns its exit code.
pub async fn exec(context: &Context, args: ExecArgs) -> Result<CommandOutput, CliError> {
    let ExecArgs { login: login_args, limits, command } = args;
    let Some((program, arguments)) = command.split_first() else {
        return Err(CliError::missing("the command", "countersign agent exec -- CMD"));
    };
    let agent = context.agent_or_default(&login_args.agent)?;
    let target = login_args.target(context, &agent, LoginChoice::Limited(&limits))?;
    let api = context.api(&login_args.server)?;
    let signer = login_args.signer.open(context)?;
    let source = Arc::new(TokenSource::new(api, signer, agent.clone(), &target));
    let token = if limits.is_empty() {
        let result = login(context, &login_args, LoginChoice::OfProfile, TokenPolicy::Valid).await?;
        result.warn_if_not_saved(context);
        result.tokens.access_token
    } else {
        let tokens = source.tokens(None).await.map_err(|error| match error {
            NoTokens::Api(error) => CliError::from(error),
            NoTokens::TooManyScopes => CliError::failed(error.to_string()),
        })?;
        target.warn_if_granted_less(context, tokens.scope.as_ref());
        tokens.access_token
    };

    let server = BoundServer::bind(0).await.map_err(|error| CliError::failed(format!("127.0.0.1: {error}")))?;
    let urls = EndpointUrls(server.port());
    let credentials = ClientCredentials::generate(agent);
    let mut process = Command::new(program);
    process.args(arguments).env("COUNTERSIGN_TOKEN", token.expose_secret());
    // The program acts as the agent, so it gets no other credential of its user.
    for name in OTHER_CREDENTIALS {
        process.env_remove(name);
    }
    set_endpoint(&mut process, &urls, &credentials, &source.limits);
    child::exclude_loopback_from_proxy(&mut process);

    let endpoint = Arc::new(Endpoint { urls, credentials, source: source.clone(), messages: context.messages.clone() });
    let server = server.start(move |request| {
        let endpoint = endpoint.clone();
        async move { endpoint.respond(request).await }
    });
    let ended = child::run(process).await;
    server.close().await;
    source.revoke_all().await;
    let not_started = |error| Cause::NotStarted { program: program.to_string_lossy().into_owned(), error };
    Ok(CommandOutput::of_program(ended.map_err(not_started)?))
}

/// Sets the environment variables with which the program finds the token endpoint.
fn set_endpoint(command: &mut Command, urls: &EndpointUrls, credentials: &ClientCredentials, limits: &TokenRequest) {
    command.env("OAUTH_TOKEN_URL", urls.token_endpoint()).env("OAUTH_ISSUER", urls.issuer());
    command.env("OAUTH_CLIENT_ID", &credentials.id).env("OAUTH_CLIENT_SECRET", credentials.secret.expose_secret());
    let TokenRequest { resource, scope } = limits;
    for (name, value) in
        [("OAUTH_SCOPE", scope.as_ref().map(ToString::to_string)), ("OAUTH_RESOURCE", resource.clone())]
    {
        // If the command sets no limit, we remove the variable: the program could inherit a limit of another command.
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}
