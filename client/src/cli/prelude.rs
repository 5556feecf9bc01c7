//! What most commands use: their context, their arguments, their output and errors.

pub use super::{
    args::{
        AgentArg, HumanArgs, HumanTokenArg, ManagerArgs, OwnedServiceArgs, RequiredAgentArg, ServerArgs, ServiceArg,
        ServiceKeyArg,
    },
    confirm::ConfirmArgs,
    context::Context,
    enforcement::{API_ALLOWS_AT_ONCE, API_REFUSES_AT_ONCE, Receipt, ReceiptArgs, WaitArgs},
    error::{Cause, CliError},
    output::{CommandOutput, OutputFormat, quoted, value_name, value_text},
    secret_file::SecretFile,
    table::{Rows, details, id_with_name, or_dash},
};
