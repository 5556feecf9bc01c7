//! `countersign login`: the device authorization grant at the issuer, then the check of the token at the control plane.

use crate::cli::{
    context::absolute_path,
    environment::variable,
    ids::no_secret,
    prelude::{CliError, CommandOutput, Context, ServerArgs, details, value_text},
    stored_login::oidc_client,
    time::rfc3339,
};
use clap::{Args, ValueHint};
use countersign_client::{
    ApiError, OidcClient,
    api::PageStart,
    oidc::{DeviceAuthorization, Endpoints, HumanClaims, IssuedTokens, LoginSettings, TokenKind},
    profile::HumanLogin,
};
use serde_json::json;
use std::path::PathBuf;

pub const HELP: &str = "\
The command uses the OAuth 2.0 device authorization grant (RFC 8628): it prints a URL and a code, and waits until you have \
confirmed the login in a browser, on this or on another device. The issuer needs a public client for which this grant is \
enabled.

Commands that need a human user then use the token of this login, and refresh it. COUNTERSIGN_HUMAN_TOKEN and --human-token \
override it. The token is sent only to the control plane of the login. The profile saves the issuer, the client id and the other \
options of this command for the next login. If the profile has no agent, it saves the control plane, too.

The control plane receives the ID token, whose audience is the client id: its operator sets humans.issuers.NAME.audience to the \
client id. With --use access-token, it receives the access token: this must be a JWT, and the issuer decides its audience.

Examples:
  $ countersign login --server https://HOST:8443 --issuer https://LOGIN.EXAMPLE.ORG --client-id ID
  $ countersign login
  $ countersign login --use access-token --audience https://countersign.example.org

Next: countersign whoami";

#[derive(Args)]
pub struct LoginArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The URL of the OIDC issuer, exactly as in the `iss` of its tokens [default: the issuer of the last login]
    #[arg(long, env = "COUNTERSIGN_ISSUER", value_name = "URL", value_hint = ValueHint::Url)]
    issuer: Option<String>,
    /// The id of the public client at the issuer [default: the client of the last login]
    #[arg(long, env = "COUNTERSIGN_CLIENT_ID", value_name = "ID", value_parser = no_secret)]
    client_id: Option<String>,
    /// The scopes to request, separated by spaces [default: openid; profile, email and `offline_access` if the issuer has them]
    #[arg(long, value_parser = no_secret)]
    scope: Option<String>,
    /// The parameter `audience` of the request, which some issuers need for access tokens
    #[arg(long, value_parser = no_secret)]
    audience: Option<String>,
    /// The token that the control plane receives [default: id-token]
    #[arg(long = "use", value_enum, value_name = "TOKEN")]
    token: Option<TokenKind>,
    /// PEM file with the certificate authorities to trust for the issuer, instead of those of the system
    #[arg(long, env = "COUNTERSIGN_ISSUER_CA", value_name = "FILE", value_hint = ValueHint::FilePath)]
    issuer_ca: Option<PathBuf>,
}

pub async fn login(context: &Context, args: LoginArgs) -> Result<CommandOutput, CliError> {
    let url = context.url(&args.server)?;
    let api = context.api(&args.server)?;
    let ca = context.authority(&args.server).map(absolute_path);
    let client = oidc_client(context, settings(context, args)?)?;
    context.check_writable()?;
    let endpoints = client.discover().await?;
    let device = client.authorize_device(&endpoints).await?;
    instruct(context, &device);
    let tokens = client.wait_for_tokens(&endpoints, &device).await?;
    // Any request shows whether the control plane accepts the token.
    match api.human(&tokens.token).list_services(&PageStart::FIRST).await {
        Ok(_) => {}
        Err(error @ ApiError::Refused { status: 401, .. }) => {
            return Err(refused(error, &client, &endpoints, &tokens).await);
        }
        Err(error) => context.messages.warning(&format!("the control plane has not checked the token: {error}")),
    }
    let settings = client.settings().clone();
    let login = HumanLogin { url, settings: settings.clone(), tokens };
    {
        let _lock = context.profiles.lock_human_login(&context.name)?;
        context.profiles.save_human_login(&context.name, &login)?;
    }
    let saved = context.update_profile(|profile| {
        profile.login = Some(settings);
        // If the profile has an agent, its URL stays the URL of the agent's control plane.
        if profile.agent.is_none() || profile.url.is_none() {
            (profile.url, profile.ca) = (Some(login.url.clone()), ca);
        }
    });
    Ok(output(&login).with_profile_result(saved))
}

