//! The scope of webhooks: a service, or the whole deployment.

use crate::cli::{args::ManagerArgs, context::Context, error::CliError, ids::webhook_id, placeholders};
use clap::Args;
use countersign_client::api::{WebhookApi, WebhookScope};

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

pub struct SelectedWebhook {
    pub webhooks: WebhookApi,
    pub id: String,
}

impl ScopeArgs {
    pub async fn api(&self, context: &Context) -> Result<WebhookApi, CliError> {
        let Self { manager, deployment } = self;
        if *deployment {
            let credential = manager.human.credential(context, &manager.server).await?;
            return Ok(WebhookApi { api: context.api(&manager.server)?, scope: WebhookScope::Deployment, credential });
        }
        Ok(manager.service_api(context).await?.webhooks())
    }
}

impl WebhookArgs {
    pub async fn api(&self, context: &Context) -> Result<SelectedWebhook, CliError> {
        let id = webhook_id(self.webhook.clone())?;
        let webhooks = self.scope.api(context).await?;
        context.messages.placeholders.set_with_option(placeholders::WEBHOOK, scope_option(&webhooks.scope), &id);
        Ok(SelectedWebhook { webhooks, id })
    }
}

/// The option that selects this scope, with a space before it, for commands in hints.
pub const fn scope_option(scope: &WebhookScope) -> &'static str {
    match scope {
        WebhookScope::Service(_) => "",
        WebhookScope::Deployment => " --deployment",
    }
}
