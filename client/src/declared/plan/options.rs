//! What a plan may contain, and why there is none.

use std::path::Path;

/// Whether the file of a secret exists. The caller looks, because the plan opens no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretState {
    /// The file exists.
    Kept,
    /// A run was interrupted after it began to make the secret.
    Interrupted,
    /// There is no file.
    Missing,
    /// There can be no file: the path is that of a directory, or its directory does not exist.
    Impossible,
}

/// Why there is no plan, and what the user can do.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct PlanError {
    /// The problem.
    pub problem: String,
    /// The next step.
    pub next: &'static str,
}

impl PlanError {
    pub(super) const fn new(problem: String, next: &'static str) -> Self {
        Self { problem, next }
    }
}

/// What a plan may contain.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct Options<'a> {
    /// Looks for the file of a secret.
    pub secret_state: &'a dyn Fn(&Path) -> SecretState,
    /// Whether secrets without a file are made again.
    pub replaces_missing: bool,
    /// Whether roles, assignments, webhooks and keys that have a name of the files, and are not in the files, are deleted.
    pub prunes: bool,
    /// Whether also such services are deleted, with all that belongs to them.
    pub prunes_services: bool,
    /// Whether what has the name of other files gets that of these.
    pub takes_ownership: bool,
}

impl Options<'_> {
    /// Refuses to change what other files state.
    pub(super) fn check_owner(self, what: &str, existing: Option<&str>, wanted: Option<&str>) -> Result<(), PlanError> {
        match (existing, wanted) {
            (Some(existing), Some(wanted)) if existing != wanted && !self.takes_ownership => {
                let next = "delete it from these files, or pass --take-ownership";
                Err(PlanError::new(
                    format!("{what} has managedBy {existing}, and the file has managedBy {wanted}"),
                    next,
                ))
            }
            _ => Ok(()),
        }
    }

    /// Refuses to change what other files state from a file without `managedBy`, which takes no ownership.
    pub(super) fn check_change(
        self,
        what: &str,
        existing: Option<&str>,
        wanted: Option<&str>,
    ) -> Result<(), PlanError> {
        match (existing, wanted) {
            (Some(existing), None) if !self.takes_ownership => {
                let next = "set `managedBy` in the file, or pass --take-ownership";
                Err(PlanError::new(format!("{what} has managedBy {existing}, and the file has none"), next))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a file for a new secret that would replace another file.
    pub(super) fn check_new_secret(self, what: &str, file: Option<&Path>) -> Result<(), PlanError> {
        let Some(file) = file else { return Ok(()) };
        let path = file.display();
        match (self.secret_state)(file) {
            SecretState::Interrupted | SecretState::Missing => Ok(()),
            SecretState::Kept => {
                let next = "name another secretFile, or delete the file if nothing uses it";
                Err(PlanError::new(
                    format!("{what} does not exist yet, and its secret would replace the file {path}"),
                    next,
                ))
            }
            SecretState::Impossible => Err(no_file(what, file)),
        }
    }

    /// Whether the secret of something that exists must be made again.
    pub(super) fn must_replace_secret(self, what: &str, file: Option<&Path>) -> Result<bool, PlanError> {
        let Some(file) = file else { return Ok(false) };
        match (self.secret_state)(file) {
            SecretState::Kept => Ok(false),
            SecretState::Interrupted => Ok(true),
            SecretState::Impossible => Err(no_file(what, file)),
            SecretState::Missing if self.replaces_missing => Ok(true),
            SecretState::Missing => {
                let file = file.display();
                let next =
                    "put the file in its place, delete `secretFile`, or pass --replace-missing-secrets to make another";
                Err(PlanError::new(format!("{what} exists, but not the file of its secret, {file}"), next))
            }
        }
    }
}

fn no_file(what: &str, file: &Path) -> PlanError {
    let next = "create the directory, or name another secretFile";
    PlanError::new(
        format!("{what}: {} cannot be a file: it is a directory, or its directory does not exist", file.display()),
        next,
    )
}
