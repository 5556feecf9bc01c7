//! Arguments that several commands share. Checks that a credential is of the right kind before it is sent.

use super::{complete, error::CliError, output::OutputFormat, time};
use clap::{Args, ValueHint};
use clap_complete::ArgValueCandidates;
use secrecy::{ExposeSecret, SecretString};
use std::{path::PathBuf, time::Duration};

const API_KEY_PREFIX: &str = "svc_sk_";

/// The heading of the options for connection and credentials in the help.
pub const CONNECTION: &str = "Connection and credentials";

pub const HUMAN_TOKEN_HINT: &str = "countersign login, or set COUNTERSIGN_HUMAN_TOKEN; without an identity provider, the \
                           operator mints a token: countersign-control-plane human-token mint --subject NAME";

/// Options of every command.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// The profile: the settings and tokens of one agent, and the login of a human user
    #[arg(long, global = true, env = "COUNTERSIGN_PROFILE", default_value = "default", value_name = "NAME",
        display_order = 900, add = ArgValueCandidates::new(complete::profile_names))]
    pub profile: String,
    /// Output format, for standard output and standard error: text or json. Help, --version and `completions` are always text
    #[arg(short, long, global = true, value_enum, default_value_t = OutputFormat::Text, value_name = "FORMAT",
        hide_possible_values = true, display_order = 901)]
    pub output: OutputFormat,
    /// Print only data and errors: no notes, hints and warnings
    #[arg(short, long, global = true, display_order = 902, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print each request to standard error: method, URL, status, duration and request id
    #[arg(short, long, global = true, display_order = 903)]
    pub verbose: bool,
    /// Timeout of each request, such as 500ms, 5s or 1m
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s",
        value_parser = time::positive_duration, display_order = 904)]
    pub timeout: Duration,
}

/// The control plane that receives the requests.
#[derive(Args)]
pub struct ServerArgs {
    /// The URL of the control plane, https://HOST:PORT; without a port, 443 (a control plane listens on 8443 by default)
    // The option is named `--server`, not `--url`, because webhook commands also have the URL of a receiver. A user
    // must not send an API key to the host of a webhook receiver by mistake.
    #[arg(long = "server", env = "COUNTERSIGN_URL", value_name = "URL", value_hint = ValueHint::Url,
        help_heading = CONNECTION)]
    pub url: Option<String>,
    /// PEM file with the certificate authorities to trust, instead of those of the system; a server with --dev writes ca.pem
    #[arg(long, env = "COUNTERSIGN_CA", value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = CONNECTION)]
    pub ca: Option<PathBuf>,
}

/// The service that a command manages.
#[derive(Args)]
pub struct ServiceArg {
    /// The id of the service [default: the service that this profile created last]
    #[arg(long, env = "COUNTERSIGN_SERVICE_ID", help_heading = CONNECTION,
        add = ArgValueCandidates::new(complete::service_ids))]
    pub service: Option<String>,
}

/// An API key of a service.
#[derive(Args)]
pub struct ServiceKeyArg {
    /// API key of the service; set the variable instead, since other users can see command lines
    #[arg(long, env = "COUNTERSIGN_SERVICE_KEY", hide_env_values = true, value_name = "KEY", help_heading = CONNECTION)]
    pub service_key: Option<SecretString>,
    /// File with the API key, such as the file of `key create --out`; used only if no key is set
    #[arg(long, env = "COUNTERSIGN_SERVICE_KEY_FILE", value_name = "FILE", value_parser = read_credential,
        value_hint = ValueHint::FilePath, help_heading = CONNECTION)]
    service_key_file: Option<SecretString>,
}

