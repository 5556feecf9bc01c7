//! What flags, environment and profile say together, in this order.

use super::{Failure, said::typed};
use clap::Args;
use countersign_client::{Api, ApiError, PrivateKey, Profile, ProfileError, Profiles, key::open_to_others};
use countersign_identity::{AgentId, EventId, ServiceId, WebhookId};
use secrecy::{ExposeSecret, SecretString};
use std::{
    io::Write,
    path::{Path, PathBuf},
};

/// What API keys of services begin with.
const SERVICE_KEY: &str = "svc_sk_";

/// No id is longer.
const LONGEST_ID: usize = 32;

/// How a person comes by a token.
const PERSON: &str =
    "COUNTERSIGN_HUMAN_TOKEN; the operator mints one: countersign-control-plane human-token mint --subject NAME";

/// The profile of this command.
pub struct Context {
    /// All profiles.
    pub profiles: Profiles,
    /// This one's name.
    pub name: String,
    /// What it says.
    pub profile: Profile,
}

/// Where the control plane is.
#[derive(Args)]
pub struct Server {
    /// The control plane, https://HOST:PORT; by default its port is 8443
    #[arg(long, env = "COUNTERSIGN_URL")]
    pub url: Option<String>,
    /// A PEM file with the authorities to trust instead of the system's; of --dev: ca.pem beside dev.env
    #[arg(long, env = "COUNTERSIGN_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

/// Who manages a service: its key, or a person.
#[derive(Args)]
pub struct Manager {
    #[command(flatten)]
    pub server: Server,
    /// The service; left out: the one made last with this profile
    #[arg(long, env = "COUNTERSIGN_SERVICE_ID")]
    pub service: Option<String>,
    /// Its API key; better in the environment, since command lines are seen by all
    #[arg(long, env = "COUNTERSIGN_SERVICE_KEY", hide_env_values = true, value_name = "KEY")]
    pub service_key: Option<SecretString>,
    /// Or the token of its owner; better in the environment
    #[arg(long, env = "COUNTERSIGN_HUMAN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub human_token: Option<SecretString>,
}

/// A person.
#[derive(Args)]
pub struct Human {
    #[command(flatten)]
    pub server: Server,
    /// A person's token; better in the environment, since command lines are seen by all
    #[arg(long, env = "COUNTERSIGN_HUMAN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub human_token: Option<SecretString>,
}

impl Context {
    /// Reads the profile.
    pub fn open(name: String) -> Result<Self, Failure> {
        let profiles = Profiles::of_user()?;
        let profile = profiles.load(&name)?;
        Ok(Self { profiles, name, profile })
    }

    /// The URL of the control plane.
    pub fn url(&self, server: &Server) -> Result<String, Failure> {
        let url = server.url.clone().or_else(|| self.profile.url.clone());
        url.ok_or_else(|| missing("where the control plane is", "--url https://HOST:PORT or COUNTERSIGN_URL"))
    }

    /// The authority's file.
    pub fn authority(&self, server: &Server) -> Option<PathBuf> {
        server.ca.clone().or_else(|| self.profile.ca.clone())
    }

    /// What names it.
    fn names_authority(&self, server: &Server) -> String {
        if server.ca.is_some() { "--ca (COUNTERSIGN_CA)".into() } else { format!("profile {}: ca", self.name) }
    }

    /// The control plane.
    pub fn api(&self, server: &Server) -> Result<Api, Failure> {
        let (url, names) = (self.url(server)?, || self.names_authority(server));
        let Some(path) = self.authority(server) else { return Ok(Api::new(&url, None)?) };
        Api::new(&url, Some(&read(names(), &path)?)).map_err(|error| unusable(error, names(), &path))
    }

    /// The agent that is meant.
    pub fn agent(&self, given: Option<String>) -> Result<String, Failure> {
        let agent = given.or_else(|| self.profile.agent.clone()).ok_or_else(|| {
            missing("which agent", "`countersign agent register`, after which the profile knows, or --agent AGENT")
        })?;
        agent_id(agent)
    }

    /// The service that is managed.
    pub fn service(&self, given: Option<String>) -> Result<String, Failure> {
        let service = given.or_else(|| self.profile.service.clone()).ok_or_else(|| {
            missing(
                "which service",
                "--service or COUNTERSIGN_SERVICE_ID; `countersign service list` shows yours, `service create` makes one",
            )
        })?;
        service_id(service)
    }

    /// Makes sure, before anything is done, that the profile can be changed afterwards.
    pub fn check_writable(&self) -> Result<(), ProfileError> {
        self.profiles.check_writable(&self.name)
    }

