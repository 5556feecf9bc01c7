//! Confirmation of actions that cannot be undone.

use super::{error::CliError, messages::Messages};
use clap::Args;
use std::io::{self, Write};

/// The option that skips the confirmation.
#[derive(Args)]
pub struct ConfirmArgs {
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

impl ConfirmArgs {
    /// Asks for confirmation of `action`, unless `--yes` is set. Without a terminal and without `--yes`, returns an error.
    ///
    /// `action` begins with a verb, such as "Delete the role reader"; `consequence` is a sentence.
    pub fn confirm(&self, messages: &Messages, action: &str, consequence: &str) -> Result<(), CliError> {
        if self.yes {
            return Ok(());
        }
        if !messages.can_prompt() {
            let text = format!("confirmation required: {action}? {consequence}");
            return Err(CliError::usage(text).with_next("add --yes to confirm; nothing was changed"));
        }
        let mut answer = String::new();
        let prompted = write!(io::stderr(), "{action}? {consequence} [y/N] ").and_then(|()| io::stderr().flush());
        let read = prompted.and_then(|()| io::stdin().read_line(&mut answer));
        read.map_err(|error| CliError::failed(format!("confirmation: {error}")))?;
        if ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()) {
            return Ok(());
        }
        Err(CliError::failed("not confirmed; nothing was changed"))
    }
}
