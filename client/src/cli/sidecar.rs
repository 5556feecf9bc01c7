//! `countersign sidecar`: the sidecars that decide about requests to a service.

use super::{
    CliError, CommandOutput,
    args::ManagerArgs,
    context::Context,
    service::all_pages,
    table::{Column, Table},
};
use clap::Subcommand;
use countersign_client::api::Sidecar;
use serde_json::json;

#[derive(Subcommand)]
pub enum SidecarCommand {
    /// List the sidecars of the service that may decide about requests, and the revision of the data with which each decides
    #[command(
        after_help = "A sidecar is silent if its stream has ended or its control plane is gone. A silent sidecar may \
        still decide, with the data of its revision, and refuses all requests at the time REFUSES BY at the latest. A \
        sidecar without a revision is too old to report it.\n\n\
        Examples:\n  $ countersign sidecar list\n  $ countersign sidecar list -o json\n\n\
        Next: countersign role revoke ROLE AGENT --wait, which waits until all of them decide with the change"
    )]
    List(ManagerArgs),
}

/// Runs the command.
pub async fn run(context: &Context, command: SidecarCommand) -> Result<CommandOutput, CliError> {
    match command {
        SidecarCommand::List(manager) => list(context, manager).await,
    }
}

async fn list(context: &Context, manager: ManagerArgs) -> Result<CommandOutput, CliError> {
    let (api, service) = (context.api(&manager.server)?, context.service(&manager.service)?);
    let credential = &manager.credential(context).await?;
    let sidecars = all_pages(async |start| api.sidecars(credential, &service, &start).await).await?;
    let header = [
        ("INSTANCE", Column::Fixed),
        ("STATUS", Column::Fixed),
        ("ADDRESS", Column::Fixed),
        ("RELEASE", Column::Text),
        ("REVISION", Column::Fixed),
        ("LAST CONFIRMED", Column::Time),
        ("REFUSES BY", Column::Time),
    ];
    Ok(CommandOutput::new(Table::new(header, sidecars.iter().map(row)), json!(sidecars)))
}

fn row(sidecar: &Sidecar) -> [String; 7] {
    let Sidecar {
        instance,
        key_id: _,
        address,
        release,
        protocol_version: _,
        status,
        revision,
        connected_at: _,
        last_confirmed_at,
        refuses_by,
    } = sidecar;
    let revision = revision.map(|revision| revision.to_string());
    let [release, revision, last_confirmed_at, refuses_by] =
        [release.clone(), revision, last_confirmed_at.clone(), refuses_by.clone()]
            .map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
    [instance.clone(), status.clone(), address.clone(), release, revision, last_confirmed_at, refuses_by]
}
