//! `countersign token`: what a token says, whether it is signed by whom it should be, and its end.

use super::{
    Failure, Said,
    agent::instant,
    context::{Context, Server, missing, service_id},
    parse::variable,
    said::{shown, table},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use clap::{Args, Subcommand};
use countersign_client::{Held, clock, profile::Holder};
use countersign_identity::{Claims, KeySet, Reason, Refusal, Timestamp, UnverifiedToken};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use std::{io::Read, time::Duration};

/// For clocks that run apart, for `nbf` only, as both servers have it.
const LEEWAY: Duration = Duration::from_secs(30);

/// What refresh tokens begin with.
const REFRESH_TOKEN: &str = "rf_";

#[derive(Subcommand)]
pub enum Token {
    /// Show what a token says, without verifying it
    #[command(
        after_help = "A token says how things stood when it was issued: roles that came or went since are not in \
        it, though every proxy knows of them. `aud` is the service that it is for, or the control plane's URL if it is \
        bound to none.\n\nNext: countersign token verify"
    )]
    Inspect(Given),
    /// Verify a token's signature and times against the published keys
    #[command(after_help = "What changed or was revoked since is not asked: only a proxy or the service's own verify \
        call knows that.\n\nNext: countersign agent call URL")]
    Verify {
        #[command(flatten)]
        server: Server,
        #[command(flatten)]
        given: Given,
        /// The service that the token must be for
        #[arg(long)]
        service: Option<String>,
    },
    /// Revoke a token that you have: an access token, or a refresh token and with it its whole login
    #[command(after_help = "Whoever has a token may revoke it; whether it was still good is not said. It counts at \
        every proxy as soon as the change arrives there. An access token takes no other token with it; with a refresh \
        token go all tokens that came from the same login.\n\nNext, for another: countersign agent login")]
    Revoke {
        #[command(flatten)]
        server: Server,
        /// The token, or better - for standard input, since command lines are seen by all; left out:
        /// `COUNTERSIGN_TOKEN`, else the login kept by the profile
        token: Option<SecretString>,
    },
}

#[derive(Args)]
pub struct Given {
    /// The token, or better - for standard input, since command lines are seen by all; left out:
    /// `COUNTERSIGN_TOKEN`, else the one kept by the profile
    token: Option<SecretString>,
}

/// Does what was asked.
pub async fn run(context: &Context, command: Token) -> Result<Said, Failure> {
    match command {
        Token::Inspect(given) => inspect(&find(context, given)?),
        Token::Verify { server, given, service } => {
            let service = service.map(service_id).transpose()?;
            let token = find(context, given)?;
            let keys = key_set(&context.api(&server)?.key_set().await?)?;
            let refused = |Refusal { reason, .. }: Refusal| {
                Failure::denied(format!("{}: {}", reason.as_str(), reason.message()), reason.as_str())
            };
            let signed = UnverifiedToken::parse(token.expose_secret()).and_then(|token| token.verify(&keys));
            let signed = signed.map_err(refused)?;
            judge(signed.claims(), service.as_deref(), clock::now()).map_err(refused)?;
            let claims = json!(signed.claims());
            let text = format!("The signature and the times are good.\n{}", told(&claims));
            Ok(Said::new(text, json!({ "verified": true, "claims": claims })))
        }
        Token::Revoke { server, token } => revoke(context, &server, token).await,
    }
}

async fn revoke(context: &Context, server: &Server, token: Option<SecretString>) -> Result<Said, Failure> {
    let api = context.api(server)?;
    // Nobody else of this profile should take up what is about to die; but a token must end even where nothing can
    // be written.
    let _lock = context.profile.agent.is_some().then(|| context.profiles.lock(&context.name).ok());
    // Of this control plane only: what came from another is not shown to it.
    let kept = kept(context, Some(context.url(server)?))?;
    let token = match given(token)? {
        Some(token) => token,
        None => kept.as_ref().map(|(_, held)| held.refresh_token.clone()).ok_or_else(no_token)?,
    };
    if !may_be_token(token.expose_secret()) {
        let text =
            "this is no token: an access token is three parts with dots between, a refresh token begins with rf_";
        return Err(Failure::Usage(format!("{text}\nNext: `countersign key revoke` ends a service's key")));
    }
    api.revoke_token(&token).await?;
    let is = |kept: &SecretString| kept.expose_secret() == token.expose_secret();
    let saved = match kept {
        Some((_, held)) if is(&held.refresh_token) => context.profiles.forget_tokens(&context.name),
        Some((holder, held)) if is(&held.access_token) => {
            let now = clock::now();
            let held = Held { refresh_at: now, expires_at: now, ..held };
            context.profiles.keep_tokens(&context.name, &holder, &held)
        }
        Some(_) | None => Ok(()),
    };
    let what = if token.expose_secret().starts_with(REFRESH_TOKEN) { "login" } else { "token" };
    let said = Said::new(table(&[["revoked".into(), what.into()]]), json!({ "revoked": true, "kind": what }));
    Ok(said.remembered(saved))
}

