//! Keeps the policies that were parsed from context extensions, so that equal extensions of several routes are parsed once.

use super::{Policy, PolicyError};
use arc_swap::ArcSwap;
use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

/// The largest number of cached policies; others are parsed for each check. Context extensions are part of Envoy's configuration,
/// so a sidecar needs at most as many policies as Envoy has routes.
const MAX_POLICIES: usize = 1024;

/// The name and the value of a context extension.
type Extension = (Box<[u8]>, Box<[u8]>);

/// Context extensions with distinct names, and their policy.
type Parsed = (Vec<Extension>, Arc<Policy>);

#[derive(Debug, Default)]
pub struct PolicyCache {
    /// The policy of routes without context extensions.
    default: Arc<Policy>,
    /// By the hash of the extensions. Of several policies with the same hash, only the last one is cached.
    policies: ArcSwap<HashMap<u64, Parsed>>,
    hasher: RandomState,
}

impl PolicyCache {
    /// Returns the policy that the context extensions of a route describe. The caller passes each name once.
    pub fn policy<'a>(
        &self,
        extensions: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) -> Result<Arc<Policy>, PolicyError> {
        if extensions.clone().next().is_none() {
            return Ok(Arc::clone(&self.default));
        }
        let hash = self.hash(extensions.clone());
        let policies = self.policies.load();
        if let Some((_, policy)) = policies.get(&hash).filter(|(parsed, _)| are_equal(parsed, extensions.clone())) {
            return Ok(Arc::clone(policy));
        }
        let policy = Arc::new(Policy::from_extensions(extensions.clone())?);
        if policies.len() < MAX_POLICIES {
            let parsed: Vec<_> = extensions.map(|(name, value)| (name.into(), value.into())).collect();
            self.policies.rcu(|policies| {
                let mut policies = HashMap::clone(policies);
                policies.insert(hash, (parsed.clone(), Arc::clone(&policy)));
                policies
            });
        }
        Ok(policy)
    }

    /// A hash that does not depend on the order of the extensions, because Envoy sends a map in any order.
    fn hash<'a>(&self, extensions: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> u64 {
        extensions.fold(0, |hash, entry| hash ^ self.hasher.hash_one(entry))
    }
}

/// Whether these are the same extensions in any order.
fn are_equal<'a>(parsed: &[Extension], mut extensions: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> bool {
    let mut count = 0;
    let all_are_known = extensions.all(|(name, value)| {
        count += 1;
        parsed.iter().any(|(known, known_value)| **known == *name && **known_value == *value)
    });
    all_are_known && count == parsed.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extensions<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone {
        pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()))
    }

    #[test]
    fn equal_extensions_are_parsed_once() {
        let cache = PolicyCache::default();
        let reader = [("require_roles", "reader"), ("forward_token", "true")];
        let reversed = [reader[1], reader[0]];
        let policy = cache.policy(extensions(&reader)).unwrap();
        assert_eq!(*policy, Policy::from_extensions(extensions(&reader)).unwrap());
        assert!(Arc::ptr_eq(&policy, &cache.policy(extensions(&reversed)).unwrap()));
        let swapped = [("forward_token", "reader"), ("require_roles", "true")];
        assert!(cache.policy(extensions(&swapped)).is_err());
        assert_eq!(*cache.policy(extensions(&[])).unwrap(), Policy::default());
    }

    #[test]
    fn number_of_policies_is_bounded() {
        let cache = PolicyCache::default();
        for number in 0..=MAX_POLICIES {
            let role = format!("role-{number}");
            let policy = cache.policy(extensions(&[("require_roles", &role)])).unwrap();
            assert_eq!(policy.require_roles[0].as_str(), role);
        }
        assert_eq!(cache.policies.load().len(), MAX_POLICIES);
    }
}
