//! Readiness of the process. Each pending condition has a guard, and the process is ready while there are no guards. If a condition is
//! lost again, a new guard makes the process not ready.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The conditions that must be met for the process to be ready.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<PendingConditions>>);

/// The text of each pending condition, by the number of its guard: two guards may have the same text.
#[derive(Debug, Default)]
struct PendingConditions {
    texts: BTreeMap<u64, String>,
    last_guard: u64,
}

/// A pending condition. The process is not ready while this guard exists.
#[derive(Debug)]
#[must_use = "dropping the guard marks the condition as met"]
pub struct ReadinessGuard {
    readiness: Readiness,
    number: u64,
}

impl Readiness {
    /// Adds a condition. The process is not ready until the returned guard is dropped.
    pub fn register(&self, condition: impl Into<String>) -> ReadinessGuard {
        let mut pending = self.lock();
        pending.last_guard += 1;
        let number = pending.last_guard;
        pending.texts.insert(number, condition.into());
        ReadinessGuard { readiness: self.clone(), number }
    }

    /// The pending conditions, sorted. Empty if the process is ready.
    pub fn pending(&self) -> Vec<String> {
        let mut texts: Vec<_> = self.lock().texts.values().cloned().collect();
        texts.sort_unstable();
        texts
    }

    fn lock(&self) -> MutexGuard<'_, PendingConditions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadinessGuard {
    /// Replaces the text of the condition, for example because it contains how long the condition has been pending.
    pub fn set_condition(&self, condition: impl Into<String>) {
        self.readiness.lock().texts.insert(self.number, condition.into());
    }
}

impl Drop for ReadinessGuard {
    fn drop(&mut self) {
        self.readiness.lock().texts.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_ready_while_there_are_no_guards() {
        let readiness = Readiness::default();
        let first = readiness.register("listener");
        let second = readiness.register("database");
        assert_eq!(readiness.pending(), ["database", "listener"]);
        drop(first);
        second.set_condition("database for 3 s");
        assert_eq!(readiness.pending(), ["database for 3 s"]);
        drop(second);
        assert!(readiness.pending().is_empty());
        let again = readiness.register("database");
        assert_eq!(readiness.pending(), ["database"]);
        drop(again);
        assert!(readiness.pending().is_empty());
    }

    #[test]
    fn guards_with_the_same_text_are_separate() {
        let readiness = Readiness::default();
        let first = readiness.register("database");
        let second = readiness.register("database");
        drop(first);
        assert_eq!(readiness.pending(), ["database"]);
        drop(second);
    }
}
