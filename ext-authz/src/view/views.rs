//! The latest view that each API key has received. Checks read it without a lock.

use super::View;
use arc_swap::ArcSwap;
use countersign_identity::{Reason, ServiceId};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// A view counts as current until another view of its service is confirmed more than this time later.
const MAX_CONFIRMATION_LAG: Duration = Duration::from_secs(10);

/// The index of an API key in the setting `sync.keys`. Each API key has a view of its own, even if two belong to one service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApiKeyIndex(pub usize);

/// The views of each service: several while its API keys are rotated.
type ViewsByService = HashMap<ServiceId, Vec<(ApiKeyIndex, Arc<View>)>>;

#[derive(Debug)]
pub struct Views {
    key_count: usize,
    default_service: Option<ServiceId>,
    by_service: ArcSwap<ViewsByService>,
    /// The API keys that an address of the control plane refused when they were last used. This affects readiness.
    refused_keys: Mutex<BTreeSet<ApiKeyIndex>>,
    /// The API keys that no address of the control plane knew when they were last used. Their copies on disk are not used.
    unknown_keys: Mutex<BTreeSet<ApiKeyIndex>>,
}

/// When the view that decides for a service was confirmed, and whether the control plane still accepts an API key of the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewConfirmation {
    pub service: ServiceId,
    pub keys: Vec<ApiKeyIndex>,
    /// Whether the control plane refuses all API keys of the service.
    pub is_refused: bool,
    /// When the view was last confirmed, since boot.
    pub confirmed_at: Option<Duration>,
    /// The age of the confirmation at which checks are denied.
    pub max_staleness: Duration,
}

impl Views {
    /// Begins without views. `default_service` is the service of routes that name none.
    pub fn new(key_count: usize, default_service: Option<ServiceId>) -> Self {
        Self {
            key_count,
            default_service,
            by_service: ArcSwap::default(),
            refused_keys: Mutex::default(),
            unknown_keys: Mutex::default(),
        }
    }

    /// Replaces the view of an API key. The key no longer counts as refused or unknown.
    pub fn publish(&self, key: ApiKeyIndex, view: &Arc<View>) {
        self.by_service.rcu(|by_service| {
            let mut by_service = HashMap::clone(by_service);
            let views = by_service.entry(view.service()).or_default();
            views.retain(|(other, _)| *other != key);
            views.push((key, Arc::clone(view)));
            by_service
        });
        self.refused_keys().remove(&key);
        self.unknown_keys().remove(&key);
    }

    /// Records that no address of the control plane knows an API key. If its view comes from a copy on disk, withdraws and returns it.
    pub fn mark_key_unknown(&self, key: ApiKeyIndex) -> Option<Arc<View>> {
        self.unknown_keys().insert(key);
        let restored = self.of_key(key).filter(|view| view.is_restored())?;
        self.by_service.rcu(|by_service| {
            let mut by_service = HashMap::clone(by_service);
            for views in by_service.values_mut() {
                views.retain(|(other, view)| *other != key || !view.is_restored());
            }
            by_service.retain(|_, views| !views.is_empty());
            by_service
        });
        Some(restored)
    }

    /// Whether no address of the control plane knew an API key when it was last used.
    pub fn is_key_unknown(&self, key: ApiKeyIndex) -> bool {
        self.unknown_keys().contains(&key)
    }

    /// The latest view of an API key; `None` if it has none, or if the view was withdrawn.
    pub fn of_key(&self, key: ApiKeyIndex) -> Option<Arc<View>> {
        let by_service = self.by_service.load();
        let view = by_service.values().flatten().find(|(other, _)| *other == key);
        view.map(|(_, view)| Arc::clone(view))
    }

    /// One view of each service, not always the newest. That suffices for metadata, which depends on the settings only.
    pub fn of_services(&self) -> Vec<Arc<View>> {
        self.by_service.load().values().filter_map(|views| views.first()).map(|(_, view)| Arc::clone(view)).collect()
    }

    pub fn mark_key_refused(&self, key: ApiKeyIndex) {
        self.refused_keys().insert(key);
    }

    /// The confirmations of the views of all services, in the order of the API keys.
    pub fn confirmations(&self) -> Vec<ViewConfirmation> {
        let (by_service, refused_keys) = (self.by_service.load(), self.refused_keys());
        let confirmation = |(service, views): (&ServiceId, &Vec<(ApiKeyIndex, Arc<View>)>)| {
            let view = newest_current_view(views)?;
            let mut keys: Vec<_> = views.iter().map(|(key, _)| *key).collect();
            keys.sort_unstable();
            let is_refused = keys.iter().all(|key| refused_keys.contains(key));
            let (confirmed_at, max_staleness) = (view.confirmed_at(), view.max_staleness());
            Some(ViewConfirmation { service: *service, keys, is_refused, confirmed_at, max_staleness })
        };
        let mut confirmations: Vec<_> = by_service.iter().filter_map(confirmation).collect();
        confirmations.sort_unstable_by(|a, b| a.keys.cmp(&b.keys));
        confirmations
    }

    /// Whether some service has a confirmed view, and an API key that is not refused.
    pub fn serves_any(&self) -> bool {
        self.confirmations().iter().any(|it| it.confirmed_at.is_some() && !it.is_refused)
    }

