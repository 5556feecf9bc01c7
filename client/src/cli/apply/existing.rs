//! Reads what exists at the control plane.

use crate::cli::{CliError, args::ManagerArgs, context::Context, service::all_pages};
use countersign_client::{
    Api,
    api::{AgentFilter, Service, WebhookScope},
    declared::{DeclaredService, Existing, ExistingService},
};
use secrecy::SecretString;

/// The control plane, and the credential for it.
pub struct Access {
    /// The client.
    pub api: Api,
    /// The token of a human user, or the API key of the service.
    pub credential: SecretString,
    /// The service of the API key. A human user can have several services.
    service_of_key: Option<String>,
}

impl Access {
    /// Uses the token of the human user, or else the API key, which allows a part of one service only.
    pub async fn open(context: &Context, args: &ManagerArgs, declared: &[DeclaredService]) -> Result<Self, CliError> {
        let api = context.api(&args.server)?;
        if let Some(credential) = args.human.available(context, &args.server).await? {
            return Ok(Self { api, credential, service_of_key: None });
        }
        let credential = args.credential(context).await?;
        let service = context.service(&args.service)?;
        let needs_human = declared.iter().any(|it| !it.keys.is_empty() || it.accepts_unbound_tokens.is_some());
        if declared.len() != 1 || needs_human {
            let next = "countersign login, or set COUNTERSIGN_HUMAN_TOKEN";
            let text = "an API key can change the roles, assignments and webhooks of its service only: the files describe more";
            return Err(CliError::Usage(format!("{text}\nNext: {next}")));
        }
        Ok(Self { api, credential, service_of_key: Some(service) })
    }

    /// Reads the services that the files describe, and the agents of the human user.
    pub async fn read(&self, declared: &[DeclaredService]) -> Result<Existing, CliError> {
        let Self { api, credential, service_of_key } = self;
        let has_patterns = declared.iter().flat_map(|it| &it.assignments).any(|it| it.pattern.is_some());
        if let Some(id) = service_of_key {
            let name = declared.first().map(|it| it.name.clone()).unwrap_or_default();
            // An API key cannot read its service, and the name is not needed.
            let service = Service {
                service_id: id.clone(),
                name,
                owner: None,
                accepts_unbound_tokens: true,
                created_at: String::new(),
                revision: None,
            };
            return Ok(Existing { services: vec![self.read_service(service, false).await?], agents: Vec::new() });
        }
        let mut services = Vec::new();
        for service in all_pages(async |start| api.list_services(credential, &start).await).await? {
            let is_meant = |it: &DeclaredService| match &it.id {
                Some(id) => *id == service.service_id,
                None => it.name == service.name,
            };
            if let Some(declared) = declared.iter().find(|it| is_meant(it)) {
                services.push(self.read_service(service, !declared.keys.is_empty()).await?);
            }
        }
        let agents = if has_patterns {
            all_pages(async |start| api.list_own_agents(credential, &start).await).await?
        } else {
            Vec::new()
        };
        Ok(Existing { services, agents })
    }

    /// Reads what belongs to a service.
    pub async fn read_service(&self, service: Service, with_keys: bool) -> Result<ExistingService, CliError> {
        let (api, credential, id) = (&self.api, &self.credential, service.service_id.as_str());
        let filter = AgentFilter::default();
        let keys = if with_keys {
            all_pages(async |start| api.list_keys(credential, id, &start).await).await?
        } else {
            Vec::new()
        };
        Ok(ExistingService {
            roles: api.list_roles(credential, id).await?,
            holders: all_pages(async |start| api.list_agents(credential, id, &filter, &start).await).await?,
            webhooks: api.list_webhooks(credential, &WebhookScope::Service(id.to_owned())).await?,
            keys,
            service,
        })
    }
}
