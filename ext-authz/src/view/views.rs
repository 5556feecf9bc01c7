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

/// The number of an API key. The keys of `sync.keys` at the start have the numbers from 0, and each key that is added later has the next
/// number. A key that replaces another key of its service takes its number. Each API key has a view of its own, even if two belong to one
/// service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApiKeyIndex(pub usize);

/// The views of each service: several while its API keys are rotated.
type ViewsByService = HashMap<ServiceId, Vec<(ApiKeyIndex, Arc<View>)>>;

#[derive(Debug)]
pub struct Views {
    current: ArcSwap<CurrentViews>,
    /// The API keys that an address of the control plane refused when they were last used. This affects readiness.
    refused_keys: Mutex<BTreeSet<ApiKeyIndex>>,
    /// The API keys that no address of the control plane knew when they were last used. Their copies on disk are not used.
    unknown_keys: Mutex<BTreeSet<ApiKeyIndex>>,
}

#[derive(Debug, Clone)]
struct CurrentViews {
    /// The API keys in the order of `sync.keys`.
    keys: Vec<ApiKeyIndex>,
    /// The service of routes that name none: that of the settings, or else that of the first API key. Once it is known, it never changes.
    default_service: Option<ServiceId>,
    by_service: ViewsByService,
    /// The services whose last API key was removed from `sync.keys` since the start.
    removed_services: BTreeSet<ServiceId>,
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

impl CurrentViews {
    /// If no default service is known, and the first API key has a view, its service becomes the default.
    fn set_default_service(&mut self) {
        let of_first = self.keys.first().and_then(|first| self.view_of(*first));
        self.default_service = self.default_service.or(of_first.map(|view| view.service()));
    }

    fn view_of(&self, key: ApiKeyIndex) -> Option<&Arc<View>> {
        self.by_service.values().flatten().find(|(other, _)| *other == key).map(|(_, view)| view)
    }

    /// Removes views; a service without a view has no entry.
    fn retain(&mut self, mut is_kept: impl FnMut(ApiKeyIndex, &View) -> bool) {
        for views in self.by_service.values_mut() {
            views.retain(|(key, view)| is_kept(*key, view));
        }
        self.by_service.retain(|_, views| !views.is_empty());
    }
}

impl Views {
    /// Begins without views, with the API keys from 0 to `key_count`. `default_service` is the service of routes that name none; without
    /// it, that is the service of the first API key.
    pub fn new(key_count: usize, default_service: Option<ServiceId>) -> Self {
        let current = CurrentViews {
            keys: (0..key_count).map(ApiKeyIndex).collect(),
            default_service,
            by_service: HashMap::new(),
            removed_services: BTreeSet::new(),
        };
        Self { current: ArcSwap::from_pointee(current), refused_keys: Mutex::default(), unknown_keys: Mutex::default() }
    }

    /// Replaces the view of an API key. The key no longer counts as refused or unknown. Does nothing if the key was removed.
    pub fn publish(&self, key: ApiKeyIndex, view: &Arc<View>) {
        self.current.rcu(|current| {
            let mut next = CurrentViews::clone(current);
            if next.keys.contains(&key) {
                let views = next.by_service.entry(view.service()).or_default();
                views.retain(|(other, _)| *other != key);
                views.push((key, Arc::clone(view)));
                next.set_default_service();
            }
            next
        });
        self.refused_keys().remove(&key);
        self.unknown_keys().remove(&key);
    }

    /// Uses these API keys, in this order, from now on, and drops the views of all others. `services` are the services of these keys. A
    /// service whose view is dropped, and that is not among them, counts as removed.
    pub fn change_keys(&self, keys: &[ApiKeyIndex], services: &BTreeSet<ServiceId>) {
        self.current.rcu(|current| {
            let mut next = CurrentViews { keys: keys.to_vec(), ..CurrentViews::clone(current) };
            next.retain(|key, _| keys.contains(&key));
            next.removed_services.extend(current.by_service.keys());
            next.removed_services.retain(|it| !services.contains(it) && !next.by_service.contains_key(it));
            next.set_default_service();
            next
        });
        self.refused_keys().retain(|key| keys.contains(key));
        self.unknown_keys().retain(|key| keys.contains(key));
    }

