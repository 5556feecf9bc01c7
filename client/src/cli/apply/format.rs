//! The YAML documents of `countersign apply`: their types, and what parsing refuses.
//!
//! Invariants: no service that [`parse`] returns contains anything twice, and each assignment has an agent or a pattern.
//! [`check_services`] compares the services with each other.

use crate::cli::error::CliError;
use clap::ValueEnum;
use countersign_client::webhook::EVENT_KINDS;
use countersign_identity::{
    AgentId, ServiceId,
    names::{InvalidName, LABEL_REQUIREMENT, Permission, RoleName, is_label},
};
use reqwest::Url;
use serde::{Deserialize, Serialize};
use std::{collections::HashSet, fmt, path::PathBuf};

/// The maximum size of a file.
pub const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// The JSON schema of a document.
pub const SCHEMA: &str = include_str!("schema.json");

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    #[serde(rename = "countersign/v1")]
    V1,
}

/// A YAML document of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Document {
    pub api_version: Version,
    /// The `managedBy` that all objects of the document get. `--prune` deletes objects with this value that are in no document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    pub services: Vec<DeclaredService>,
}

/// A service in a file. A field that is absent in the file stays unchanged at the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DeclaredService {
    /// The display name. Without `id`, the name selects one of the human user's services.
    pub name: String,
    /// The id of an existing service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Whether the service accepts tokens that were issued for no service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepts_unbound_tokens: Option<bool>,
    /// The URLs under which clients reach the service. These URLs replace all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_uris: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<DeclaredRole>,
    /// Which agents hold which roles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assignments: Vec<DeclaredAssignment>,
    /// The webhooks, each identified by its URL.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub webhooks: Vec<DeclaredWebhook>,
    /// The API keys, each identified by its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<DeclaredKey>,
    /// The `managedBy` of the document, which [`parse`] copies here.
    #[serde(skip)]
    pub managed_by: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DeclaredRole {
    /// The name, which is unique at the service.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The permissions, in any order.
    pub permissions: Vec<String>,
}

/// A role for an agent, or for all agents that match a pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DeclaredAssignment {
    pub role: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// A pattern for agents, instead of the id of one agent.
    #[serde(rename = "match", default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<Match>,
    /// When the assignment ends (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// A pattern for agents. If `name` and `email` are set, an agent must match both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Match {
    /// The display name, in which `*` stands for any text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The e-mail address in the registration, in which `*` stands for any text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DeclaredWebhook {
    pub url: String,
    /// The event kinds, or only `*` for all kinds.
    #[serde(default = "all_events")]
    pub events: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The file for the secret that the control plane makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DeclaredKey {
    pub name: String,
    pub scope: KeyScope,
    /// The file for the API key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// The Kubernetes Secret for the API key, instead of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_secret: Option<KubernetesSecret>,
}

/// An entry of a Kubernetes Secret, which has one API key per line.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct KubernetesSecret {
    pub name: String,
    #[serde(default = "default_entry")]
    pub key: String,
}

/// The entry that the chart `countersign-ext-authz` reads by default.
fn default_entry() -> String {
    "keys".to_owned()
}

/// What an API key allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum KeyScope {
    /// Manage roles and verify tokens
    Full,
    /// Receive the sync stream and verify tokens; for sidecars
    Sync,
}

impl KeyScope {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Sync => "sync",
        }
    }
}

fn all_events() -> Vec<String> {
    vec!["*".to_owned()]
}

impl Match {
    /// Whether an agent with a name and an e-mail address matches.
    pub fn matches(&self, name: &str, email: Option<&str>) -> bool {
        let Self { name: name_pattern, email: email_pattern } = self;
        name_pattern.as_ref().is_none_or(|pattern| matches(pattern, name))
            && email_pattern.as_ref().is_none_or(|pattern| email.is_some_and(|email| matches(pattern, email)))
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, &self.email) {
            (Some(name), Some(email)) => write!(f, "the name {name} and the e-mail address {email}"),
            (None, Some(email)) => write!(f, "the e-mail address {email}"),
            (name, None) => write!(f, "the name {}", name.as_deref().unwrap_or_default()),
        }
    }
}

/// Whether a text matches a pattern in which `*` stands for any text: it begins with the first part of the pattern, contains the
/// middle parts in order, and ends with the last part.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<_> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    let rest = middle.iter().try_fold(rest, |rest, part| rest.split_once(part).map(|(_, rest)| rest));
    rest.is_some_and(|rest| rest.ends_with(last))
}