/// The settings of the login: flags override environment variables, which override the last login at the same issuer.
fn settings(context: &Context, args: LoginArgs) -> Result<LoginSettings, CliError> {
    let LoginArgs { server: _, issuer, client_id, scope, audience, token, issuer_ca } = args;
    let last = context.profile.login.clone();
    let issuer = issuer.or_else(|| last.as_ref().map(|last| last.issuer.clone())).ok_or_else(|| {
        CliError::missing("the issuer", "set --issuer https://HOST/PATH or COUNTERSIGN_ISSUER to your OIDC issuer; an agent logs in with countersign agent login")
    })?;
    let last = last.filter(|last| last.issuer == issuer);
    let next = "set --client-id or COUNTERSIGN_CLIENT_ID to the public client at the issuer";
    let client_id = client_id.or_else(|| last.as_ref().map(|last| last.client_id.clone()));
    let client_id = client_id.ok_or_else(|| CliError::missing("the client id", next))?;
    let last_value = |value: fn(&LoginSettings) -> Option<String>| last.as_ref().and_then(value);
    // With an empty option, the user drops the value of the last login.
    let not_empty = |text: &String| !text.trim().is_empty();
    Ok(LoginSettings {
        client_id,
        scope: scope.or_else(|| last_value(|last| last.scope.clone())).filter(not_empty),
        audience: audience.or_else(|| last_value(|last| last.audience.clone())).filter(not_empty),
        token: token.or_else(|| last.as_ref().map(|last| last.token)).unwrap_or_default(),
        ca: issuer_ca.map(absolute_path).or_else(|| last.as_ref().and_then(|last| last.ca.clone())),
        issuer,
    })
}

fn instruct(context: &Context, device: &DeviceAuthorization) {
    let page = &device.verification_uri;
    let code = &device.user_code;
    let complete = device.verification_uri_complete.as_ref();
    let complete_text = complete.map(|url| format!("\nOr open {url} and compare the code.")).unwrap_or_default();
    let text = format!(
        "To log in, open {page} and enter the code {code}.{complete_text}\nWaiting for {} s at most.",
        device.expires_in
    );
    let json = json!({ "login": {
        "verificationUri": page,
        "verificationUriComplete": complete,
        "userCode": code,
        "expiresInSeconds": device.expires_in,
    } });
    context.messages.instruction(&text, &json);
}

/// The error for a token that the control plane refuses. The login is not stored, so its refresh token is revoked.
async fn refused(error: ApiError, client: &OidcClient, endpoints: &Endpoints, tokens: &IssuedTokens) -> CliError {
    if let Some(refresh_token) = &tokens.refresh_token {
        // An error of the revocation is ignored: the refusal by the control plane is the error that the user has to solve.
        let _ignored = client.revoke(endpoints, refresh_token).await;
    }
    let issuer = &client.settings().issuer;
    let kind = client.settings().token.field();
    let audience = value_text(&tokens.claims.audience);
    let hint = format!(
        "nothing is stored; does the control plane trust this issuer? Its operator sets humans.issuers.NAME.issuer to \
         {issuer} and audience to {audience}, the `aud` of the {kind}; --use selects the other token"
    );
    CliError::from(error).with_next(hint)
}

/// How messages name the user: the name or the e-mail address if the token has one, and always the id.
fn shown_user(claims: &HumanClaims) -> String {
    match claims.name.as_ref().or(claims.email.as_ref()) {
        Some(name) => format!("{name} ({})", claims.subject),
        None => claims.subject.clone(),
    }
}

fn output(login: &HumanLogin) -> CommandOutput {
    let HumanLogin { url, settings, tokens: IssuedTokens { token: _, refresh_token, claims } } = login;
    let expires = rfc3339(claims.expires_at());
    let is_renewed = refresh_token.is_some();
    let rows = [
        ("user", shown_user(claims)),
        ("issuer", settings.issuer.clone()),
        ("control plane", url.clone()),
        ("token expires", expires.clone()),
        ("refreshed", if is_renewed { "automatically" } else { "no: the issuer sent no refresh token" }.to_owned()),
    ];
    let json = json!({
        "issuer": settings.issuer,
        "subject": claims.subject,
        "name": claims.name,
        "email": claims.email,
        "url": url,
        "tokenExpiresAt": expires,
        "refreshable": is_renewed,
    });
    let note = if variable("COUNTERSIGN_HUMAN_TOKEN").is_some() {
        "COUNTERSIGN_HUMAN_TOKEN is set, so commands use that token and not this login: unset it."
    } else {
        "Next: countersign whoami"
    };
    CommandOutput::new(details(rows), json).with_note(note)
}