/// Whether it has the form of one of ours: to revoke anything else is answered as if it had been one.
fn may_be_token(text: &str) -> bool {
    text.starts_with(REFRESH_TOKEN) || text.split('.').filter(|part| !part.is_empty()).count() == 3
}

fn inspect(token: &SecretString) -> Result<Said, Failure> {
    let part = |position| {
        let part = token.expose_secret().split('.').nth(position)?;
        serde_json::from_slice::<Value>(&URL_SAFE_NO_PAD.decode(part).ok()?).ok().filter(Value::is_object)
    };
    let (Some(header), Some(claims)) = (part(0), part(1)) else {
        return Err(Failure::Failed("this is no JWT\nNext: countersign agent login prints a token".into()));
    };
    let text = format!("Not verified: anybody could have written this.\n{}", told(&claims));
    Ok(Said::new(text, json!({ "verified": false, "header": header, "claims": claims })))
}

/// Times and audience; the signature was looked at before.
fn judge(claims: &Claims, service: Option<&str>, now: Timestamp) -> Result<(), Refusal> {
    if now >= claims.expires_at() {
        return Err(Refusal::expired(claims.expires_at()));
    }
    if Timestamp::from_seconds(claims.nbf) > now.saturating_add(LEEWAY) {
        return Err(Reason::TokenNotYetValid.into());
    }
    match service {
        Some(service) if service != claims.aud => Err(Reason::TokenAudienceMismatch.into()),
        _ => Ok(()),
    }
}

fn told(claims: &Value) -> String {
    let now = clock::now();
    let told = |(name, value): (&String, &Value)| {
        let time = value.as_i64().filter(|_| ["iat", "nbf", "exp"].contains(&name.as_str()));
        let text = time.map_or_else(|| shown(value), |second| when(second, now));
        [name.clone(), text]
    };
    let rows: Vec<_> = claims.as_object().into_iter().flatten().map(told).collect();
    table(&rows)
}

fn when(second: i64, now: Timestamp) -> String {
    let at = Timestamp::from_seconds(second);
    let minutes = |span: Duration| format!("{} min {} s", span.as_secs() / 60, span.as_secs() % 60);
    let apart = if at > now {
        format!("in {}", minutes(at.duration_since(now)))
    } else {
        format!("{} ago", minutes(now.duration_since(at)))
    };
    format!("{} ({apart})", instant(at))
}

fn find(context: &Context, asked: Given) -> Result<SecretString, Failure> {
    match given(asked.token)? {
        Some(token) => Ok(token),
        None => kept(context, context.profile.url.clone())?.map(|(_, held)| held.access_token).ok_or_else(no_token),
    }
}

/// The token that was named, by the command line or the environment.
fn given(token: Option<SecretString>) -> Result<Option<SecretString>, Failure> {
    let trimmed = |text: &str| SecretString::from(text.trim().to_owned());
    match token {
        Some(token) if token.expose_secret() == "-" => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map(|_| Some(trimmed(&text))).map_err(|error| Failure::Failed(format!("standard input: {error}")))
        }
        Some(token) => Ok(Some(trimmed(token.expose_secret()))),
        None => Ok(variable("COUNTERSIGN_TOKEN").map(|token| trimmed(&token))),
    }
}

/// The tokens that the profile keeps, of this control plane.
fn kept(context: &Context, url: Option<String>) -> Result<Option<(Holder, Held)>, Failure> {
    let profile = &context.profile;
    let (Some(url), Some(agent)) = (url, profile.agent.clone()) else { return Ok(None) };
    let holder = Holder { url, agent, audience: profile.audience.clone() };
    let held = context.profiles.tokens(&context.name, &holder)?;
    Ok(held.map(|held| (holder, held)))
}

fn no_token() -> Failure {
    missing("which token", "`countersign agent login` gets one; or name it, or - for standard input")
}

/// The keys as published; one that is no P-256 point refuses the whole set.
fn key_set(published: &Value) -> Result<KeySet, Failure> {
    let coordinate = |key: &Value, name: &str| URL_SAFE_NO_PAD.decode(key[name].as_str()?).ok();
    let point = |key: &Value| Some([vec![4], coordinate(key, "x")?, coordinate(key, "y")?].concat());
    let points: Option<Vec<_>> = published["keys"].as_array().into_iter().flatten().map(point).collect();
    points.and_then(|points| KeySet::from_points(points).ok()).ok_or_else(|| {
        Failure::Failed("the published keys cannot be read\nNext: is --url that of a control plane?".into())
    })
}
