//! How every command of an agent comes by a token.

use super::{
    Failure,
    context::{Context, Server, missing, private_key, service_id},
};
use clap::Args;
use countersign_client::{ApiError, Held, ProfileError, Session, Signer, SignerCommand, clock, profile::Holder};
use std::path::PathBuf;

/// An agent that logs in; all of it is remembered since its registration.
#[derive(Args)]
pub struct Who {
    #[command(flatten)]
    pub server: Server,
    #[command(flatten)]
    pub holder: KeyHolder,
    /// The agent's id
    #[arg(long)]
    pub agent: Option<String>,
    /// The service that the token is for, remembered; left out: that of the agent's oldest role
    #[arg(long)]
    pub service: Option<String>,
}

/// Who holds the private key.
#[derive(Args)]
pub struct KeyHolder {
    /// The agent's private key
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Or a command that signs: gets the nonce on standard input, prints the signature
    #[arg(long, value_name = "COMMAND", conflicts_with = "key", value_parser = command)]
    pub signer: Option<String>,
}

fn command(text: &str) -> Result<String, &'static str> {
    if text.trim().is_empty() { Err("a command is needed") } else { Ok(text.to_owned()) }
}

/// How much is wanted of a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Tokens that are good now.
    Good,
    /// New ones, by the refresh token.
    Fresh,
    /// New ones, of a new login.
    Login,
}

impl KeyHolder {
    /// The signer: flags, else the profile, else the key that `keygen` makes.
    pub fn open(&self, context: &Context) -> Result<Signer, Failure> {
        let profile = &context.profile;
        let command = self.signer.as_ref().or(if self.key.is_none() { profile.signer.as_ref() } else { None });
        if let Some(command) = command {
            return Ok(Signer::Command(SignerCommand::new(command)));
        }
        Ok(Signer::Key(private_key(&self.path(context)?)?))
    }

    /// The file of the key.
    pub fn path(&self, context: &Context) -> Result<PathBuf, Failure> {
        let path = self.key.clone().or_else(|| context.profile.key.clone());
        path.ok_or_else(|| {
            missing("which key", "`countersign agent keygen` makes one; or --key FILE, or --signer COMMAND")
        })
    }
}

/// Tokens, and whether a later process will find them.
pub struct Got {
    /// The tokens.
    pub held: Held,
    /// What kept them from being kept.
    pub saved: Result<(), ProfileError>,
}

impl Got {
    /// What is said of tokens that could not be kept; nothing otherwise.
    pub fn unremembered(&self) -> String {
        let told = |error| format!("The login is not remembered, so that the next command logs in anew: {error}");
        self.saved.as_ref().err().map(told).unwrap_or_default()
    }
}

/// Gives tokens, and keeps them if the profile is this agent's.
pub async fn tokens(context: &Context, who: &Who, want: Want) -> Result<Got, Failure> {
    let agent = context.agent(who.agent.clone())?;
    let ours = context.profile.agent.as_ref() == Some(&agent);
    let named = who.service.clone().map(service_id).transpose()?;
    let audience = named.or_else(|| context.profile.audience.clone().filter(|_| ours));
    let holder = Holder { url: context.url(&who.server)?, agent: agent.clone(), audience: audience.clone() };
    let session = || -> Result<_, Failure> {
        Ok(Session::new(context.api(&who.server)?, who.holder.open(context)?, agent, audience.clone()))
    };
    if !ours {
        return Ok(Got { held: wanted(&session()?, want).await?, saved: Ok(()) });
    }

    let lock = context.profiles.lock(&context.name);
    let kept = context.profiles.tokens(&context.name, &holder)?;
    if let Some(held) = kept.as_ref().filter(|held| want == Want::Good && clock::now() < held.refresh_at) {
        let saved = context.remember(|profile| profile.audience = audience);
        return Ok(Got { held: held.clone(), saved });
    }
    let session = session()?;
    // A refresh token is good once: it is not spent where the next one cannot be kept.
    let (held, saved) = match lock.and_then(|lock| context.check_writable().map(|()| lock)) {
        Err(error) if want == Want::Fresh => return Err(error.into()),
        Err(error) => (session.login().await?, Err(error)),
        Ok(_lock) => {
            let held = wanted(&session.resume(kept), want).await?;
            let saved = context.profiles.keep_tokens(&context.name, &holder, &held);
            (held, saved.and_then(|()| context.remember(|profile| profile.audience = audience)))
        }
    };
    Ok(Got { held, saved })
}

async fn wanted(session: &Session<Signer>, want: Want) -> Result<Held, ApiError> {
    match want {
        Want::Good => session.tokens().await,
        Want::Fresh => session.refresh().await,
        Want::Login => session.login().await,
    }
}