    fn unknown_keys(&self) -> MutexGuard<'_, BTreeSet<ApiKeyIndex>> {
        self.unknown_keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused_keys(&self) -> MutexGuard<'_, BTreeSet<ApiKeyIndex>> {
        self.refused_keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The view of the service that a route names, or else of the default service, or else of the only service.
    ///
    /// Without such a view, the error is `ViewMissing` until all API keys have views, because a missing view may be of this
    /// service. Once all API keys have views, the error is `ServiceUnknown`.
    pub fn resolve(&self, requested: Option<ServiceId>) -> Result<Arc<View>, Reason> {
        let by_service = self.by_service.load();
        let all_keys_have_views = by_service.values().map(Vec::len).sum::<usize>() >= self.key_count;
        let service = match requested.or(self.default_service) {
            Some(service) => service,
            None if by_service.len() == 1 && all_keys_have_views => {
                *by_service.keys().next().ok_or(Reason::Internal)?
            }
            None if all_keys_have_views => return Err(Reason::ServiceUnknown),
            None => return Err(Reason::ViewMissing),
        };
        let error = if all_keys_have_views { Reason::ServiceUnknown } else { Reason::ViewMissing };
        by_service.get(&service).and_then(|views| newest_current_view(views)).ok_or(error)
    }
}

/// The current view with the highest revision. While a service has several API keys, the view that was confirmed slightly earlier
/// may be newer. But the view of a lost stream must not win, so it is ignored after [`MAX_CONFIRMATION_LAG`].
fn newest_current_view(views: &[(ApiKeyIndex, Arc<View>)]) -> Option<Arc<View>> {
    let latest_confirmation = views.iter().filter_map(|(_, view)| view.confirmed_at()).max();
    // An unconfirmed view (`None`) is current only while no view of the service is confirmed.
    let is_current = |view: &View| view.confirmed_at().map(|at| at + MAX_CONFIRMATION_LAG) >= latest_confirmation;
    let newest = views.iter().filter(|(_, view)| is_current(view)).max_by_key(|(_, view)| view.revision());
    newest.map(|(_, view)| Arc::clone(view))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixtures::SERVICE_ID,
        view::tests::{confirmed, header, view as unconfirmed},
    };

    fn view(service: ServiceId, revision: i64, confirmed_at: u64) -> Arc<View> {
        let mut header = header();
        header.settings.service = service;
        Arc::new(confirmed(&unconfirmed(revision, header), Duration::from_secs(confirmed_at)))
    }

    #[test]
    fn resolve_returns_view_missing_until_all_keys_have_views() {
        let other = ServiceId::from_bits(99);
        let views = Views::new(2, None);
        assert_eq!(views.resolve(Some(other)).unwrap_err(), Reason::ViewMissing);
        assert_eq!(views.resolve(None).unwrap_err(), Reason::ViewMissing);
        views.publish(ApiKeyIndex(0), &view(SERVICE_ID, 10, 1));
        assert_eq!(views.resolve(Some(SERVICE_ID)).unwrap().service(), SERVICE_ID);
        assert_eq!(views.resolve(Some(other)).unwrap_err(), Reason::ViewMissing);
        views.publish(ApiKeyIndex(1), &view(other, 10, 1));
        assert_eq!(views.resolve(Some(ServiceId::from_bits(7))).unwrap_err(), Reason::ServiceUnknown);
        assert_eq!(views.resolve(None).unwrap_err(), Reason::ServiceUnknown);
    }

    #[test]
    fn confirmations_are_those_of_the_views_that_decide() {
        let other = ServiceId::from_bits(99);
        let views = Views::new(3, None);
        views.publish(ApiKeyIndex(2), &view(other, 10, 3));
        views.publish(ApiKeyIndex(1), &view(SERVICE_ID, 10, 5));
        views.publish(ApiKeyIndex(0), &view(SERVICE_ID, 10, 20));
        views.mark_key_refused(ApiKeyIndex(1));
        let confirmations = || -> Vec<_> {
            let all = views.confirmations().into_iter();
            all.map(|it| (it.service, it.confirmed_at.map(|at| at.as_secs()), it.is_refused)).collect()
        };
        assert_eq!(confirmations(), [(SERVICE_ID, Some(20), false), (other, Some(3), false)]);
        views.mark_key_refused(ApiKeyIndex(0));
        assert_eq!(confirmations(), [(SERVICE_ID, Some(20), true), (other, Some(3), false)]);
        views.publish(ApiKeyIndex(1), &view(SERVICE_ID, 10, 21));
        assert_eq!(confirmations()[0], (SERVICE_ID, Some(21), false));
    }

    #[test]
    fn resolve_returns_the_newest_current_view_of_a_service() {
        let views = Views::new(2, None);
        let resolved_revision = |views: &Views| views.resolve(None).unwrap().revision().number();
        views.publish(ApiKeyIndex(0), &view(SERVICE_ID, 10, 5));
        views.publish(ApiKeyIndex(1), &view(SERVICE_ID, 11, 4));
        assert_eq!(
            resolved_revision(&views),
            11,
            "the view with the higher revision was confirmed only slightly earlier"
        );
        views.publish(ApiKeyIndex(0), &view(SERVICE_ID, 10, 15));
        assert_eq!(resolved_revision(&views), 10, "the confirmation of the other view is too old");
        views.publish(ApiKeyIndex(1), &Arc::new(unconfirmed(12, header())));
        assert_eq!(resolved_revision(&views), 10, "the other view was never confirmed");
    }
}
