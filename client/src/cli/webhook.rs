//! `countersign webhook`: where events are delivered to, and what became of them.
//!
//! Neighbours: `said` of this folder shows targets and deliveries, `delivery` is about single events, `listen` receives.

mod change;
mod delivery;
mod listen;
mod receiver;
mod shown;

use super::{
    Failure, Output, Said,
    context::{Context, Manager, person, webhook_id},
};
use clap::{Args, Subcommand};
use countersign_client::{Api, api::Targets};
use secrecy::SecretString;

#[derive(Subcommand)]
pub enum Webhook {
    /// Make a target, whose events are delivered by POST, and print its secret: it is shown this once
    #[command(
        after_help = "Requests are signed as Standard Webhooks has it: whoever has the secret can tell that they \
        are the control plane's. Libraries are at https://www.standardwebhooks.com; in Rust it is \
        countersign_client::webhook. What a shell makes with `>` can mostly be read by others: --out makes a file that \
        cannot.\n\nKinds of event: agent.authenticated, agent.authentication_failed, agent.role_assigned, \
        agent.role_revoked, trust.feedback_received.\n\nNext: countersign webhook test ID"
    )]
    Create(change::Create),
    /// List the targets of the service
    #[command(after_help = "Next: countersign webhook deliveries ID")]
    List(Whose),
    /// Show a target
    #[command(after_help = "Next: countersign webhook deliveries ID")]
    Show(One),
    /// Change where a target is, what it gets, or what it is for
    #[command(after_help = "What is on its way already goes to the new URL.\n\nNext: countersign webhook test ID")]
    Change(change::Change),
    /// Keep the events of a target until it is resumed
    #[command(after_help = "They are kept for as long as deliveries are, by default 30 days.\n\n\
        Next: countersign webhook resume ID")]
    Pause(One),
    /// Deliver again to a target that was paused, or disabled because everything failed
    #[command(after_help = "Next: countersign webhook deliveries ID")]
    Resume(One),
    /// Delete a target, with whatever was on its way there
    #[command(after_help = "Next: countersign webhook list")]
    Delete(One),
    /// Make another secret for a target and print it: it is shown this once
    #[command(after_help = "For a day, requests are signed with both: give the receiver the new one meanwhile.\n\n\
        Next: countersign webhook test ID")]
    RotateSecret(change::Rotate),
    /// Send an event of the kind webhook.test, and wait for what the receiver answers
    #[command(after_help = "It goes out once, whatever kinds the target wants, and also if it is paused. Exit code 1 \
        if it was not delivered.\n\nNext, if it was not: countersign webhook show ID")]
    Test(One),
    /// List what was and is to be delivered to a target, or show one event with what is sent
    #[command(after_help = "Newest first. An event is delivered at least once: it is tried again, for about three \
        days, until the receiver answers 2xx; then it is dead.\n\nNext: countersign webhook replay ID --event EVENT")]
    Deliveries(delivery::Deliveries),
    /// Deliver once more: an event, or what happened since an instant
    #[command(after_help = "The receiver sees the same webhook-id again.\n\n\
        Next: countersign webhook deliveries ID")]
    Replay(delivery::Replay),
    /// Receive events on this machine, verify their signatures and print them
    #[command(after_help = "The secret is that of a target that leads here: in --secret-file, or in \
        COUNTERSIGN_WEBHOOK_SECRET; several, separated by spaces or line ends, are all believed. With no secret it makes \
        a target for this machine, of the service or with --deployment, and deletes it at the end; a control plane \
        accepts that when started with --dev, or with loopback in webhooks.allowed_networks.\n\n\
        It ends by Ctrl-C, or after --count events; exit code 1 if one of them was not believed. With -o json each line \
        is an object, the first of which says where it listens.\n\n\
        Next, in another terminal: countersign webhook test ID")]
    Listen(Box<listen::Listen>),
}

/// Whose targets.
#[derive(Args)]
pub struct Whose {
    #[command(flatten)]
    manager: Manager,
    /// The targets that get the events of all services, instead of a service's; for administrators
    #[arg(long)]
    deployment: bool,
}

#[derive(Args)]
pub struct One {
    #[command(flatten)]
    whose: Whose,
    /// The target's id, as `countersign webhook list` shows it
    #[arg(value_name = "ID")]
    webhook: String,
}

/// The control plane, who asks it, and whose targets are meant.
struct Desk<'a> {
    api: Api,
    manager: &'a SecretString,
    targets: Targets,
}

impl Whose {
    fn desk(&self, context: &Context) -> Result<Desk<'_>, Failure> {
        let Self { manager, deployment } = self;
        let api = context.api(&manager.server)?;
        if *deployment {
            let manager = person(manager.human_token.as_ref())?;
            return Ok(Desk { api, manager, targets: Targets::Deployment });
        }
        let service = context.service(manager.service.clone())?;
        Ok(Desk { api, manager: manager.credential()?, targets: Targets::Service(service) })
    }
}

impl One {
    fn desk(&self, context: &Context) -> Result<(Desk<'_>, String), Failure> {
        Ok((self.whose.desk(context)?, webhook_id(self.webhook.clone())?))
    }
}

impl Desk<'_> {
    /// What has to stand in a command about these targets, beside their id.
    const fn flag(&self) -> &'static str {
        match self.targets {
            Targets::Service(_) => "",
            Targets::Deployment => " --deployment",
        }
    }
}

/// Does what was asked.
pub async fn run(context: &Context, command: Webhook, output: Output) -> Result<Said, Failure> {
    match command {
        Webhook::Create(asked) => change::create(context, asked).await,
        Webhook::List(whose) => list(context, whose).await,
        Webhook::Show(one) => show(context, one).await,
        Webhook::Change(asked) => change::change(context, asked).await,
        Webhook::Pause(one) => change::set_status(context, one, "paused").await,
        Webhook::Resume(one) => change::set_status(context, one, "active").await,
        Webhook::Delete(one) => change::delete(context, one).await,
        Webhook::RotateSecret(asked) => change::rotate(context, asked).await,
        Webhook::Test(one) => delivery::test(context, one).await,
        Webhook::Deliveries(asked) => delivery::deliveries(context, asked).await,
        Webhook::Replay(asked) => delivery::replay(context, asked).await,
        Webhook::Listen(asked) => listen::listen(context, *asked, output).await,
    }
}

async fn list(context: &Context, whose: Whose) -> Result<Said, Failure> {
    let desk = whose.desk(context)?;
    Ok(shown::targets(&desk.api.list_webhooks(desk.manager, &desk.targets).await?))
}

async fn show(context: &Context, one: One) -> Result<Said, Failure> {
    let (desk, webhook) = one.desk(context)?;
    let target = desk.api.read_webhook(desk.manager, &desk.targets, &webhook).await?;
    Ok(shown::target(&target))
}