    /// Whether an API key was not removed.
    pub fn uses_key(&self, key: ApiKeyIndex) -> bool {
        self.current.load().keys.contains(&key)
    }

    /// The services whose last API key was removed.
    pub fn removed_services(&self) -> Vec<ServiceId> {
        self.current.load().removed_services.iter().copied().collect()
    }

    /// The service of routes that name none, if it is known.
    pub fn default_service(&self) -> Option<ServiceId> {
        self.current.load().default_service
    }

    /// Records that no address of the control plane knows an API key. If its view comes from a copy on disk, withdraws and returns it.
    pub fn mark_key_unknown(&self, key: ApiKeyIndex) -> Option<Arc<View>> {
        self.unknown_keys().insert(key);
        let restored = self.of_key(key).filter(|view| view.is_restored())?;
        self.current.rcu(|current| {
            let mut next = CurrentViews::clone(current);
            next.retain(|other, view| other != key || !view.is_restored());
            next
        });
        Some(restored)
    }

    /// Whether no address of the control plane knew an API key when it was last used.
    pub fn is_key_unknown(&self, key: ApiKeyIndex) -> bool {
        self.unknown_keys().contains(&key)
    }

    /// Whether no address of the control plane knew any API key of a service when they were last used.
    pub fn is_unknown(&self, service: ServiceId) -> bool {
        let (current, unknown) = (self.current.load(), self.unknown_keys());
        current.by_service.get(&service).is_some_and(|views| views.iter().all(|(key, _)| unknown.contains(key)))
    }

    /// The latest view of an API key; `None` if it has none, or if the view was withdrawn.
    pub fn of_key(&self, key: ApiKeyIndex) -> Option<Arc<View>> {
        self.current.load().view_of(key).map(Arc::clone)
    }

    /// One view of each service, not always the newest. That suffices for metadata, which depends on the settings only.
    pub fn of_services(&self) -> Vec<Arc<View>> {
        let current = self.current.load();
        current.by_service.values().filter_map(|views| views.first()).map(|(_, view)| Arc::clone(view)).collect()
    }

    pub fn mark_key_refused(&self, key: ApiKeyIndex) {
        self.refused_keys().insert(key);
    }

    /// The confirmations of the views of all services, in the order of the API keys.
    pub fn confirmations(&self) -> Vec<ViewConfirmation> {
        let (current, refused_keys) = (self.current.load(), self.refused_keys());
        let confirmation = |(service, views): (&ServiceId, &Vec<(ApiKeyIndex, Arc<View>)>)| {
            let view = newest_current_view(views)?;
            let mut keys: Vec<_> = views.iter().map(|(key, _)| *key).collect();
            keys.sort_unstable();
            let is_refused = keys.iter().all(|key| refused_keys.contains(key));
            let (confirmed_at, max_staleness) = (view.confirmed_at(), view.max_staleness());
            Some(ViewConfirmation { service: *service, keys, is_refused, confirmed_at, max_staleness })
        };
        let mut confirmations: Vec<_> = current.by_service.iter().filter_map(confirmation).collect();
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

    /// The view of the service that a route names, or else of the default service.
    ///
    /// Without such a view, the error says why. While an API key has no view, the missing view may be of this service: then the error is
    /// `SyncKeyRefused` if the control plane knows none of these keys, and else `ViewMissing`.
    pub fn resolve(&self, requested: Option<ServiceId>) -> Result<Arc<View>, Reason> {
        let current = self.current.load();
        let Some(service) = requested.or(current.default_service) else {
            // The default service is that of the first API key, which has no view.
            return Err(self.absent(current.keys.iter().take(1)));
        };
        if let Some(view) = current.by_service.get(&service).and_then(|views| newest_current_view(views)) {
            return Ok(view);
        }
        if current.removed_services.contains(&service) {
            return Err(Reason::SyncKeyRemoved);
        }
        Err(self.absent(current.keys.iter().filter(|key| current.view_of(**key).is_none())))
    }

    /// Why there is no view. `keys` are the API keys without a view to which it could belong.
    fn absent<'k>(&self, keys: impl Iterator<Item = &'k ApiKeyIndex>) -> Reason {
        let mut keys = keys.peekable();
        if keys.peek().is_none() {
            return Reason::ServiceUnknown;
        }
        let unknown = self.unknown_keys();
        if keys.all(|key| unknown.contains(key)) { Reason::SyncKeyRefused } else { Reason::ViewMissing }
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
        views.publish(ApiKeyIndex(1), &view(other, 10, 1));
        assert_eq!(views.resolve(Some(other)).unwrap().service(), other);
        assert_eq!(views.resolve(Some(SERVICE_ID)).unwrap_err(), Reason::ViewMissing);
        assert_eq!(views.resolve(None).unwrap_err(), Reason::ViewMissing, "the service of the first key is not known");
        views.publish(ApiKeyIndex(0), &view(SERVICE_ID, 10, 1));
        assert_eq!(views.resolve(Some(ServiceId::from_bits(7))).unwrap_err(), Reason::ServiceUnknown);
        assert_eq!(views.resolve(None).unwrap().service(), SERVICE_ID, "the first key names the default service");
    }

