//! The context of a command: its profile, its messages and the options of every command.
//!
//! Flags override environment variables, which override the profile.

use super::{
    CliError, GlobalArgs, Messages, OutputFormat,
    args::{ServerArgs, ServiceArg},
    hints::is_unknown_authority,
    ids::service_id,
    output::quoted,
    placeholders::Placeholder,
    trace,
};
use countersign_client::{
    Api, ApiError, PrivateKey, Profile, ProfileError, Profiles, api::Observer, key::insecure_mode,
};
use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

/// The context of a command.
pub struct Context {
    /// All profiles of the user.
    pub profiles: Profiles,
    /// The name of the profile in use.
    pub name: String,
    /// The profile in use.
    pub profile: Profile,
    /// Messages on standard error.
    pub messages: Messages,
    /// The timeout of each request.
    pub timeout: Duration,
    /// Reports each request, if `--verbose` is set.
    pub observer: Option<Observer>,
    /// The file of authorities that a client uses.
    loaded_authority: OnceLock<PathBuf>,
    /// The service that a command uses, if it is that of the profile.
    service_of_profile: OnceLock<String>,
    /// The file of a private key that a warning was about. A command that reads a file twice warns once.
    insecure_key: OnceLock<PathBuf>,
}

impl Context {
    /// Reads the profile.
    pub fn open(args: GlobalArgs, messages: Messages) -> Result<Self, CliError> {
        let GlobalArgs { profile: name, output, quiet: _, verbose, timeout } = args;
        let profiles = Profiles::of_user()?;
        let profile = profiles.load(&name)?;
        let observer = verbose.then(|| trace::observer(output));
        if let Some(agent) = &profile.agent {
            messages.placeholders.set(Placeholder::Agent, agent);
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

    /// The format of the output.
    pub const fn format(&self) -> OutputFormat {
        self.messages.format()
    }

    /// The URL of the control plane.
    pub fn url(&self, server: &ServerArgs) -> Result<String, CliError> {
        let url = server.url.clone().or_else(|| self.profile.url.clone());
        url.ok_or_else(|| missing("the control plane", "set --server https://HOST:PORT or COUNTERSIGN_URL"))
    }

    /// The file with the trusted authorities.
    pub fn authority(&self, server: &ServerArgs) -> Option<PathBuf> {
        server.ca.clone().or_else(|| self.profile.ca.clone())
    }

    /// Replaces the hint of an error that a setting of the user causes: an unknown authority if the user has set a file of
    /// authorities, and an unknown service if it is that of the profile.
    pub fn with_context_hint(&self, error: CliError) -> CliError {
        match (error, self.loaded_authority.get()) {
            (CliError::Api(error), Some(path)) if is_unknown_authority(&error) => {
                let text =
                    "no authority in this file signed the certificate of the server; is it the file of this server?";
                CliError::ApiWithHint { error, hint: format!("check {}: {text}", path.display()).into() }
            }
            (CliError::Api(error), _) if let Some(service) = self.service_of_profile.get() => {
                CliError::with_hint(error, "SERVICE_NOT_FOUND", || {
                    let name = &self.name;
                    format!(
                        "the profile {name} uses the service {service}, which may be deleted: pass --service; `countersign \
                         service list` shows your services"
                    )
                })
            }
            (error, _) => error,
        }
    }

    /// A client of the control plane.
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

    /// The id of the service, from the flag or the environment, otherwise from the profile.
    pub fn service(&self, service: &ServiceArg) -> Result<String, CliError> {
        let from_profile = || self.profile.service.clone().inspect(|id| drop(self.service_of_profile.set(id.clone())));
        let id = service.service.clone().or_else(from_profile).ok_or_else(|| {
            let next = "set --service or COUNTERSIGN_SERVICE_ID; `countersign service list` shows your services, \
                        `countersign service create` creates one";
            missing("the service", next)
        })?;
        let id = service_id(id)?;
        self.messages.placeholders.set(Placeholder::Service, &id);
        Ok(id)
    }

    /// Checks that the profile can be saved. Commands call this function before they create something that the profile
    /// has to store.
    pub fn check_writable(&self) -> Result<(), ProfileError> {
        self.profiles.check_writable(&self.name)
    }

    /// Changes and saves the profile.
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
        ApiError::Authority(problem) => CliError::file(source, path, problem),
        error => error.into(),
    }
}

/// The error for a missing argument.
pub fn missing(what: &str, next: &str) -> CliError {
    CliError::Usage(format!("{what} is not set\nNext: {next}"))
}

/// Makes a path absolute, because commands that run in other folders read it from the profile.
pub fn absolute_path(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}
