//! Reads services with their roles, role holders, webhooks and keys: `countersign apply` compares them with the files, and
//! `countersign export` writes them to a file.

use super::{format::DeclaredService, kubernetes::SecretEntries};
use crate::cli::{args::ManagerArgs, context::Context, error::CliError};
use countersign_client::{
    Api,
    api::{AgentFilter, AgentWithRoles, HumanUser, ListedAgent, ListedKey, Role, Service, Webhook, all_pages},
    clock,
    oidc::HumanClaims,
};
use countersign_identity::Timestamp;
use secrecy::SecretString;

/// What exists at the control plane, as far as a plan depends on it.
pub struct Existing {
    /// The services that the files declare and that exist already.
    pub services: Vec<ExistingService>,
    /// The agents that the human user has registered. A file can assign roles by pattern (`match`), such as the name `build-*`. A
    /// pattern matches only these agents: owners choose the names of agents, so anybody could give an agent a name that matches.
    pub agents: Vec<ListedAgent>,
    /// The services of the human user that no file declares.
    pub services_in_no_file: Vec<Service>,
    /// Whether the credential is an API key, which gives access to one service only.
    pub is_read_by_key: bool,
    pub read_at: Timestamp,
    /// The Kubernetes Secrets that the files name.
    pub secret_entries: SecretEntries,
}

/// A service with what belongs to it. `keys` is empty if the plan needs no API keys.
pub struct ExistingService {
    pub service: Service,
    /// Whether the human user owns the service; `true` with an API key. Administrators can also read services of other owners.
    pub is_own: bool,
    pub roles: Vec<Role>,
    /// The agents that hold a role.
    pub holders: Vec<AgentWithRoles>,
    pub webhooks: Vec<Webhook>,
    pub keys: Vec<ListedKey>,
}

/// The control plane, and the credential for it.
pub struct Access {
    pub api: Api,
    /// The token of a human user, or the API key of the service.
    pub credential: SecretString,
    /// The service of the API key; `None` with the token of a human user, who can have several services.
    service_of_key: Option<String>,
    /// The human user; `None` with an API key, or if the token has no readable claims: without a user, we find services only by id.
    /// A name stands only for a service of this user: administrators can read all services, and several can have this name.
    human: Option<HumanUser>,
}

impl Access {
    /// Uses the token of the human user, or else the API key. With an API key, refuses files that need a human user.
    pub async fn open(context: &Context, args: &ManagerArgs, declared: &[DeclaredService]) -> Result<Self, CliError> {
        let api = context.api(&args.server)?;
        if let Some(credential) = args.human.available(context, &args.server).await? {
            let claims = HumanClaims::parse(&credential);
            let human = claims.map(|claims| HumanUser { issuer: claims.issuer, subject: claims.subject });
            return Ok(Self { api, credential, service_of_key: None, human });
        }
        let credential = args.credential(context).await?;
        let service = context.service(&args.service)?;
        let needs_human = declared.iter().any(|it| {
            let has_patterns = it.assignments.iter().any(|assignment| assignment.pattern.is_some());
            has_patterns || !it.keys.is_empty() || it.accepts_unbound_tokens.is_some() || it.resource_uris.is_some()
        });
        if declared.len() != 1 || needs_human {
            let next = "countersign login, or set COUNTERSIGN_HUMAN_TOKEN";
            let text = match declared {
                [] => "an API key cannot read its service: this needs the token of a human user",
                _ => {
                    "an API key can change the roles, assignments of agents by id, and webhooks of its service only: the files describe more"
                }
            };
            return Err(CliError::usage(text).with_next(next));
        }
        Ok(Self { api, credential, service_of_key: Some(service), human: None })
    }

    /// Reads the services that the files declare, and the agents of the human user if a pattern needs them. With `prunes`, also
    /// reads all API keys, because `apply` may revoke some of them.
    pub async fn read(
        &self,
        declared: &[DeclaredService],
        secret_entries: SecretEntries,
        prunes: bool,
    ) -> Result<Existing, CliError> {
        let Self { api, credential, service_of_key, human: _ } = self;
        let has_patterns = declared.iter().flat_map(|it| &it.assignments).any(|it| it.pattern.is_some());
        if let Some(id) = service_of_key {
            let name = declared.first().map(|it| it.name.clone()).unwrap_or_default();
            // An API key cannot read its service, so we take name and `managedBy` from the file. A plan needs no other field.
            let service = Service {
                service_id: id.clone(),
                name,
                owner: HumanUser { issuer: String::new(), subject: String::new() },
                accepts_unbound_tokens: true,
                resource_uris: Vec::new(),
                managed_by: declared.first().and_then(|it| it.managed_by.clone()),
                created_at: String::new(),
            };
            // An API key cannot list API keys.
            let with_keys = false;
            return Ok(Existing {
                services: vec![self.read_service(service, with_keys).await?],
                agents: Vec::new(),
                services_in_no_file: Vec::new(),
                is_read_by_key: true,
                read_at: clock::now(),
                secret_entries,
            });
        }
        let mut services = Vec::new();
        let mut services_in_no_file = Vec::new();
        for service in all_pages(async |start| api.human(credential).list_services(&start).await).await? {
            let describes = |it: &DeclaredService| match &it.id {
                Some(id) => *id == service.service_id,
                None => it.name == service.name && self.human_owns(&service),
            };
            if let Some(declared) = declared.iter().find(|it| describes(it)) {
                let with_keys = prunes || !declared.keys.is_empty();
                services.push(self.read_service(service, with_keys).await?);
            } else if self.human_owns(&service) {
                // An administrator also reads services of other owners with the same `managedBy`, which must not be deleted.
                services_in_no_file.push(service);
            }
        }
        let agents = if has_patterns {
            all_pages(async |start| api.human(credential).list_own_agents(&start).await).await?
        } else {
            Vec::new()
        };
        Ok(Existing {
            services,
            agents,
            services_in_no_file,
            is_read_by_key: false,
            read_at: clock::now(),
            secret_entries,
        })
    }

    pub fn human_owns(&self, service: &Service) -> bool {
        self.human.as_ref() == Some(&service.owner)
    }

    pub async fn read_service(&self, service: Service, with_keys: bool) -> Result<ExistingService, CliError> {
        let api = self.api.service(&service.service_id, &self.credential);
        let filter = AgentFilter::default();
        let keys = if with_keys { all_pages(async |start| api.list_keys(&start).await).await? } else { Vec::new() };
        Ok(ExistingService {
            is_own: self.service_of_key.is_some() || self.human_owns(&service),
            roles: api.list_roles().await?,
            holders: all_pages(async |start| api.list_agents(&filter, &start).await).await?,
            webhooks: api.webhooks().list().await?,
            keys,
            service,
        })
    }
}
