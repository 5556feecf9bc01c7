//! Obtains tokens for the commands of an agent, and stores them in the profile.
//!
//! Invariant: the tokens of a command are limited to the scope of the profile, unless an option names another scope.

use super::{
    complete,
    ids::service_id,
    oauth::{LimitArgs, LoginChoice},
    prelude::{AgentArg, CliError, Context, ServerArgs},
};
use clap::{Args, ValueHint};
use clap_complete::ArgValueCandidates;
use countersign_client::{
    ApiError, LoginMethod, Profile, ProfileError, Scope, Session, SessionTokens, Signer, SignerCommand, TokenRequest,
    clock, profile::StoredTokenKey,
};
use std::path::PathBuf;

/// The agent that logs in. The options default to what `countersign agent register` saved in the profile.
#[derive(Args)]
pub struct LoginArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub signer: SignerArgs,
    #[command(flatten)]
    pub agent: AgentArg,
    /// The service that becomes the audience of the token, saved in the profile [default: the saved service or resource, or
    /// else the control plane chooses a service at which the agent holds a role]
    #[arg(long, add = ArgValueCandidates::new(complete::service_ids))]
    pub service: Option<String>,
    /// Remove the saved service or resource from the profile, so that the control plane chooses the audience
    #[arg(long, conflicts_with = "service")]
    pub no_service: bool,
}

/// The private key of an agent.
#[derive(Args)]
pub struct SignerArgs {
    /// The file with the agent's private key [default: the key of the profile]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub key: Option<PathBuf>,
    /// A command that signs in place of a key file: it reads the text to sign from standard input and prints the signature
    #[arg(long, value_name = "COMMAND", conflicts_with = "key", value_parser = parse_nonblank,
        value_hint = ValueHint::CommandString)]
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
    /// Refresh the tokens, even if they are valid.
    Refresh,
    /// Log in, even if the stored tokens are valid.
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

    pub fn path(&self, context: &Context) -> Result<PathBuf, CliError> {
        let next = "`countersign agent keygen` creates one; or set --key FILE or --signer COMMAND";
        let path = self.key.clone().or_else(|| context.profile.key.clone());
        path.ok_or_else(|| CliError::missing("the key", next))
    }
}

pub struct LoginResult {
    pub tokens: SessionTokens,
    /// Whether the tokens and their target could be stored.
    pub saved: Result<(), ProfileError>,
}

impl LoginResult {
    pub fn warn_if_not_saved(&self, context: &Context) {
        if let Err(error) = &self.saved {
            context.messages.warning(&format!("the tokens are not saved, so the next command logs in again: {error}"));
        }
    }
}

/// What the tokens of a command are for. Options override the profile.
pub struct TokenTarget {
    /// The id of the service; `None` if `oauth` names a resource, or if the control plane chooses the service.
    audience: Option<String>,
    /// The request to the OAuth token endpoint; `None` for a login with a challenge.
    pub oauth: Option<TokenRequest>,
    /// Whether the service or the resource comes from the profile, so that a hint can name the profile if it does not exist.
    is_saved: bool,
}

impl TokenTarget {
    /// The service or the resource that the tokens are for.
    pub fn resource(&self) -> Option<&str> {
        let resource = self.oauth.as_ref().and_then(|request| request.resource.as_deref());
        resource.or(self.audience.as_deref())
    }

    pub fn scope(&self) -> Option<&Scope> {
        self.oauth.as_ref()?.scope.as_ref()
    }

    /// How a session obtains the tokens.
    pub fn method(&self) -> LoginMethod {
        let resource = self.resource().map(str::to_owned);
        match &self.oauth {
            None => LoginMethod::Challenge { service: resource },
            Some(request) => LoginMethod::OAuth(TokenRequest { resource, scope: request.scope.clone() }),
        }
    }

    /// Warns if the tokens lack a permission that was requested.
    pub fn warn_if_granted_less(&self, context: &Context, granted: Option<&Scope>) {
        if let (Some(requested), Some(granted)) = (self.scope(), granted)
            && !requested.is_within(granted)
        {
            let missing = requested.without(granted);
            let text = "the control plane granted less than the requested scope: the agent does not have";
            context.messages.warning(&format!("{text} `{missing}`"));
        }
    }

    /// Warns if this login removes or widens the scope that the profile saves.
    fn warn_if_widened(&self, context: &Context) {
        if let Some(TokenRequest { scope: Some(before), .. }) = &context.profile.oauth
            && !self.scope().is_some_and(|scope| scope.is_within(before))
        {
            let text = format!("the profile {} is no longer limited to the scope `{before}`", context.name);
            context.messages.warning(&text);
        }
    }
}