    /// Changes the profile.
    pub fn remember(&self, change: impl FnOnce(&mut Profile)) -> Result<(), ProfileError> {
        let mut profile = self.profile.clone();
        change(&mut profile);
        if profile != self.profile {
            self.profiles.save(&self.name, &profile)?;
        }
        Ok(())
    }
}

impl Manager {
    /// The service's key, or else a person's token.
    pub fn credential(&self) -> Result<&SecretString, Failure> {
        let key = self.service_key.as_ref().map(service_key);
        key.or_else(|| self.human_token.as_ref().map(human_token)).unwrap_or_else(|| {
            Err(missing(
                "who asks",
                "COUNTERSIGN_SERVICE_KEY (`countersign key create --scope full` makes one) or COUNTERSIGN_HUMAN_TOKEN",
            ))
        })
    }
}

/// A person's token.
pub fn person(token: Option<&SecretString>) -> Result<&SecretString, Failure> {
    token.map_or_else(|| Err(missing("which person asks", PERSON)), human_token)
}

/// What was given as a person's token; a service's key there would be blamed on the person.
pub fn human_token(token: &SecretString) -> Result<&SecretString, Failure> {
    if token.expose_secret().starts_with(SERVICE_KEY) {
        let text = "COUNTERSIGN_HUMAN_TOKEN (--human-token) holds the API key of a service, not a person's token";
        return Err(Failure::Usage(format!("{text}\nNext: set {PERSON}")));
    }
    if !is_one_word(token) {
        let text =
            "COUNTERSIGN_HUMAN_TOKEN (--human-token) holds a space, a line end or another character that no token has";
        return Err(Failure::Usage(format!("{text}\nNext: set {PERSON}")));
    }
    Ok(token)
}

/// What is not cannot be sent in a header, and that would be blamed on the control plane.
fn is_one_word(credential: &SecretString) -> bool {
    credential.expose_secret().bytes().all(|byte| byte.is_ascii_graphic())
}

/// What was given as a service's key; anything else would be taken for a person's token.
pub fn service_key(key: &SecretString) -> Result<&SecretString, Failure> {
    if key.expose_secret().starts_with(SERVICE_KEY) && is_one_word(key) {
        return Ok(key);
    }
    let text = "COUNTERSIGN_SERVICE_KEY (--service-key) holds no API key of a service: those begin with svc_sk_ and are one word";
    Err(Failure::Usage(format!("{text}\nNext: `countersign key create --scope full` makes one")))
}

/// The id of an agent.
pub fn agent_id(given: String) -> Result<String, Failure> {
    if given.parse::<AgentId>().is_ok() {
        return Ok(given);
    }
    let text = format!("`{}` is no id of an agent: agent_ and 26 characters", short(&given));
    Err(Failure::Usage(format!("{text}\nNext: `countersign agent show` says which agent the profile holds")))
}

/// A name or a mistyped id is repeated; what is longer may be a secret in the wrong place.
fn short(given: &str) -> &str {
    if given.len() <= LONGEST_ID { given } else { "…" }
}

/// The id of a service.
pub fn service_id(given: String) -> Result<String, Failure> {
    if given.parse::<ServiceId>().is_ok() {
        return Ok(given);
    }
    let text = format!("`{}` is no id of a service: svc_ and 26 characters", short(&given));
    Err(Failure::Usage(format!("{text}\nNext: `countersign service list` shows the ids of yours")))
}

/// The id of a webhook's target.
pub fn webhook_id(given: String) -> Result<String, Failure> {
    if given.parse::<WebhookId>().is_ok() {
        return Ok(given);
    }
    let text = format!("`{}` is no id of a webhook: wh_ and 26 characters", short(&given));
    Err(Failure::Usage(format!("{text}\nNext: `countersign webhook list` shows the ids")))
}

/// The id of an event.
pub fn event_id(given: String) -> Result<String, Failure> {
    if given.parse::<EventId>().is_ok() {
        return Ok(given);
    }
    let text = format!("`{}` is no id of an event: evt_ and 26 characters", short(&given));
    Err(Failure::Usage(format!("{text}\nNext: `countersign webhook deliveries WEBHOOK` shows the ids")))
}

/// Reads a file; should that fail, it is said what names it.
pub fn read(named: impl Into<String>, path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::file(named, path, error.to_string()))
}

/// Reads an agent's private key, and warns if others can read it too.
pub fn private_key(path: &Path) -> Result<PrivateKey, Failure> {
    let key = PrivateKey::read(path)?;
    if let Some(mode) = open_to_others(path) {
        let path = path.display().to_string();
        let text = format!("warning: {path} can be read by others (mode {mode:04o}); chmod 600 {}", typed(&path));
        let _closed = writeln!(std::io::stderr(), "{text}");
    }
    Ok(key)
}

/// The authorities in this file cannot be used, if it is that.
pub fn unusable(error: ApiError, named: impl Into<String>, path: &Path) -> Failure {
    match error {
        ApiError::Authority(problem) => Failure::file(named, path, problem),
        error => error.into(),
    }
}

/// A usage error that says what is missing, and the next step.
pub fn missing(what: &str, next: &str) -> Failure {
    Failure::Usage(format!("it is not said {what}\nNext: {next}"))
}

/// The same place whatever folder a later command runs in.
pub fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}
