//! The policies of the context extensions that routes have, so that each is parsed once.

use super::{Policy, RuleError};
use arc_swap::ArcSwap;
use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

/// The largest number of cached policies. Context extensions are part of Envoy's configuration, so a sidecar gets at most as many
/// different ones as Envoy has routes.
const MAX_POLICIES: usize = 1024;

/// Context extensions and their policy.
type Parsed = (HashMap<String, String>, Arc<Policy>);

/// The policies of context extensions.
#[derive(Debug, Default)]
pub struct PolicyCache {
    /// The policy of routes without context extensions.
    default: Arc<Policy>,
    /// By hash. Further extensions with the same hash are not cached.
    policies: ArcSwap<HashMap<u64, Parsed>>,
    hasher: RandomState,
}

impl PolicyCache {
    /// Returns the policy that the context extensions of a route describe.
    pub fn policy(&self, extensions: &HashMap<String, String>) -> Result<Arc<Policy>, RuleError> {
        if extensions.is_empty() {
            return Ok(Arc::clone(&self.default));
        }
        let hash = self.hash(extensions);
        let policies = self.policies.load();
        if let Some((_, policy)) = policies.get(&hash).filter(|(parsed, _)| parsed == extensions) {
            return Ok(Arc::clone(policy));
        }
        let policy = Arc::new(Policy::from_extensions(extensions)?);
        if policies.len() < MAX_POLICIES {
            self.policies.rcu(|policies| {
                let mut policies = HashMap::clone(policies);
                policies.insert(hash, (extensions.clone(), Arc::clone(&policy)));
                policies
            });
        }
        Ok(policy)
    }

    /// A hash that does not depend on the order, which differs between equal maps.
    fn hash(&self, extensions: &HashMap<String, String>) -> u64 {
        extensions.iter().fold(0, |hash, entry| hash ^ self.hasher.hash_one(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extensions(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn equal_extensions_are_parsed_once() {
        let cache = PolicyCache::default();
        let reader = [("require_roles", "reader"), ("forward_token", "true")];
        let reversed = [reader[1], reader[0]];
        let policy = cache.policy(&extensions(&reader)).unwrap();
        assert_eq!(*policy, Policy::from_extensions(&extensions(&reader)).unwrap());
        assert!(Arc::ptr_eq(&policy, &cache.policy(&extensions(&reversed)).unwrap()));
        let swapped = extensions(&[("forward_token", "reader"), ("require_roles", "true")]);
        assert!(cache.policy(&swapped).is_err());
        assert_eq!(*cache.policy(&extensions(&[])).unwrap(), Policy::default());
    }

    #[test]
    fn number_of_policies_is_bounded() {
        let cache = PolicyCache::default();
        for number in 0..=MAX_POLICIES {
            let role = format!("role-{number}");
            let policy = cache.policy(&extensions(&[("require_roles", &role)])).unwrap();
            assert_eq!(policy.require_roles[0].as_str(), role);
        }
        assert_eq!(cache.policies.load().len(), MAX_POLICIES);
    }
}
