//! Obtains tokens for the commands of an agent, and stores them in the profile.

use super::{
    CliError,
    args::{AgentArg, ServerArgs},
    complete,
    context::{Context, missing},
    ids::service_id,
};
use clap::{Args, ValueHint};
use clap_complete::ArgValueCandidates;
use countersign_client::{
    ApiError, ProfileError, Session, SessionTokens, Signer, SignerCommand, clock, profile::TokenSubject,
};
use std::path::PathBuf;

/// The agent that logs in. The defaults of the options are the values that `countersign agent register` saved in the
/// profile.
#[derive(Args)]
pub struct LoginArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub signer: SignerArgs,
    #[command(flatten)]
    pub agent: AgentArg,
    /// The service that becomes the audience of the token, saved in the profile [default: the service of the agent's
    /// last login, if it holds a role there]
    #[arg(long, add = ArgValueCandidates::new(complete::service_ids))]
    pub service: Option<String>,
    /// Remove the saved service from the profile, so that the control plane chooses the audience
    #[arg(long, conflicts_with = "service")]
    pub no_service: bool,
}

/// The private key of an agent.
#[derive(Args)]
pub struct SignerArgs {
    /// The file with the agent's private key [default: the key of the profile]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub key: Option<PathBuf>,
    /// A command that signs instead: it reads the nonce from standard input and prints the signature
    #[arg(
        long,
        value_name = "COMMAND",
        conflicts_with = "key",
        value_parser = parse_nonblank,
        value_hint = ValueHint::CommandString
    )]
    pub signer: Option<String>,
}

fn parse_nonblank(text: &str) -> Result<String, &'static str> {
    if text.trim().is_empty() { Err("a command is required") } else { Ok(text.to_owned()) }
}

/// How [`login`] obtains tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenPolicy {
    /// Use the stored tokens while they are valid, else refresh them or log in.
    Valid,
    /// Refresh the tokens, also if they are valid.
    Refresh,
    /// Log in, also if the stored tokens are valid.
    NewLogin,
}

impl SignerArgs {
    /// The signer that the flags name, or else the signer of the profile.
    pub fn open(&self, context: &Context) -> Result<Signer, CliError> {
        let profile = &context.profile;
        let command = self.signer.as_ref().or(if self.key.is_none() { profile.signer.as_ref() } else { None });
        if let Some(command) = command {
            return Ok(Signer::Command(SignerCommand::new(command)));
        }
        Ok(Signer::Key(context.private_key(&self.path(context)?)?))
    }

    /// The path of the file with the agent's private key.
    pub fn path(&self, context: &Context) -> Result<PathBuf, CliError> {
        let path = self.key.clone().or_else(|| context.profile.key.clone());
        path.ok_or_else(|| {
            missing("the key", "`countersign agent keygen` creates one; or set --key FILE or --signer COMMAND")
        })
    }
}

/// Tokens, and the result of storing them.
pub struct LoginResult {
    /// The tokens.
    pub tokens: SessionTokens,
    /// The error if the tokens could not be stored.
    pub saved: Result<(), ProfileError>,
}

impl LoginResult {
    /// The warning for tokens that were not stored.
    pub fn warning(&self) -> Option<String> {
        let error = self.saved.as_ref().err()?;
        Some(format!("the tokens are not saved, so the next command logs in again: {error}"))
    }
}

/// Obtains tokens, and stores them if the agent is the profile's agent.
pub async fn login(context: &Context, args: &LoginArgs, policy: TokenPolicy) -> Result<LoginResult, CliError> {
    let agent = args.agent.id_or_default(context)?;
    let is_profile_agent = context.profile.agent.as_ref() == Some(&agent);
    let requested = args.service.clone().map(service_id).transpose()?;
    let saved_audience = context.profile.audience.clone().filter(|_| is_profile_agent && !args.no_service);
    let uses_saved_audience = requested.is_none() && saved_audience.is_some();
    let audience = requested.or(saved_audience);
    let subject = TokenSubject { url: context.url(&args.server)?, agent: agent.clone(), audience: audience.clone() };
    let session = || -> Result<_, CliError> {
        Ok(Session::new(context.api(&args.server)?, args.signer.open(context)?, agent, audience.clone()))
    };
    if !is_profile_agent {
        return Ok(LoginResult { tokens: request_tokens(&session()?, policy).await?, saved: Ok(()) });
    }
    let with_hint = |error| {
        if uses_saved_audience {
            CliError::with_hint(error, "SERVICE_NOT_FOUND", || hint_for_saved_audience(context))
        } else {
            error.into()
        }
    };

    let lock = context.profiles.lock(&context.name);
    let stored = context.profiles.tokens(&context.name, &subject)?;
    let is_current = |tokens: &&SessionTokens| policy == TokenPolicy::Valid && clock::now() < tokens.refresh_at;
    if let Some(tokens) = stored.as_ref().filter(is_current) {
        let saved = context.update_profile(|profile| profile.audience = audience);
        return Ok(LoginResult { tokens: tokens.clone(), saved });
    }
    let session = session()?;
    // A refresh token can be used once, so it is not used if its successor cannot be stored.
    let (tokens, saved) = match lock.and_then(|lock| context.check_writable().map(|()| lock)) {
        Err(error) if policy == TokenPolicy::Refresh => return Err(error.into()),
        Err(error) => (session.login().await.map_err(with_hint)?, Err(error)),
        Ok(_lock) => {
            let tokens = request_tokens(&session.resume(stored), policy).await.map_err(with_hint)?;
            let saved = context.profiles.save_tokens(&context.name, &subject, &tokens);
            (tokens, saved.and_then(|()| context.update_profile(|profile| profile.audience = audience)))
        }
    };
    Ok(LoginResult { tokens, saved })
}

fn hint_for_saved_audience(context: &Context) -> String {
    let (name, service) = (&context.name, context.profile.audience.as_deref().unwrap_or_default());
    format!(
        "the profile {name} logs in for the service {service}, which may be deleted: `countersign agent login --no-service` \
         removes it from the profile"
    )
}

async fn request_tokens(session: &Session<Signer>, policy: TokenPolicy) -> Result<SessionTokens, ApiError> {
    match policy {
        TokenPolicy::Valid => session.tokens().await,
        TokenPolicy::Refresh => session.refresh().await,
        TokenPolicy::NewLogin => session.login().await,
    }
}
