//! The scope of webhooks: a service, or the whole deployment.

use crate::cli::{args::ManagerArgs, context::Context, error::CliError, ids::webhook_id, placeholders::Placeholder};
use clap::Args;
use countersign_client::{Api, api::WebhookScope};
use secrecy::SecretString;

/// The webhooks that a command manages: the webhooks of a service, or the webhooks of the whole Countersign deployment.
#[derive(Args)]
pub struct ScopeArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The webhooks for the events of all services, instead of those of a service; for administrators
    #[arg(long)]
    deployment: bool,
}

#[derive(Args)]
pub struct WebhookArgs {
    #[command(flatten)]
    scope: ScopeArgs,
    /// The id of the webhook, as `countersign webhook list` shows it
    #[arg(value_name = "ID")]
    webhook: String,
}

/// The webhooks of a scope, with the credential that manages them.
pub struct ScopedApi {
    pub api: Api,
    pub credential: SecretString,
    pub scope: WebhookScope,
}

/// A webhook, with the scope that it belongs to.
pub struct SelectedWebhook {
    pub scoped: ScopedApi,
    pub id: String,
}

impl ScopeArgs {
    pub async fn api(&self, context: &Context) -> Result<ScopedApi, CliError> {
        let Self { manager, deployment } = self;
        let api = context.api(&manager.server)?;
        if *deployment {
            let credential = manager.human.credential(context, &manager.server).await?;
            return Ok(ScopedApi { api, credential, scope: WebhookScope::Deployment });
        }
        let service = context.service(&manager.service)?;
        Ok(ScopedApi { api, credential: manager.credential(context).await?, scope: WebhookScope::Service(service) })
    }
}

impl WebhookArgs {
    pub async fn api(&self, context: &Context) -> Result<SelectedWebhook, CliError> {
        let id = webhook_id(self.webhook.clone())?;
        let scoped = self.scope.api(context).await?;
        context.messages.placeholders.set_with_option(Placeholder::Webhook, scoped.option(), &id);
        Ok(SelectedWebhook { scoped, id })
    }
}

impl ScopedApi {
    /// The option that selects this scope in the commands of hints, after a space.
    pub const fn option(&self) -> &'static str {
        match self.scope {
            WebhookScope::Service(_) => "",
            WebhookScope::Deployment => " --deployment",
        }
    }
}
