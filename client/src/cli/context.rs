//! The context of a command: its profile, its messages and the options of every command.
//!
//! Flags override environment variables, which override the profile.

use super::{
    args::{AgentArg, GlobalArgs, RequiredAgentArg, ServerArgs, ServiceArg},
    error::{Cause, CliError},
    hints::is_unknown_authority,
    ids::{agent_id, service_id},
    messages::Messages,
    output::{OutputFormat, quoted},
    placeholders, trace,
};
use countersign_client::{
    Api, ApiError, PrivateKey, Profile, ProfileError, Profiles, api::Observer, key::insecure_mode,
};
use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

pub struct Context {
    pub profiles: Profiles,
    /// The name of the profile in use.
    pub name: String,
    pub profile: Profile,
    pub messages: Messages,
    pub timeout: Duration,
    /// Reports each request, if `--verbose` is set.
    pub observer: Option<Observer>,
    /// The file of CA certificates that the client trusts; the hint about an unknown authority names it.
    loaded_authority: OnceLock<PathBuf>,
    /// The service, if the command took it from the profile; the hint about an unknown service names it.
    service_of_profile: OnceLock<String>,
    /// The private key file that we warned about: a command that reads it twice warns once.
    insecure_key: OnceLock<PathBuf>,
}

impl Context {
    pub fn open(args: GlobalArgs, messages: Messages) -> Result<Self, CliError> {
        let GlobalArgs { profile: name, output, quiet: _, verbose, timeout } = args;
        let profiles = Profiles::of_user()?;
        let profile = profiles.load(&name)?;
        let observer = verbose.then(|| trace::observer(output));
        if let Some(agent) = &profile.agent {
            messages.placeholders.set(placeholders::AGENT, agent);
        }
        Ok(Self {
            profiles,
            name,
            profile,
            messages,
            timeout,
            observer,
            loaded_authority: OnceLock::new(),
            service_of_profile: OnceLock::new(),
            insecure_key: OnceLock::new(),
        })
    }

    pub const fn format(&self) -> OutputFormat {
        self.messages.format
    }

    pub fn url(&self, server: &ServerArgs) -> Result<String, CliError> {
        let url = server.url.clone().or_else(|| self.profile.url.clone());
        url.ok_or_else(|| CliError::missing("the control plane", "set --server https://HOST:PORT or COUNTERSIGN_URL"))
    }

    pub fn authority(&self, server: &ServerArgs) -> Option<PathBuf> {
        server.ca.clone().or_else(|| self.profile.ca.clone())
    }

    /// Adds a hint if a setting causes the error: `--ca` is the file of another server, or the profile's service is deleted.
    pub fn with_context_hint(&self, error: CliError) -> CliError {
        let unknown_authority = matches!(&error.cause, Cause::Api(error) if is_unknown_authority(error));
        if unknown_authority && let Some(path) = self.loaded_authority.get() {
            let text = "no authority in this file signed the certificate of the server; is it the file of this server?";
            return error.with_next(format!("check {}: {text}", path.display()));
        }
        let Some(service) = self.service_of_profile.get() else { return error };
        error.with_next_for("SERVICE_NOT_FOUND", || {
            let name = &self.name;
            format!(
                "the profile {name} uses the service {service}, which may be deleted: pass --service; `countersign service \
                 list` shows your services"
            )
        })
    }

    pub fn api(&self, server: &ServerArgs) -> Result<Api, CliError> {
        let url = self.url(server)?;
        let api = match self.authority(server) {
            None => Api::new(&url, None)?,
            Some(path) => {
                let source = || match server.ca {
                    Some(_) => "--ca (COUNTERSIGN_CA)".into(),
                    None => format!("profile {}: ca", self.name),
                };
                let api = Api::new(&url, Some(&read_file(source(), &path)?))
                    .map_err(|error| authority_error(error, source(), &path))?;
                self.loaded_authority.get_or_init(|| path);
                api
            }
        };
        let api = api.with_timeout(self.timeout);
        Ok(self.observer.into_iter().fold(api, Api::with_observer))
    }

    /// The id of the service: from the flag, else from the environment, else from the profile.
    pub fn service(&self, service: &ServiceArg) -> Result<String, CliError> {
        let from_profile = || self.profile.service.clone().inspect(|id| drop(self.service_of_profile.set(id.clone())));
        let id = service.service.clone().or_else(from_profile).ok_or_else(|| {
            let next = "set --service or COUNTERSIGN_SERVICE_ID; `countersign service list` shows your services, \
                        `countersign service create` creates one";
            CliError::missing("the service", next)
        })?;
        let id = service_id(id)?;
        self.messages.placeholders.set(placeholders::SERVICE, &id);
        Ok(id)
    }

    /// The id of the agent on the command line.
    pub fn agent(&self, agent: &RequiredAgentArg) -> Result<String, CliError> {
        self.checked_agent(agent.agent.clone())
    }

    /// The id of the agent on the command line, or else of the profile's agent.
    pub fn agent_or_default(&self, agent: &AgentArg) -> Result<String, CliError> {
        let next = "pass its id, or run `countersign agent register`, which saves it in the profile";
        let id = agent.agent.clone().or_else(|| self.profile.agent.clone());
        self.checked_agent(id.ok_or_else(|| CliError::missing("the agent", next))?)
    }

    /// Checks the id of an agent, and fills it into hints.
    fn checked_agent(&self, id: String) -> Result<String, CliError> {
        let id = agent_id(id)?;
        self.messages.placeholders.set(placeholders::AGENT, &id);
        Ok(id)
    }

    /// Checks that the profile can be saved. Commands call it before they create something that the profile has to store.
    pub fn check_writable(&self) -> Result<(), ProfileError> {
        self.profiles.check_writable(&self.name)
    }

    /// Saves a changed copy of the profile. This context keeps the profile without the change.
    pub fn update_profile(&self, change: impl FnOnce(&mut Profile)) -> Result<(), ProfileError> {
        let mut profile = self.profile.clone();
        change(&mut profile);
        if profile != self.profile {
            self.profiles.save(&self.name, &profile)?;
        }
        Ok(())
    }

    /// Reads an agent's private key, and warns if other users can read it.
    pub fn private_key(&self, path: &Path) -> Result<PrivateKey, CliError> {
        let key = PrivateKey::read(path)?;
        if let Some(mode) = insecure_mode(path)
            && self.insecure_key.set(path.to_owned()).is_ok()
        {
            let path = path.display().to_string();
            let text = format!("other users can access {path} (mode {mode:04o}); chmod 600 {}", quoted(&path));
            self.messages.warning(&text);
        }
        Ok(key)
    }
}

/// Reads a file. The error names `source`, the option that contains the path.
pub fn read_file(source: impl Into<String>, path: &Path) -> Result<Vec<u8>, CliError> {
    std::fs::read(path).map_err(|error| CliError::file(source, path, error.to_string()))
}

/// Adds `source`, the option that contains the path, to an error about certificate authorities.
pub fn authority_error(error: ApiError, source: impl Into<String>, path: &Path) -> CliError {
    match error {
        ApiError::CaCertificates(problem) => CliError::file(source, path, problem),
        error => error.into(),
    }
}

/// Makes a path absolute, for the profile: later commands may run in other folders.
pub fn absolute_path(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}
