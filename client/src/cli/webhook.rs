//! `countersign webhook`: the URLs that events are delivered to, and the deliveries.
//!
//! `change` creates and changes webhooks. `delivery` tests, lists and replays deliveries. `listen` receives events on this machine.

mod change;
mod delivery;
mod display;
mod listen;
mod receiver;
mod scope;

use super::{context::Context, error::CliError, output::CommandOutput};
use clap::Subcommand;
use scope::{ScopeArgs, SelectedWebhook, WebhookArgs};

#[derive(Subcommand)]
pub enum WebhookCommand {
    /// Create a webhook and print its secret, which is shown only once
    #[command(after_help = "Events are delivered by POST. Requests are signed as Standard Webhooks specifies: \
        https://www.standardwebhooks.com lists libraries, and countersign_client::webhook is one for Rust. Use --out \
        instead of `>`: other users can usually read a file that a shell creates.\n\n\
        Event kinds: agent.authenticated, agent.authentication_failed, agent.role_assigned, agent.role_revoked, \
        trust.feedback_received.\n\n\
        Examples:\n  $ countersign webhook create https://shop.example/hooks --out hook.secret\n  \
        $ countersign webhook create https://shop.example/hooks --events agent.role_assigned,agent.role_revoked\n\n\
        Next: countersign webhook test ID")]
    Create(change::CreateArgs),
    /// List the webhooks of the service
    #[command(after_help = "Examples:\n  $ countersign webhook list\n  $ countersign webhook list --deployment\n\n\
        Next: countersign webhook deliveries ID")]
    List(ScopeArgs),
    /// Show a webhook
    #[command(after_help = "Examples:\n  $ countersign webhook show ID\n\n\
        Next: countersign webhook deliveries ID")]
    Show(WebhookArgs),
    /// Change the URL, the event kinds or the description of a webhook
    #[command(after_help = "Pending deliveries go to the new URL.\n\n\
        Examples:\n  $ countersign webhook change ID --target https://shop.example/new\n  \
        $ countersign webhook change ID --events '*'\n\n\
        Next: countersign webhook test ID")]
    Change(change::ChangeArgs),
    /// Pause a webhook: its events are kept until it is resumed
    #[command(after_help = "Events are kept for the retention of deliveries, by default 30 days.\n\n\
        Examples:\n  $ countersign webhook pause ID\n\n\
        Next: countersign webhook resume ID")]
    Pause(WebhookArgs),
    /// Resume a webhook that was paused, or disabled because all deliveries failed
    #[command(after_help = "Examples:\n  $ countersign webhook resume ID\n\n\
        Next: countersign webhook deliveries ID")]
    Resume(WebhookArgs),
    /// Delete a webhook with its pending deliveries; this cannot be undone
    #[command(after_help = "`countersign webhook pause` can be undone.\n\n\
        Examples:\n  $ countersign webhook delete ID\n  $ countersign webhook delete ID --yes\n\n\
        Next: countersign webhook list")]
    Delete(change::DeleteArgs),
    /// Create a new secret and print it; it is shown only once, and the old one expires
    #[command(
        after_help = "Requests are signed with both secrets for a day: give the new one to the receiver in that \
        time.\n\n\
        Examples:\n  $ countersign webhook rotate-secret ID --out hook.secret\n  \
        $ countersign webhook rotate-secret ID --yes\n\n\
        Next: countersign webhook test ID"
    )]
    RotateSecret(change::RotateArgs),
    /// Send an event of kind webhook.test and wait for the response of the receiver
    #[command(
        after_help = "The event is sent once, even if the webhook is paused or does not receive this kind. Exit code 1 if \
        it was not delivered.\n\n\
        Examples:\n  $ countersign webhook test ID\n\n\
        Next: if it was not delivered, countersign webhook show ID"
    )]
    Test(WebhookArgs),
    /// List the deliveries of a webhook, or show the delivery of one event, with the body of its request
    #[command(
        after_help = "Newest first. An event is sent again until the receiver answers 2xx. After about three days without \
        such an answer, the delivery is dead.\n\n\
        Examples:\n  $ countersign webhook deliveries ID --status dead\n  \
        $ countersign webhook deliveries ID --event EVENT\n\n\
        Next: countersign webhook replay ID --event EVENT"
    )]
    Deliveries(delivery::DeliveriesArgs),
    /// Deliver an event again, or all events since a time
    #[command(after_help = "The receiver gets the same webhook-id again.\n\n\
        Examples:\n  $ countersign webhook replay ID --event EVENT\n  \
        $ countersign webhook replay ID --since 2h --status dead\n\n\
        Next: countersign webhook deliveries ID")]
    Replay(delivery::ReplayArgs),
    /// Receive events on this machine, verify their signatures and print them
    #[command(
        after_help = "--secret-file or COUNTERSIGN_WEBHOOK_SECRET contains the secret of a webhook whose URL leads to \
        this machine; several secrets are separated by spaces or line ends. Without a secret, the command creates a \
        webhook for this machine, and deletes it at the end: it receives the events of the service, or with \
        --deployment of all services. A control plane accepts this webhook only if it runs with --dev, or if its setting \
        webhooks.allowed_networks contains loopback.\n\n\
        The command ends on Ctrl-C or after --count events, with exit code 1 if a request was invalid. With -o json \
        each line is an object; the first one has the URL.\n\n\
        Examples:\n  $ countersign webhook listen\n  $ countersign webhook listen --port 9000 --secret-file hook.secret\n\n\
        Next: in another terminal, countersign webhook test ID"
    )]
    Listen(Box<listen::ListenArgs>),
}

pub async fn run(context: &Context, command: WebhookCommand) -> Result<CommandOutput, CliError> {
    match command {
        WebhookCommand::Create(args) => change::create(context, args).await,
        WebhookCommand::List(args) => list(context, args).await,
        WebhookCommand::Show(args) => show(context, args).await,
        WebhookCommand::Change(args) => change::change(context, args).await,
        WebhookCommand::Pause(args) => change::set_status(context, args, "paused").await,
        WebhookCommand::Resume(args) => change::set_status(context, args, "active").await,
        WebhookCommand::Delete(args) => change::delete(context, args).await,
        WebhookCommand::RotateSecret(args) => change::rotate(context, args).await,
        WebhookCommand::Test(args) => delivery::test(context, args).await,
        WebhookCommand::Deliveries(args) => delivery::deliveries(context, args).await,
        WebhookCommand::Replay(args) => delivery::replay(context, args).await,
        WebhookCommand::Listen(args) => listen::listen(context, *args).await,
    }
}

async fn list(context: &Context, args: ScopeArgs) -> Result<CommandOutput, CliError> {
    let webhooks = args.api(context).await?;
    Ok(display::webhooks(&webhooks.list().await?))
}

async fn show(context: &Context, args: WebhookArgs) -> Result<CommandOutput, CliError> {
    let SelectedWebhook { webhooks, id } = args.api(context).await?;
    let webhook = webhooks.read(&id).await?;
    Ok(display::webhook(&webhook))
}