/// Parses the documents of a file. Errors begin with the name `file`.
pub fn parse(file: &str, text: &str) -> Result<Vec<Document>, CliError> {
    let error = |problem: String| CliError::usage(format!("{file}: {problem}"));
    let mut documents: Vec<Document> =
        serde_saphyr::from_multiple_with_options(text, serde_saphyr::options! { strict_booleans: true })
            .map_err(|problem| error(problem.to_string()))?;
    for document in &mut documents {
        let is_valid = document.managed_by.as_deref().is_none_or(is_label);
        require(is_valid, &format!("managedBy: {LABEL_REQUIREMENT}")).map_err(error)?;
        for service in &mut document.services {
            service.managed_by.clone_from(&document.managed_by);
            // The control plane normalizes URLs, so we compare the normal form.
            for webhook in &mut service.webhooks {
                let url = Url::parse(&webhook.url);
                let invalid = |problem| error(format!("service {}: webhook {}: {problem}", service.name, webhook.url));
                webhook.url = url.map_err(invalid)?.into();
            }
        }
    }
    for document in &documents {
        for (number, service) in document.services.iter().enumerate() {
            check_service(service).map_err(|problem| error(format!("services[{number}].{problem}")))?;
        }
    }
    Ok(documents)
}

impl Document {
    pub fn secret_files(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.services.iter_mut().flat_map(|DeclaredService { webhooks, keys, .. }| {
            let of_webhooks = webhooks.iter_mut().filter_map(|webhook| webhook.secret_file.as_mut());
            of_webhooks.chain(keys.iter_mut().filter_map(|key| key.secret_file.as_mut()))
        })
    }
}

/// Checks across all files that no service is described twice, and that no two secrets have the same file.
pub fn check_services(services: &[DeclaredService]) -> Result<(), String> {
    let mut seen = HashSet::new();
    let mut secret_files = HashSet::new();
    for DeclaredService { name, id, webhooks, keys, .. } in services {
        let key = id.as_deref().unwrap_or(name);
        if !seen.insert(key) {
            return Err(format!("the service {key} is described twice: all of it must be in one document of one file"));
        }
        let of_webhooks = webhooks.iter().filter_map(|webhook| webhook.secret_file.as_ref());
        let of_keys = keys.iter().filter_map(|key| key.secret_file.as_ref());
        if let Some(file) = of_webhooks.chain(of_keys).find(|file| !secret_files.insert(*file)) {
            let problem = format!("secretFile {} is named twice: each secret needs a file of its own", file.display());
            return Err(format!("service {key}: {problem}"));
        }
    }
    Ok(())
}

/// The maximum length of a resource URI, in bytes.
const MAX_RESOURCE_URI_BYTES: usize = 512;

/// The maximum number of resource URIs of a service.
const MAX_RESOURCE_URIS: usize = 8;

/// A resource URI in the form that the control plane stores; `None` if it would refuse the URI.
pub fn normal_uri(text: &str) -> Option<String> {
    let url: Url = text.parse().ok()?;
    let is_plain = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    let is_uri = is_plain && !url.path().contains("//") && ["http", "https"].contains(&url.scheme());
    let normal = format!("{}{}", url.origin().ascii_serialization(), url.path().trim_end_matches('/'));
    (is_uri && normal.len() <= MAX_RESOURCE_URI_BYTES).then_some(normal)
}

fn check_resource_uris(uris: &[String]) -> Result<(), String> {
    let count = format!("resourceUris: at most {MAX_RESOURCE_URIS} are allowed");
    require(uris.len() <= MAX_RESOURCE_URIS, &count)?;
    let problem = "must be an http:// or https:// URL of at most 512 bytes, without user name, query, fragment and `//` in the path";
    let mut normal = Vec::new();
    for (number, uri) in uris.iter().enumerate() {
        normal.push(normal_uri(uri).ok_or_else(|| format!("resourceUris[{number}]: {problem}"))?);
    }
    unique("resourceUris", "URL", normal.iter().map(String::as_str))
}

