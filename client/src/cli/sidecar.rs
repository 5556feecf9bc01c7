//! `countersign sidecar`: the sidecars that decide about requests to a service.

use super::{
    enforcement::{Wait, parse_wait},
    prelude::{CliError, CommandOutput, Context, ManagerArgs, Receipt, Rows, or_dash},
};
use clap::{Args, Subcommand};
use countersign_client::api::all_pages;
use serde_json::json;
use std::time::Duration;

#[derive(Subcommand)]
pub enum SidecarCommand {
    /// List the sidecars of the service that may decide about requests, and the revision of the data with which each decides
    #[command(
        after_help = "A sidecar is silent if its stream has ended or its control plane is gone. It may still decide with \
        the data of its revision, until REFUSES BY at the latest; then it refuses all requests. A sidecar without a \
        revision has not reported one yet, or its control plane was restarted a moment ago.\n\n\
        Examples:\n  $ countersign sidecar list\n  $ countersign sidecar list -o json\n\n\
        Next: countersign role revoke ROLE AGENT --wait, which waits until all of them decide with the change"
    )]
    List(ManagerArgs),
    /// Wait until every sidecar of the service decides with an earlier change
    #[command(
        after_help = "The exit code is 1 if --timeout passes first. The command changes nothing, so it can be repeated.\n\n\
        Examples:\n  $ countersign sidecar wait 1795522090023000\n  \
        $ countersign sidecar wait 1795522090023000 --timeout 10m -o json\n\n\
        Next: countersign sidecar list"
    )]
    Wait(WaitForSidecarsArgs),
}

/// What to wait for.
#[derive(Args)]
pub struct WaitForSidecarsArgs {
    /// The `revision` in the answer to the change
    #[arg(value_parser = parse_revision)]
    revision: u64,
    /// Wait at most this long: 1s to 1h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_wait)]
    timeout: Duration,
    #[command(flatten)]
    manager: ManagerArgs,
}

fn parse_revision(text: &str) -> Result<u64, &'static str> {
    let revision = text.parse().ok().filter(|revision| *revision > 0);
    revision.ok_or("must be a revision: a whole number such as 1795522090023000")
}

pub async fn run(context: &Context, command: SidecarCommand) -> Result<CommandOutput, CliError> {
    match command {
        SidecarCommand::List(manager) => list(context, manager).await,
        SidecarCommand::Wait(args) => wait(context, args).await,
    }
}

async fn wait(context: &Context, args: WaitForSidecarsArgs) -> Result<CommandOutput, CliError> {
    let WaitForSidecarsArgs { revision, timeout: at_most, manager } = args;
    let service = manager.service_api(context).await?;
    // The errors of a `Receipt` begin with "the change is done". This command has made no change, so it first asks once without
    // waiting, and reports an error of this request as it is. The API answers `CONFLICT` if no change has this revision yet.
    service.enforcement(revision, Duration::ZERO).await.map_err(|error| {
        let hint = || "the answer to a change has its `revision`, also with -o json".to_owned();
        context.with_context_hint(CliError::from(error).with_next_for("CONFLICT", hint))
    })?;
    let wait = Wait { service, at_most };
    let receipt = Receipt::of(context, Some(wait), revision).await;
    let text = receipt.details([], "the API decides with the change");
    Ok(receipt.output(text, json!({}), None))
}

async fn list(context: &Context, manager: ManagerArgs) -> Result<CommandOutput, CliError> {
    let service = manager.service_api(context).await?;
    let sidecars = all_pages(async |start| service.sidecars(&start).await).await?;
    let rows = Rows::of(&sidecars)
        .fixed("INSTANCE", |sidecar| sidecar.instance.clone())
        .fixed("STATUS", |sidecar| sidecar.status.clone())
        .fixed("ADDRESS", |sidecar| if sidecar.is_several() { "several" } else { &sidecar.address }.to_owned())
        .text("RELEASE", |sidecar| or_dash(sidecar.release.as_ref()))
        .fixed("REVISION", |sidecar| or_dash(sidecar.revision.map(|revision| revision.to_string()).as_ref()))
        .time("LAST CONFIRMED", |sidecar| or_dash(sidecar.last_confirmed_at.as_ref()))
        .time("REFUSES BY", |sidecar| or_dash(sidecar.refuses_by.as_ref()));
    Ok(CommandOutput::list(rows))
}