impl LoginArgs {
    /// What the tokens of an agent are for.
    pub fn target(&self, context: &Context, agent: &str, choice: LoginChoice) -> Result<TokenTarget, CliError> {
        let saved = if is_profile_agent(context, agent) { context.profile.clone() } else { Profile::default() };
        let uses_oauth = saved.oauth.is_some();
        let TokenRequest { resource: saved_resource, scope: saved_scope } = saved.oauth.unwrap_or_default();
        let service = self.service.clone().map(service_id).transpose()?;
        let saved_resource = saved_resource.filter(|_| service.is_none() && !self.no_service);
        let with_limits = |limits: &LimitArgs, scope: Option<Scope>| TokenRequest {
            resource: limits.resource.clone().or_else(|| saved_resource.clone()),
            scope,
        };
        let oauth = match choice {
            LoginChoice::Challenge => None,
            LoginChoice::OfProfile => uses_oauth.then(|| with_limits(&LimitArgs::default(), saved_scope)),
            LoginChoice::OAuth(limits) => Some(with_limits(limits, limits.scope.clone())),
            LoginChoice::Limited(limits) => {
                let scope = limits.scope.clone().or(saved_scope);
                (uses_oauth || !limits.is_empty()).then(|| with_limits(limits, scope))
            }
        };
        let has_resource = oauth.as_ref().is_some_and(|request| request.resource.is_some());
        let is_saved = service.is_none() && !matches!(choice, LoginChoice::OAuth(limits) if limits.resource.is_some());
        let saved_audience = saved.audience.filter(|_| !self.no_service);
        let audience = service.or(saved_audience).filter(|_| !has_resource);
        Ok(TokenTarget { audience, oauth, is_saved })
    }
}

fn is_profile_agent(context: &Context, agent: &str) -> bool {
    context.profile.agent.as_deref() == Some(agent)
}

/// Obtains tokens, and stores them if the agent is the profile's agent. Warns if they have fewer permissions than requested.
pub async fn login(
    context: &Context,
    args: &LoginArgs,
    choice: LoginChoice<'_>,
    policy: TokenPolicy,
) -> Result<LoginResult, CliError> {
    let agent = context.agent_or_default(&args.agent)?;
    let target = args.target(context, &agent, choice)?;
    let open_session = || -> Result<_, CliError> {
        let api = context.api(&args.server)?;
        let signer = args.signer.open(context)?;
        Ok(Session::with_method(api, signer, agent.clone(), target.method()))
    };
    if !is_profile_agent(context, &agent) {
        let tokens = request_tokens(&open_session()?, policy).await?;
        target.warn_if_granted_less(context, tokens.scope.as_ref());
        return Ok(LoginResult { tokens, saved: Ok(()) });
    }
    let save_target = || {
        target.warn_if_widened(context);
        context.update_profile(|profile| {
            profile.audience.clone_from(&target.audience);
            profile.oauth.clone_from(&target.oauth);
        })
    };
    let audience = target.audience.clone();
    let oauth = target.oauth.clone();
    let key = StoredTokenKey { url: context.url(&args.server)?, agent: agent.clone(), audience, oauth };

    // Stored tokens that are still valid need no lock, so an error of the lock counts only if we need new tokens.
    let lock = context.profiles.lock(&context.name);
    let stored = context.profiles.tokens(&context.name, &key)?;
    let is_current = |tokens: &&SessionTokens| policy == TokenPolicy::Valid && clock::now() < tokens.refresh_at;
    if let Some(tokens) = stored.as_ref().filter(is_current) {
        return Ok(LoginResult { tokens: tokens.clone(), saved: save_target() });
    }
    let session = open_session()?;
    let with_hint = |error| with_hint_for_saved_target(context, &target, error);
    // A refresh token works once, so we use it only if we hold the lock and can store its successor. If not, we log in.
    let (tokens, saved) = match lock.and_then(|lock| context.check_writable().map(|()| lock)) {
        Err(error) if policy == TokenPolicy::Refresh => return Err(error.into()),
        Err(error) => (session.login().await.map_err(with_hint)?, Err(error)),
        Ok(_lock) => {
            let tokens = request_tokens(&session.resume(stored), policy).await.map_err(with_hint)?;
            let saved = context.profiles.save_tokens(&context.name, &key, &tokens);
            (tokens, saved.and_then(|()| save_target()))
        }
    };
    target.warn_if_granted_less(context, tokens.scope.as_ref());
    Ok(LoginResult { tokens, saved })
}

/// Adds a hint to the error for an unknown service or resource, if it comes from the profile.
fn with_hint_for_saved_target(context: &Context, target: &TokenTarget, error: ApiError) -> CliError {
    let Some(resource) = target.resource().filter(|_| target.is_saved) else { return error.into() };
    let code = if target.oauth.is_some() { "invalid_target" } else { "SERVICE_NOT_FOUND" };
    let name = &context.name;
    let kind = if target.audience.is_some() { "service" } else { "resource" };
    CliError::from(error).with_next_for(code, || {
        format!(
            "the profile {name} logs in for the {kind} {resource}, which may be deleted: `countersign agent login --no-service` removes it \
             from the profile"
        )
    })
}

async fn request_tokens(session: &Session<Signer>, policy: TokenPolicy) -> Result<SessionTokens, ApiError> {
    match policy {
        TokenPolicy::Valid => session.tokens().await,
        TokenPolicy::Refresh => session.refresh().await,
        TokenPolicy::NewLogin => session.login().await,
    }
}
