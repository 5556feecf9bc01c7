//! `countersign apply` changes services to what YAML files declare, and `countersign export` writes such files.
//!
//! `format` parses the files, `existing` reads what exists, `plan` compares both, and `execute` makes the changes.

mod execute;
mod existing;
mod export;
mod files;
mod format;
mod kubernetes;
mod plan;
mod secret_target;
mod show;

pub use export::{HELP as EXPORT_HELP, export};
pub use format::KeyScope;

use super::prelude::{Cause, CliError, CommandOutput, Context, ManagerArgs, OutputFormat};
use clap::{Args, ValueHint};
use execute::execute;
use files::Files;
use kubernetes::{Kubernetes, SecretEntries};
use plan::{PlanArgs, plan};
use std::path::PathBuf;

pub const HELP: &str = "The command reads what exists, prints what it changes, and changes it. What the files do not declare stays \
    as it is, unless --prune is set. A second run changes nothing. After an error, the other changes are made, nothing is \
    deleted, and the exit code is not 0: run the command again.\n\n\
    Examples:\n  $ countersign apply -f shop.yaml --dry-run\n  $ countersign apply -f services/ --prune\n  \
    $ countersign export --service SERVICE | countersign apply -f -\n\n\
    Next: countersign export, which writes such a file";

#[derive(Args)]
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
    #[command(flatten)]
    plan: PlanArgs,
    /// The directory with `token`, `ca.crt` and `namespace` of the service account that writes the Secrets of `kubernetesSecret`
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath,
        default_value = "/var/run/secrets/kubernetes.io/serviceaccount")]
    service_account: PathBuf,
    /// Print the JSON schema of the files
    #[arg(long, conflicts_with_all = ["files", "dry_run"])]
    print_schema: bool,
}

pub async fn run(context: &Context, args: ApplyArgs) -> Result<CommandOutput, CliError> {
    if args.print_schema {
        return Ok(CommandOutput::raw(format::SCHEMA.into()));
    }
    let prunes = args.plan.prunes();
    let Files { services, managed_by } = files::read(&args.files, prunes)?;
    let access = existing::Access::open(context, &args.manager, &services).await?;
    let uses_kubernetes = services.iter().flat_map(|it| &it.keys).any(|key| key.kubernetes_secret.is_some());
    let kubernetes = uses_kubernetes.then(|| Kubernetes::of_pod(&args.service_account)).transpose()?;
    let secret_entries = match &kubernetes {
        Some(kubernetes) => kubernetes.entries(&services).await?,
        None => SecretEntries::default(),
    };
    let existing = access.read(&services, secret_entries, prunes).await?;
    let plan = plan(&services, &managed_by, &existing, &args.plan)?;
    for warning in &plan.warnings {
        context.messages.warning(warning);
    }
    let output = CommandOutput::new(show::text(&plan), show::json(&plan, &[]));
    if args.dry_run {
        let differs = args.exit_code && !plan.is_empty();
        let error = differs.then(|| Cause::WouldChange { count: plan.len() }.into());
        return Ok(output.with_note("Nothing was changed.").with_error(error));
    }
    if plan.is_empty() {
        return Ok(output);
    }
    // The plan is printed first, so that users who interrupt the command know what it was doing.
    if context.format() == OutputFormat::Text {
        output.print(OutputFormat::Text)?;
    }
    let results = execute(context, &access, kubernetes.as_ref(), &plan).await;
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
