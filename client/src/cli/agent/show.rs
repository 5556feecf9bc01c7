//! What is known of an agent: by the profile, and by a service.

use super::instant;
use crate::cli::{
    Failure, Said,
    context::{Context, Server, agent_id, missing, service_key},
    said::{shown, table},
};
use clap::Args;
use countersign_client::{Held, PrivateKey, SignerCommand, clock, profile::Holder};
use countersign_identity::P256PublicKey;
use secrecy::SecretString;
use serde_json::{Value, json};

#[derive(Args)]
pub struct Show {
    #[command(flatten)]
    server: Server,
    /// The service that is asked how it sees the agent; left out: the one made last with this profile
    #[arg(long, env = "COUNTERSIGN_SERVICE_ID")]
    service: Option<String>,
    /// Its API key; better in the environment, since command lines are seen by all
    #[arg(long, env = "COUNTERSIGN_SERVICE_KEY", hide_env_values = true, value_name = "KEY")]
    service_key: Option<SecretString>,
    /// The agent; left out: the profile's
    agent: Option<String>,
}

type Facts = Vec<(&'static str, Value)>;

/// Shows an agent. What the profile knows is shown also where the control plane says nothing.
pub async fn show(context: &Context, asked: Show) -> Result<Said, Failure> {
    let known = || missing("which agent", "name it; or `countersign agent register`, after which the profile knows");
    let agent = agent_id(asked.agent.clone().or_else(|| context.profile.agent.clone()).ok_or_else(known)?)?;
    let mut facts = vec![("profile", json!(context.name)), ("agentId", json!(agent))];
    let ours = context.profile.agent.as_ref() == Some(&agent);
    if ours {
        facts.extend(remembered(context, &agent)?);
    }
    let (mut note, mut failure) = ("", None);
    match seen(context, &asked, &agent).await {
        Ok(Some(seen)) => {
            facts.retain(|(name, _)| seen.iter().all(|(fresher, _)| name != fresher));
            facts.extend(seen);
        }
        Ok(None) if !ours => note = "A service sees more: COUNTERSIGN_SERVICE_ID and COUNTERSIGN_SERVICE_KEY.",
        Ok(None) => {}
        Err(usage @ Failure::Usage(_)) => return Err(usage),
        Err(error) => failure = Some(error),
    }
    let rows: Vec<_> = facts.iter().map(|(name, value)| [(*name).to_owned(), shown(value)]).collect();
    let value: serde_json::Map<_, _> = facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Ok(Said::new(table(&rows), value.into()).noting(note).failing(failure))
}

/// How a service sees it, if one asks.
async fn seen(context: &Context, asked: &Show, agent: &str) -> Result<Option<Facts>, Failure> {
    let Some(key) = &asked.service_key else { return Ok(None) };
    if asked.service.is_none() && context.profile.service.is_none() {
        return Ok(None);
    }
    let service = context.service(asked.service.clone())?;
    let seen = context.api(&asked.server)?.read_agent(service_key(key)?, &service, agent).await?;
    let names = ["name", "status", "trustScore", "createdAt", "lastSeenAt", "publicKeyHash"];
    Ok(Some(names.map(|name| (name, seen[name].clone())).to_vec()))
}

/// What the profile knows of its agent, but for secrets.
fn remembered(context: &Context, agent: &str) -> Result<Vec<(&'static str, Value)>, Failure> {
    let profile = &context.profile;
    let mut facts =
        vec![("url", json!(profile.url)), ("audience", json!(profile.audience)), ("serviceId", json!(profile.service))];
    if let Some(command) = &profile.signer {
        facts.push(("signer", json!(format!("{} …", SignerCommand::new(command).program()))));
    } else if let Some(path) = &profile.key {
        facts.push(("key", json!(path)));
    }
    let hash = profile.public_key_hash.clone().or_else(|| profile.key.as_deref().and_then(fingerprint));
    facts.push(("publicKeyHash", json!(hash)));
    let holder = Holder {
        url: profile.url.clone().unwrap_or_default(),
        agent: agent.to_owned(),
        audience: profile.audience.clone(),
    };
    let held = context.profiles.tokens(&context.name, &holder)?;
    facts.push(("token", json!(state(held.as_ref()))));
    facts.push(("tokenExpiresAt", json!(held.map(|held| instant(held.expires_at)))));
    Ok(facts)
}

fn state(held: Option<&Held>) -> &'static str {
    match held {
        None => "none",
        Some(held) if clock::now() < held.expires_at => "unexpired",
        Some(_) => "expired",
    }
}

fn fingerprint(path: &std::path::Path) -> Option<String> {
    let pem = PrivateKey::read(path).ok()?.public_pem().ok()?;
    P256PublicKey::from_pem(&pem).ok()?.fingerprint().ok()
}
