//! `countersign whoami`: the human user, the agent and the API key that commands use, without secrets.

use crate::cli::{
    prelude::{CliError, CommandOutput, Context, ManagerArgs, details, or_dash},
    stored_login::{stored_login, stored_token},
    time::rfc3339,
};
use countersign_client::{ApiError, api::PageStart, oidc::HumanClaims, profile::HumanLogin};
use countersign_identity::ServiceId;
use secrecy::SecretString;
use serde_json::{Map, Value, json};

pub const HELP: &str = "\
The command shows the human user of COUNTERSIGN_HUMAN_TOKEN or of `countersign login`, the agent of the profile, and the service of \
COUNTERSIGN_SERVICE_KEY. Name, e-mail address and expiry are claims of the token. The control plane states whether the user is an \
administrator. If the control plane cannot be asked, the command fails, but still shows the claims.

Examples:
  $ countersign whoami
  $ countersign whoami -o json

Next: countersign service list";

/// Collects the rows of the text, the fields of the JSON, and the first error.
struct Report<'a> {
    context: &'a Context,
    args: &'a ManagerArgs,
    rows: Vec<(&'static str, String)>,
    json: Map<String, Value>,
    error: Option<CliError>,
}

impl Report<'_> {
    fn row(&mut self, name: &'static str, value: impl Into<String>) {
        self.rows.push((name, value.into()));
    }

    fn keep_first_error(&mut self, error: CliError) {
        self.error.get_or_insert(error);
    }

    /// Shows the human user. Returns whether there is one.
    async fn show_human(&mut self) -> Result<bool, CliError> {
        self.json.insert("human".into(), Value::Null);
        let (token, login) = match self.args.human.explicit()? {
            Some(token) => (Some(token.clone()), None),
            None => match self.context.profiles.human_login(&self.context.name)? {
                Some(login) => self.login_token(login).await?,
                None => return Ok(false),
            },
        };
        let source = if login.is_some() { "countersign login" } else { "COUNTERSIGN_HUMAN_TOKEN (--human-token)" };
        let claims = match &login {
            Some(login) => Some(login.tokens.claims.clone()),
            None => token.as_ref().and_then(HumanClaims::parse),
        };
        let is_administrator = match &token {
            Some(token) => self.is_administrator(token).await,
            None => None,
        };
        let administrator = match is_administrator {
            Some(true) => "yes, according to the control plane",
            Some(false) => "no, according to the control plane",
            None => "unknown: the control plane was not asked or did not answer",
        };
        let claims = claims.as_ref();
        let expires = claims.map(|claims| rfc3339(claims.expires_at()));
        self.row("human user", or_dash(claims.map(|claims| &claims.subject)));
        self.row("  from", source);
        self.row("  issuer", or_dash(claims.map(|claims| &claims.issuer)));
        self.row("  name", or_dash(claims.and_then(|claims| claims.name.as_ref())));
        self.row("  e-mail", or_dash(claims.and_then(|claims| claims.email.as_ref())));
        self.row("  token expires", or_dash(expires.as_ref()));
        self.row("  administrator", administrator);
        let refreshable = login.as_ref().is_some_and(|login| login.tokens.refresh_token.is_some());
        let human = json!({
            "source": if login.is_some() { "login" } else { "token" },
            "issuer": claims.map(|claims| &claims.issuer),
            "subject": claims.map(|claims| &claims.subject),
            "name": claims.and_then(|claims| claims.name.as_ref()),
            "email": claims.and_then(|claims| claims.email.as_ref()),
            "tokenExpiresAt": expires,
            "refreshable": refreshable,
            "url": login.map(|login| login.url),
            "administrator": is_administrator,
        });
        self.json.insert("human".into(), human);
        Ok(true)
    }

    /// The token of the stored login, and the login with the claims of this token. The token is `None` if no control plane is set,
    /// if the login is for another control plane, or if the token has expired and cannot be refreshed.
    async fn login_token(&mut self, login: HumanLogin) -> Result<(Option<SecretString>, Option<HumanLogin>), CliError> {
        if self.context.url(&self.args.server).is_err() {
            return Ok((None, Some(login)));
        }
        match stored_token(self.context, &self.args.server).await {
            Ok(token) => Ok((token, stored_login(self.context, &self.args.server)?.or(Some(login)))),
            Err(error) => {
                self.keep_first_error(error);
                Ok((None, Some(login)))
            }
        }
    }

    /// Asks the control plane whether the user is an administrator: only administrators may list the signing keys.
    async fn is_administrator(&mut self, token: &SecretString) -> Option<bool> {
        let result: Result<_, CliError> =
            async { Ok(self.context.api(&self.args.server)?.human(token).list_signing_keys(&PageStart::FIRST).await?) }
                .await;
        match result {
            Ok(_) => Some(true),
            Err(error) if error.has_reason("admin_required") => Some(false),
            Err(error) => {
                self.keep_first_error(error);
                None
            }
        }
    }

    /// Shows the agent of the profile. Returns whether there is one.
    fn show_agent(&mut self) -> bool {
        let profile = &self.context.profile;
        let agent = profile.agent.as_ref();
        let json = agent.map(|agent| json!({ "agentId": agent, "audience": profile.audience, "url": profile.url }));
        self.json.insert("agent".into(), json!(json));
        if let Some(agent) = agent {
            self.row("agent", agent);
            self.row("  audience", or_dash(profile.audience.as_ref()));
        }
        agent.is_some()
    }

    /// Shows the service of the API key. Returns whether an API key is set.
    async fn show_key(&mut self) -> Result<bool, CliError> {
        self.json.insert("serviceKey".into(), Value::Null);
        let Some(key) = self.args.key.optional()? else { return Ok(false) };
        let FoundKey { text, service, scope } = if let Ok(service) = self.context.service(&self.args.service) {
            self.find_key(key, service).await.unwrap_or_else(|error| {
                self.keep_first_error(error);
                FoundKey { text: "not verified".to_owned(), service: None, scope: None }
            })
        } else {
            let text = "of an unknown service: set COUNTERSIGN_SERVICE_ID".to_owned();
            FoundKey { text, service: None, scope: None }
        };
        self.row("API key", text);
        self.json.insert("serviceKey".into(), json!({ "serviceId": service, "scope": scope }));
        Ok(true)
    }

    /// Asks the control plane about an API key. If it belongs to another service than the requested one, the refusal names that service.
    async fn find_key(&self, key: &SecretString, service: String) -> Result<FoundKey, CliError> {
        match self.context.api(&self.args.server)?.service(&service, key).list_roles().await {
            Ok(_) => Ok(FoundKey { text: format!("of {service}"), service: Some(service), scope: Some("full") }),
            // A key of scope sync may not list roles, so this refusal tells the scope.
            Err(ApiError::Refused { reason: Some(reason), .. }) if reason == "scope_insufficient" => {
                Ok(FoundKey { text: "of scope sync".to_owned(), service: None, scope: Some("sync") })
            }
            Err(error) => match other_service(&error) {
                Some(actual) => Ok(FoundKey { text: format!("of {actual}"), service: Some(actual), scope: None }),
                None => Err(error.into()),
            },
        }
    }
}