fn check_service(service: &DeclaredService) -> Result<(), String> {
    let DeclaredService { name, id, resource_uris, roles, assignments, webhooks, keys, .. } = service;
    require(!name.trim().is_empty(), "name: must not be empty")?;
    if let Some(id) = id {
        require(id.parse::<ServiceId>().is_ok(), "id: is not the id of a service, which begins with svc_")?;
    }
    check_resource_uris(resource_uris.as_deref().unwrap_or_default())?;
    unique("roles", "name", roles.iter().map(|role| role.name.as_str()))?;
    for (number, role) in roles.iter().enumerate() {
        let check = |result: Result<(), InvalidName>| result.map_err(|problem| format!("roles[{number}]: {problem}"));
        check(RoleName::try_from(role.name.as_str()).map(drop))?;
        role.permissions
            .iter()
            .try_for_each(|permission| check(Permission::try_from(permission.as_str()).map(drop)))?;
    }
    unique("webhooks", "url", webhooks.iter().map(|webhook| webhook.url.as_str()))?;
    for (number, webhook) in webhooks.iter().enumerate() {
        check_events(&webhook.events).map_err(|problem| format!("webhooks[{number}].{problem}"))?;
    }
    unique("keys", "name", keys.iter().map(|key| key.name.as_str()))?;
    for (number, key) in keys.iter().enumerate() {
        check_key(key).map_err(|problem| format!("keys[{number}].{problem}"))?;
    }
    for (number, assignment) in assignments.iter().enumerate() {
        check_assignment(assignment).map_err(|problem| format!("assignments[{number}].{problem}"))?;
    }
    let agents = assignments.iter().filter_map(|it| Some((it.role.as_str(), it.agent.as_deref()?)));
    let mut seen = HashSet::new();
    for (role, agent) in agents {
        require(seen.insert((role, agent)), &format!("assignments: {agent} gets the role {role} twice: delete one"))?;
    }
    Ok(())
}

fn check_events(events: &[String]) -> Result<(), String> {
    if events == ["*"] {
        return Ok(());
    }
    let required = format!("must be [\"*\"], or some of {}", EVENT_KINDS.join(", "));
    require(!events.is_empty(), &format!("events: {required}"))?;
    if let Some(event) = events.iter().find(|event| !EVENT_KINDS.contains(&event.as_str())) {
        return Err(format!("events: {event} is no kind of event: {required}"));
    }
    unique("events", "kind", events.iter().map(String::as_str))
}

fn check_key(key: &DeclaredKey) -> Result<(), String> {
    let DeclaredKey { name: _, scope: _, secret_file, kubernetes_secret } = key;
    let Some(KubernetesSecret { name, key }) = kubernetes_secret else { return Ok(()) };
    require(secret_file.is_none(), "kubernetesSecret: is set besides `secretFile`: delete one")?;
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_key = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    require(!name.is_empty() && name.bytes().all(is_name), "kubernetesSecret.name: must be the name of a Secret")?;
    require(
        !key.is_empty() && key.bytes().all(is_key),
        "kubernetesSecret.key: must be a key of a Secret, such as `keys`",
    )
}

fn check_assignment(assignment: &DeclaredAssignment) -> Result<(), String> {
    let DeclaredAssignment { role, agent, pattern, expires_at } = assignment;
    require(!role.is_empty(), "role: must be the name of a role")?;
    match (agent, pattern) {
        (Some(agent), None) => {
            require(agent.parse::<AgentId>().is_ok(), "agent: is not the id of an agent, which begins with agent_")?;
        }
        (None, Some(Match { name, email })) => {
            let is_not_empty = |text: &Option<String>| text.as_ref().is_none_or(|text| !text.is_empty());
            require(name.is_some() || email.is_some(), "match: must have `name` or `email`")?;
            require(is_not_empty(name), "match.name: must not be empty; `*` matches all")?;
            require(is_not_empty(email), "match.email: must not be empty; `*` matches all")?;
        }
        (None, None) => return Err("agent: is missing: set `agent` or `match`".to_owned()),
        (Some(_), Some(_)) => return Err("match: is set besides `agent`: delete one".to_owned()),
    }
    let is_time = expires_at.as_ref().is_none_or(|time| time.parse::<jiff::Timestamp>().is_ok());
    require(is_time, "expiresAt: must be a time such as 2027-01-31T12:00:00Z")
}

fn require(condition: bool, problem: &str) -> Result<(), String> {
    if condition { Ok(()) } else { Err(problem.to_owned()) }
}

fn unique<'a>(list: &str, field: &str, values: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut seen = HashSet::new();
    for (number, value) in values.enumerate() {
        require(!value.is_empty(), &format!("{list}[{number}].{field}: must not be empty"))?;
        require(seen.insert(value), &format!("{list}[{number}].{field}: {value} is listed twice: delete one"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
