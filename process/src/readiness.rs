//! Readiness of the process: a guard represents each pending condition, and the process is ready when all guards are
//! dropped.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

/// The conditions that must be met before the process is ready.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<BTreeSet<String>>>);

/// A pending condition. The process is not ready while this guard exists.
#[derive(Debug)]
#[must_use = "dropping the guard marks the condition as met"]
pub struct ReadinessGuard {
    readiness: Readiness,
    condition: String,
}

impl Readiness {
    /// Adds a condition. The process is not ready until the returned guard is dropped.
    pub fn register(&self, condition: impl Into<String>) -> ReadinessGuard {
        let condition = condition.into();
        self.lock().insert(condition.clone());
        ReadinessGuard { readiness: self.clone(), condition }
    }

    /// The pending conditions, sorted. Empty if the process is ready.
    pub fn pending(&self) -> Vec<String> {
        self.lock().iter().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ReadinessGuard {
    fn drop(&mut self) {
        self.readiness.lock().remove(&self.condition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_ready_when_all_guards_are_dropped() {
        let readiness = Readiness::default();
        let first = readiness.register("database");
        let second = readiness.register("listener");
        drop(first);
        assert_eq!(readiness.pending(), ["listener"]);
        drop(second);
        assert!(readiness.pending().is_empty());
    }
}
