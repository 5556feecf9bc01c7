//! `countersign apply` and `countersign export`: services as files describe them.

mod execute;
mod existing;
mod export;
mod files;
mod secret_target;
mod show;

pub use export::{ExportArgs, HELP as EXPORT_HELP, export};

use super::{
    args::ManagerArgs,
    context::Context,
    error::{Cause, CliError},
    output::{CommandOutput, OutputFormat},
};
use clap::{Args, ValueHint};
use countersign_client::declared::{Options, file, plan};
use execute::execute;
use files::Files;
use std::path::PathBuf;

/// The help text of `apply` after its options.
pub const HELP: &str = "The command reads what exists, prints what it changes, and changes it. What they do not declare stays as it is, \
    unless --prune is set. A second run changes nothing. After an error, the other changes are made, and the exit code is not 0: run the command again.\n\n\
    Examples:\n  $ countersign apply -f shop.yaml --dry-run\n  $ countersign apply -f services/ --prune\n  \
    $ countersign export --service SERVICE | countersign apply -f -\n\n\
    Next: countersign export, which writes such a file";

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct ApplyArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// Files, directories whose files end with .yaml or .yml, or `-` for standard input; can be repeated
    #[arg(short, long = "file", value_name = "PATH", value_hint = ValueHint::AnyPath, num_args = 1..,
        required_unless_present = "print_schema")]
    files: Vec<PathBuf>,
    /// Print the changes and make none
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run, exit with 10 if something would change
    #[arg(long, requires = "dry_run")]
    exit_code: bool,
    /// Delete roles, assignments, webhooks and API keys that have the `managedBy` of the files and are not in them
    #[arg(long)]
    prune: bool,
    /// Like --prune, and delete services too, with all that belongs to them
    #[arg(long)]
    prune_services: bool,
    /// Change what has another `managedBy`, and give it that of the files
    #[arg(long)]
    take_ownership: bool,
    /// Make other secrets of API keys and webhooks in place of those whose files do not exist
    #[arg(long)]
    replace_missing_secrets: bool,
    /// Print the JSON schema of the files
    #[arg(long, conflicts_with_all = ["files", "dry_run"])]
    print_schema: bool,
}

/// Runs `apply`.
pub async fn run(context: &Context, args: ApplyArgs) -> Result<CommandOutput, CliError> {
    if args.print_schema {
        return Ok(CommandOutput::raw(file::SCHEMA.into()));
    }
    let prunes = args.prune || args.prune_services;
    let Files { services, managed_by } = files::read(&args.files, prunes)?;
    let access = existing::Access::open(context, &args.manager, &services).await?;
    let existing = access.read(&services, prunes).await?;
    let options = Options {
        secret_state: &secret_target::state,
        replaces_missing: args.replace_missing_secrets,
        prunes,
        prunes_services: args.prune_services,
        takes_ownership: args.take_ownership,
    };
    let plan = plan(&services, &managed_by, &existing, options)
        .map_err(|error| CliError::failed(error.problem).with_next(error.next))?;
    for warning in &plan.warnings {
        context.messages.warning(warning);
    }
    let json = show::json(&plan, &[]);
    let output = CommandOutput::new(show::text(&plan), json);
    if args.dry_run {
        let differs = args.exit_code && !plan.is_empty();
        let error = differs.then(|| Cause::WouldChange { count: plan.len() }.into());
        return Ok(output.with_note("Nothing was changed.").with_error(error));
    }
    if plan.is_empty() {
        return Ok(output);
    }
    // Who interrupts the command knows what it was doing.
    if context.format() == OutputFormat::Text {
        output.print(OutputFormat::Text)?;
    }
    let results = execute(context, &access, &plan).await;
    let failed = results.iter().filter(|result| result.is_err()).count();
    let summary = format!("{} of {} changes were made.", results.len() - failed, results.len());
    let error = (failed > 0).then(|| {
        let problems: Vec<_> = results.iter().filter_map(|result| result.as_ref().err().map(String::as_str)).collect();
        let text = format!("{summary}\n{}", problems.join("\n"));
        CliError::failed(text).with_next("correct the cause, and run the command again")
    });
    let note = if error.is_some() { String::new() } else { summary };
    Ok(CommandOutput::default().with_json(show::json(&plan, &results)).with_note(note).with_error(error))
}
