//! `countersign token`: the claims of a token, its verification and its revocation.

use super::{
    complete,
    environment::variable,
    ids::service_id,
    placeholders,
    prelude::{
        API_REFUSES_AT_ONCE, Cause, CliError, CommandOutput, Context, HumanTokenArg, Receipt, ReceiptArgs, ServerArgs,
        details, value_text,
    },
    time::rfc3339,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use clap::{Args, Subcommand};
use clap_complete::ArgValueCandidates;
use countersign_client::{Api, ProfileError, SessionTokens, clock, profile::StoredTokenKey};
use countersign_identity::{Claims, KeySet, Reason, Refusal, Timestamp, UnverifiedToken};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use std::{io::Read, time::Duration};

/// The leeway for `nbf`, as in the control plane and the sidecar.
const LEEWAY: Duration = Duration::from_secs(30);

const REFRESH_TOKEN_PREFIX: &str = "rf_";

#[derive(Subcommand)]
pub enum TokenCommand {
    /// Show the claims of a token, without verification
    #[command(
        after_help = "The claims date from the time of issue: the token does not contain later changes of roles, \
        but every proxy applies them. `aud` is the service that the token is for. An unbound token is for no service: \
        its `aud` is the URL of the control plane, and only services can read the roles in `grants`.\n\n\
        Examples:\n  $ countersign token inspect\n  $ countersign token inspect - < token.txt\n\n\
        Next: countersign token verify"
    )]
    Inspect(TokenArg),
    /// Verify the signature and the times of a token against the published keys
    #[command(
        after_help = "The command does not check revocations and changes of roles: only a proxy or the verify request of a \
        service does.\n\n\
        Examples:\n  $ countersign token verify\n  $ countersign token verify --service SERVICE\n\n\
        Next: countersign agent call URL"
    )]
    Verify {
        #[command(flatten)]
        server: ServerArgs,
        #[command(flatten)]
        token: TokenArg,
        /// The service that must be the audience of the token
        #[arg(long, add = ArgValueCandidates::new(complete::service_ids))]
        service: Option<String>,
    },
    /// Revoke an access token, or a refresh token with its session
    #[command(
        after_help = "Anyone with a token can revoke it. As RFC 7009 requires, the result does not show whether the \
        token was valid. Every proxy applies the revocation when it receives it. An access token is revoked alone; with a \
        refresh token, all tokens of its session are revoked. --wait prints a receipt: at how many sidecars of one \
        service (--service, COUNTERSIGN_SERVICE_ID or the profile's) the revocation is in force.\n\n\
        Examples:\n  $ countersign token revoke\n  $ countersign token revoke - < token.txt\n  \
        $ countersign token revoke --wait --service SERVICE\n\n\
        Next: for a new session, countersign agent login"
    )]
    Revoke(RevokeArgs),
}

#[derive(Args)]
pub struct RevokeArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    human: HumanTokenArg,
    #[command(flatten)]
    receipt: ReceiptArgs,
    /// The token; `-` reads standard input, hidden from other users [default: `COUNTERSIGN_TOKEN`, or the session of the profile]
    token: Option<SecretString>,
}

#[derive(Args)]
pub struct TokenArg {
    /// The token; `-` reads standard input, hidden from other users [default: `COUNTERSIGN_TOKEN`, or the token of the profile]
    token: Option<SecretString>,
}

pub async fn run(context: &Context, command: TokenCommand) -> Result<CommandOutput, CliError> {
    match command {
        TokenCommand::Inspect(token) => inspect(&token_or_stored(context, token)?),
        TokenCommand::Verify { server, token, service } => {
            let service = service.map(service_id).transpose()?;
            if let Some(service) = &service {
                context.messages.placeholders.set(placeholders::SERVICE, service);
            }
            let token = token_or_stored(context, token)?;
            let keys = parse_key_set(&context.api(&server)?.key_set().await?)?;
            let denied = |Refusal { reason, .. }: Refusal| {
                CliError::denied(format!("{}: {}", reason.as_str(), reason.message()), reason.as_str())
            };
            let verified = UnverifiedToken::parse(token.expose_secret()).and_then(|token| token.verify(&keys));
            let verified = verified.map_err(denied)?;
            check_claims(verified.claims(), service.as_deref(), clock::now()).map_err(denied)?;
            let claims = json!(verified.claims());
            let text = format!("The signature and the times are valid.\n{}", claims_text(&claims));
            Ok(CommandOutput::new(text, json!({ "verified": true, "claims": claims })))
        }
        TokenCommand::Revoke(args) => revoke(context, args).await,
    }
}

