//! The turn of the audit chains with changes that are not confirmed.

use countersign_identity::Timestamp;
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The turn of the audit chains with changes that are not confirmed.
#[derive(Default)]
pub(in crate::operations) struct ConfirmationTurn(Mutex<Turn>);

/// Where the next run continues.
#[derive(Default, Clone)]
pub(in crate::operations) struct Turn {
    /// The last chain that was looked at.
    pub after: String,
    /// When the oldest change was made that is not confirmed, and its chain, among the chains since the first.
    pub oldest: Option<(Timestamp, String)>,
    /// When such a change was last logged, since boot.
    pub logged_at: Option<Duration>,
}

impl ConfirmationTurn {
    pub(in crate::operations) fn lock(&self) -> MutexGuard<'_, Turn> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
