//! Readiness: a guard for each thing that must be up first, ready when the last guard is dropped.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

/// What the process still waits for.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<BTreeSet<String>>>);

/// While this lives, the process is not ready.
#[derive(Debug)]
#[must_use = "dropping it at once says that the thing is ready"]
pub struct ReadinessGuard {
    readiness: Readiness,
    what: String,
}

impl Readiness {
    /// Not ready until the guard is dropped.
    pub fn register(&self, what: impl Into<String>) -> ReadinessGuard {
        let what = what.into();
        self.lock().insert(what.clone());
        ReadinessGuard { readiness: self.clone(), what }
    }

    /// What is still waited for; empty when ready.
    pub fn pending(&self) -> Vec<String> {
        self.lock().iter().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ReadinessGuard {
    fn drop(&mut self) {
        self.readiness.lock().remove(&self.what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_the_last_guard_is_dropped() {
        let readiness = Readiness::default();
        let first = readiness.register("database");
        let second = readiness.register("listener");
        drop(first);
        assert_eq!(readiness.pending(), ["listener"]);
        drop(second);
        assert!(readiness.pending().is_empty());
    }
}
