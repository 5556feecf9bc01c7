//! `countersign agent show`: the fields of an agent from the profile and from a service.

use crate::cli::{
    prelude::{
        AgentArg, Cause, CliError, CommandOutput, Context, ServerArgs, ServiceArg, ServiceKeyArg, details, value_text,
    },
    time::rfc3339,
};
use clap::Args;
use countersign_client::{PrivateKey, SessionTokens, SignerCommand, clock};
use countersign_identity::P256PublicKey;
use serde_json::{Value, json};

#[derive(Args)]
pub struct ShowArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    service: ServiceArg,
    #[command(flatten)]
    key: ServiceKeyArg,
    #[command(flatten)]
    agent: AgentArg,
}

type Fields = Vec<(&'static str, Value)>;

/// Shows an agent. For the profile's agent, it shows the fields of the profile even if the request fails.
pub async fn show(context: &Context, args: ShowArgs) -> Result<CommandOutput, CliError> {
    let agent = context.agent_or_default(&args.agent)?;
    let mut fields = vec![("agentId", json!(agent))];
    let is_profile_agent = context.profile.agent.as_ref() == Some(&agent);
    if is_profile_agent {
        fields.insert(0, ("profile", json!(context.name)));
        fields.extend(profile_fields(context, &agent)?);
    }
    let mut error = None;
    match service_fields(context, &args, &agent).await {
        Ok(Some(current)) => {
            // The profile may be older, so a field from the control plane replaces the field of the profile with the same name.
            fields.retain(|(name, _)| current.iter().all(|(other, _)| name != other));
            fields.extend(current);
        }
        // Without a service and its API key, only the profile has fields, and they belong to another agent.
        Ok(None) if !is_profile_agent => {
            let next = "set COUNTERSIGN_SERVICE_ID and COUNTERSIGN_SERVICE_KEY, with which a service reads every agent; \
                        `countersign agent list` shows your agents";
            return Err(CliError::missing("the API key of a service", next));
        }
        Ok(None) => {}
        // A usage error comes from a wrong argument, not from the request, so we show nothing.
        Err(failure) if !is_profile_agent || matches!(failure.cause, Cause::Usage(_)) => return Err(failure),
        Err(failure) => error = Some(context.with_context_hint(failure)),
    }
    let text = details(fields.iter().map(|(name, value)| (*name, value_text(value))));
    let json: serde_json::Map<_, _> = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Ok(CommandOutput::new(text, json.into()).with_error(error))
}

/// The fields from the control plane; `None` if no service or no API key is set.
async fn service_fields(context: &Context, args: &ShowArgs, agent: &str) -> Result<Option<Fields>, CliError> {
    if args.service.service.is_none() && context.profile.service.is_none() {
        return Ok(None);
    }
    let Some(key) = args.key.optional()? else { return Ok(None) };
    let service = context.service(&args.service)?;
    let record = context.api(&args.server)?.service(&service, key).read_agent(agent).await?;
    let names = ["name", "status", "trustScore", "createdAt", "lastSeenAt", "publicKeyHash"];
    Ok(Some(names.map(|name| (name, record[name].clone())).to_vec()))
}

/// The fields from the profile, without secrets.
fn profile_fields(context: &Context, agent: &str) -> Result<Fields, CliError> {
    let profile = &context.profile;
    let mut fields =
        vec![("url", json!(profile.url)), ("audience", json!(profile.audience)), ("serviceId", json!(profile.service))];
    if let Some(command) = &profile.signer {
        fields.push(("signer", json!(format!("{} …", SignerCommand::new(command).program()))));
    } else if let Some(path) = &profile.key {
        fields.push(("key", json!(path)));
    }
    let hash = profile.public_key_hash.clone().or_else(|| profile.key.as_deref().and_then(public_key_hash));
    fields.push(("publicKeyHash", json!(hash)));
    if let Some(request) = &profile.oauth {
        fields.extend([
            ("login", json!("oauth")),
            ("resource", json!(request.resource)),
            ("scope", json!(request.scope)),
        ]);
    }
    let key = profile.token_key(profile.url.clone().unwrap_or_default(), agent.to_owned());
    let tokens = context.profiles.tokens(&context.name, &key)?;
    fields.push(("token", json!(token_state(tokens.as_ref()))));
    fields.push(("tokenExpiresAt", json!(tokens.as_ref().map(|tokens| rfc3339(tokens.expires_at)))));
    if let Some(scope) = tokens.and_then(|tokens| tokens.scope) {
        fields.push(("tokenScope", json!(scope)));
    }
    Ok(fields)
}

fn token_state(tokens: Option<&SessionTokens>) -> &'static str {
    match tokens {
        None => "none",
        Some(tokens) if clock::now() < tokens.expires_at => "unexpired",
        Some(_) => "expired",
    }
}

/// The hash of the public key of this private key; `None` if the file cannot be read.
pub fn public_key_hash(path: &std::path::Path) -> Option<String> {
    let pem = PrivateKey::read(path).ok()?.public_pem().ok()?;
    P256PublicKey::from_pem(&pem).ok()?.fingerprint().ok()
}