async fn revoke(context: &Context, args: RevokeArgs) -> Result<CommandOutput, CliError> {
    let RevokeArgs { server, human, receipt, token } = args;
    let api = context.api(&server)?;
    let wait = receipt.wait(context, &api, &server, &human).await?;
    let Revoked { kind, revision, saved } = revoke_and_forget(context, &api, &server, token).await?;
    let receipt = Receipt::of(context, wait, revision).await;
    let text = match kind {
        "session" => "The session is revoked: its refresh token and all its access tokens.",
        _ => "The access token is revoked.",
    };
    let text = format!("{text}\n{}", receipt.details([], API_REFUSES_AT_ONCE));
    let output = receipt.output(text, json!({ "revoked": true, "kind": kind }), None);
    if output.error.is_none() {
        return Ok(output.with_profile_result(saved));
    }
    if let Err(error) = saved {
        context.messages.warning(&Cause::NotSaved(error).to_string());
    }
    Ok(output)
}

struct Revoked {
    /// `session` or `token`.
    kind: &'static str,
    revision: u64,
    /// Whether the token could be removed from the profile.
    saved: Result<(), ProfileError>,
}

/// Revokes a token, and removes it from the profile.
async fn revoke_and_forget(
    context: &Context,
    api: &Api,
    server: &ServerArgs,
    token: Option<SecretString>,
) -> Result<Revoked, CliError> {
    // The lock keeps other processes from using a token that is about to be revoked. If locking fails, for example on a read-only
    // file system, we revoke the token without the lock.
    let _lock = context.profile.agent.is_some().then(|| context.profiles.lock(&context.name).ok());
    // We use stored tokens only if this control plane issued them: it must not receive the tokens of another one.
    let stored = stored_tokens(context, Some(context.url(server)?))?;
    let token = match explicit_token(token)? {
        Some(token) => token,
        None => stored.as_ref().map(|(_, tokens)| tokens.refresh_token.clone()).ok_or_else(no_token)?,
    };
    if !looks_like_token(token.expose_secret()) {
        let text = "this is not a token: an access token has three parts separated by dots, a refresh token begins \
                    with rf_";
        return Err(CliError::usage(text).with_next("`countersign key --help` is about API keys"));
    }
    let revision = api.revoke_token(&token).await?;
    let is_revoked = |stored: &SecretString| stored.expose_secret() == token.expose_secret();
    let saved = match stored {
        Some((_, tokens)) if is_revoked(&tokens.refresh_token) => context.profiles.delete_tokens(&context.name),
        Some((key, tokens)) if is_revoked(&tokens.access_token) => {
            // The refresh token stays valid, so the next command uses it to get a new access token.
            let now = clock::now();
            let tokens = SessionTokens { refresh_at: now, expires_at: now, ..tokens };
            context.profiles.save_tokens(&context.name, &key, &tokens)
        }
        Some(_) | None => Ok(()),
    };
    let kind = if token.expose_secret().starts_with(REFRESH_TOKEN_PREFIX) { "session" } else { "token" };
    Ok(Revoked { kind, revision, saved })
}

/// Whether the text has the form of a token. We check it, because the API reports success even for text that is no token.
fn looks_like_token(text: &str) -> bool {
    text.starts_with(REFRESH_TOKEN_PREFIX) || text.split('.').filter(|part| !part.is_empty()).count() == 3
}

fn inspect(token: &SecretString) -> Result<CommandOutput, CliError> {
    let part = |position| {
        let part = token.expose_secret().split('.').nth(position)?;
        serde_json::from_slice::<Value>(&URL_SAFE_NO_PAD.decode(part).ok()?).ok().filter(Value::is_object)
    };
    let (Some(header), Some(claims)) = (part(0), part(1)) else {
        return Err(CliError::failed("this is not a JWT").with_next("countersign agent login prints a token"));
    };
    let text = format!("Not verified: the token may be forged.\n{}", claims_text(&claims));
    Ok(CommandOutput::new(text, json!({ "verified": false, "header": header, "claims": claims })))
}