    #[test]
    fn default_service_of_the_settings_takes_precedence_over_the_first_key() {
        let other = ServiceId::from_bits(99);
        let views = Views::new(2, Some(other));
        views.publish(ApiKeyIndex(0), &view(SERVICE_ID, 10, 1));
        assert_eq!(views.resolve(None).unwrap_err(), Reason::ViewMissing);
        views.publish(ApiKeyIndex(1), &view(other, 10, 1));
        assert_eq!(views.resolve(None).unwrap().service(), other);
    }

    #[test]
    fn refusal_says_that_the_key_was_removed_until_the_service_has_another() {
        let other = ServiceId::from_bits(99);
        let views = Views::new(2, None);
        views.publish(ApiKeyIndex(0), &view(SERVICE_ID, 10, 1));
        views.publish(ApiKeyIndex(1), &view(other, 10, 1));
        views.change_keys(&[ApiKeyIndex(0)], &BTreeSet::from([SERVICE_ID]));
        assert_eq!(views.resolve(Some(other)).unwrap_err(), Reason::SyncKeyRemoved);
        assert_eq!(views.resolve(None).unwrap().service(), SERVICE_ID);
        assert_eq!(views.removed_services(), [other]);
        assert!(!views.uses_key(ApiKeyIndex(1)) && views.of_key(ApiKeyIndex(1)).is_none());
        views.publish(ApiKeyIndex(1), &view(other, 11, 2));
        assert_eq!(views.resolve(Some(other)).unwrap_err(), Reason::SyncKeyRemoved, "a late message changes nothing");
        views.change_keys(&[ApiKeyIndex(0), ApiKeyIndex(2)], &BTreeSet::from([SERVICE_ID, other]));
        assert_eq!(views.resolve(Some(other)).unwrap_err(), Reason::ViewMissing);
        views.publish(ApiKeyIndex(2), &view(other, 12, 3));
        assert_eq!(views.resolve(Some(other)).unwrap().revision().number(), 12);
    }

    #[test]
    fn refusal_says_that_the_control_plane_refuses_the_key() {
        let other = ServiceId::from_bits(99);
        let views = Views::new(2, None);
        views.mark_key_unknown(ApiKeyIndex(0));
        assert_eq!(views.resolve(None).unwrap_err(), Reason::SyncKeyRefused);
        assert_eq!(
            views.resolve(Some(other)).unwrap_err(),
            Reason::ViewMissing,
            "the other key may be of this service"
        );
        views.publish(ApiKeyIndex(1), &view(other, 10, 1));
        assert_eq!(views.resolve(Some(SERVICE_ID)).unwrap_err(), Reason::SyncKeyRefused);
        assert!(!views.is_unknown(other));
        views.mark_key_unknown(ApiKeyIndex(1));
        assert!(views.is_unknown(other) && views.resolve(Some(other)).is_ok());
        views.change_keys(&[ApiKeyIndex(1)], &BTreeSet::new());
        assert_eq!(views.resolve(None).unwrap().service(), other, "no default service was known before");
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