pub async fn whoami(context: &Context, args: ManagerArgs) -> Result<CommandOutput, CliError> {
    let mut report = Report { context, args: &args, rows: Vec::new(), json: Map::new(), error: None };
    let url = context.url(&args.server).ok();
    report.row("profile", context.name.clone());
    report.row("control plane", url.clone().unwrap_or_else(|| "not set".to_owned()));
    report.json.insert("profile".into(), json!(context.name));
    report.json.insert("url".into(), json!(url));
    let human = report.show_human().await?;
    let agent = report.show_agent();
    let key = report.show_key().await?;
    if !human && !agent && !key {
        let next = "as a human user, countersign login, or set COUNTERSIGN_HUMAN_TOKEN; as an agent, countersign agent \
                    register; for a service, set COUNTERSIGN_SERVICE_KEY";
        return Err(CliError::missing("an identity", next));
    }
    let Report { rows, json, error, .. } = report;
    let error = error.map(|error| context.with_context_hint(error));
    Ok(CommandOutput::new(details(rows), json.into()).with_error(error))
}

/// What the control plane told us about an API key. `None` for what it did not tell.
struct FoundKey {
    text: String,
    service: Option<String>,
    scope: Option<&'static str>,
}

/// The service of an API key that was refused because it belongs to another service.
fn other_service(error: &ApiError) -> Option<String> {
    let ApiError::Refused { reason: Some(reason), details, .. } = error else { return None };
    let actual = details.fields.get("actual")?.get("serviceId")?.as_str()?;
    (reason == "not_yours" && actual.parse::<ServiceId>().is_ok()).then(|| actual.to_owned())
}