/// The token of a human user.
#[derive(Args)]
pub struct HumanTokenArg {
    /// Token of a human user, which overrides `countersign login`; set the variable instead, since other users see command lines
    #[arg(long, env = "COUNTERSIGN_HUMAN_TOKEN", hide_env_values = true, value_name = "TOKEN",
        help_heading = CONNECTION)]
    pub human_token: Option<SecretString>,
    /// File with the token, such as a file that Kubernetes mounts; used only if no token is set
    #[arg(long, env = "COUNTERSIGN_HUMAN_TOKEN_FILE", value_name = "FILE", value_parser = read_credential,
        value_hint = ValueHint::FilePath, help_heading = CONNECTION)]
    human_token_file: Option<SecretString>,
}

/// The control plane, and the token of a human user for it.
#[derive(Args)]
pub struct HumanArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub token: HumanTokenArg,
}

/// A service, and the token of a human user: an API key cannot manage the properties and API keys of a service.
#[derive(Args)]
pub struct OwnedServiceArgs {
    #[command(flatten)]
    pub human: HumanArgs,
    #[command(flatten)]
    pub service: ServiceArg,
}

/// A service, and the credential that manages it: an API key or the token of a human user.
#[derive(Args)]
pub struct ManagerArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub service: ServiceArg,
    #[command(flatten)]
    pub key: ServiceKeyArg,
    #[command(flatten)]
    pub human: HumanTokenArg,
}

/// The agent of a command that uses the profile's agent by default.
#[derive(Args)]
pub struct AgentArg {
    /// The id of the agent [default: the agent of the profile]
    #[arg(value_name = "AGENT", add = ArgValueCandidates::new(complete::agent_ids))]
    pub agent: Option<String>,
}

/// The agent of a command that has no default, so that the user must name it.
#[derive(Args)]
pub struct RequiredAgentArg {
    /// The id of the agent
    #[arg(value_name = "AGENT", add = ArgValueCandidates::new(complete::agent_ids))]
    pub agent: String,
}

impl HumanTokenArg {
    /// The token of the human user, if a flag or a variable sets it. Refuses an API key here, before it is sent: the control plane
    /// would return an error about human users, which hides the mistake.
    pub fn explicit(&self) -> Result<Option<&SecretString>, CliError> {
        let Some(token) = self.human_token.as_ref().or(self.human_token_file.as_ref()) else { return Ok(None) };
        let problem = if token.expose_secret().starts_with(API_KEY_PREFIX) {
            "contains the API key of a service, not the token of a human user"
        } else if !is_one_word(token) {
            "contains a space, a line end or another character that no token contains"
        } else {
            return Ok(Some(token));
        };
        Err(CliError::usage(format!("COUNTERSIGN_HUMAN_TOKEN (--human-token) {problem}")).with_next(HUMAN_TOKEN_HINT))
    }
}

impl ServiceKeyArg {
    /// The API key, if it is set. Refuses other text here, before it is sent: the control plane would take it for the token of a human
    /// user.
    pub fn optional(&self) -> Result<Option<&SecretString>, CliError> {
        let Some(key) = self.service_key.as_ref().or(self.service_key_file.as_ref()) else { return Ok(None) };
        if key.expose_secret().starts_with(API_KEY_PREFIX) && is_one_word(key) {
            return Ok(Some(key));
        }
        let text = "COUNTERSIGN_SERVICE_KEY (--service-key) contains no API key: an API key is one word that begins \
                    with svc_sk_";
        Err(CliError::usage(text).with_next("`countersign key create --scope full` creates one"))
    }
}

/// Reads the credential in a file, without white space around it. The error does not contain the content.
fn read_credential(path: &str) -> Result<SecretString, String> {
    let text = std::fs::read_to_string(path).map(SecretString::from);
    let text = text.map_err(|error| format!("the file cannot be read: {error}"))?;
    match text.expose_secret().trim() {
        "" => Err("the file is empty".to_owned()),
        credential => Ok(credential.into()),
    }
}

/// Whether a credential can be sent in an HTTP header. For another one, the HTTP client would report a connection error.
fn is_one_word(credential: &SecretString) -> bool {
    credential.expose_secret().bytes().all(|byte| byte.is_ascii_graphic())
}