/// Checks the times and the audience of a token.
fn check_claims(claims: &Claims, service: Option<&str>, now: Timestamp) -> Result<(), Refusal> {
    if now >= claims.expires_at() {
        return Err(Refusal::expired(claims.expires_at()));
    }
    if Timestamp::from_seconds(claims.nbf) > now.saturating_add(LEEWAY) {
        return Err(Reason::TokenNotYetValid.into());
    }
    match service {
        Some(service) if service != claims.aud.as_str() => Err(Reason::TokenAudienceMismatch.into()),
        _ => Ok(()),
    }
}

fn claims_text(claims: &Value) -> String {
    let now = clock::now();
    let row = |(name, value): (&String, &Value)| {
        let time = value.as_i64().filter(|_| ["iat", "nbf", "exp"].contains(&name.as_str()));
        (name.clone(), time.map_or_else(|| value_text(value), |seconds| time_claim_text(seconds, now)))
    };
    details(claims.as_object().into_iter().flatten().map(row))
}

/// A time in RFC 3339, and how far it is from now.
fn time_claim_text(seconds: i64, now: Timestamp) -> String {
    let time = Timestamp::from_seconds(seconds);
    let minutes = |span: Duration| format!("{} min {} s", span.as_secs() / 60, span.as_secs() % 60);
    let distance = if time > now {
        format!("in {}", minutes(time.duration_since(now)))
    } else {
        format!("{} ago", minutes(now.duration_since(time)))
    };
    format!("{} ({distance})", rfc3339(time))
}

fn token_or_stored(context: &Context, TokenArg { token }: TokenArg) -> Result<SecretString, CliError> {
    if let Some(token) = explicit_token(token)? {
        return Ok(token);
    }
    let stored = stored_tokens(context, context.profile.url.clone())?;
    stored.map(|(_, tokens)| tokens.access_token).ok_or_else(no_token)
}

/// The token from the command line, standard input or the environment.
fn explicit_token(token: Option<SecretString>) -> Result<Option<SecretString>, CliError> {
    let trimmed = |text: &str| SecretString::from(text.trim().to_owned());
    match token {
        Some(token) if token.expose_secret() == "-" => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map(|_| Some(trimmed(&text))).map_err(|error| CliError::failed(format!("standard input: {error}")))
        }
        Some(token) => Ok(Some(trimmed(token.expose_secret()))),
        None => Ok(variable("COUNTERSIGN_TOKEN").map(|token| trimmed(&token))),
    }
}

/// The tokens of the profile with their key, if the control plane with this URL issued them.
fn stored_tokens(context: &Context, url: Option<String>) -> Result<Option<(StoredTokenKey, SessionTokens)>, CliError> {
    let profile = &context.profile;
    let (Some(url), Some(agent)) = (url, profile.agent.clone()) else { return Ok(None) };
    let key = profile.token_key(url, agent);
    let tokens = context.profiles.tokens(&context.name, &key)?;
    Ok(tokens.map(|tokens| (key, tokens)))
}

fn no_token() -> CliError {
    CliError::missing("the token", "`countersign agent login` gets one; or pass it, or - for standard input")
}

/// Parses the published keys. A single key that is not a point of P-256 makes the whole key set invalid.
fn parse_key_set(published: &Value) -> Result<KeySet, CliError> {
    let coordinate = |key: &Value, name: &str| URL_SAFE_NO_PAD.decode(key[name].as_str()?).ok();
    // The byte 4 says that both coordinates follow (an uncompressed point).
    let point = |key: &Value| Some([vec![4], coordinate(key, "x")?, coordinate(key, "y")?].concat());
    let points: Option<Vec<_>> = published["keys"].as_array().into_iter().flatten().map(point).collect();
    points.and_then(|points| KeySet::from_points(points).ok()).ok_or_else(|| {
        CliError::failed("the published keys cannot be parsed").with_next("is --server the URL of a control plane?")
    })
}
