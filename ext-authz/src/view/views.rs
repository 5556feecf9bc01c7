//! The newest view of every service that is followed, readable without a lock.

use super::View;
use arc_swap::ArcSwap;
use countersign_identity::{Reason, ServiceId};
use std::{collections::HashMap, sync::Arc, time::Duration};

/// How much earlier than another a stream may have been confirmed and still count as in contact.
const LAG: Duration = Duration::from_secs(10);

/// One API key's place. Two keys of the same service each keep a whole view: nothing is merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub usize);

/// Almost always one view a service; more only while its API keys are exchanged.
type Known = HashMap<ServiceId, Vec<(Slot, Arc<View>)>>;

/// The views, one for each API key that has had one.
#[derive(Debug)]
pub struct Views {
    expected: usize,
    default: Option<ServiceId>,
    known: ArcSwap<Known>,
}

impl Views {
    /// No view yet, of as many services as there are keys.
    pub fn new(expected: usize, default: Option<ServiceId>) -> Self {
        Self { expected, default, known: ArcSwap::default() }
    }

    /// Puts a key's newest view in the place of its last one.
    pub fn publish(&self, slot: Slot, view: &Arc<View>) {
        self.known.rcu(|known| {
            let mut known = HashMap::clone(known);
            let views = known.entry(view.service()).or_default();
            views.retain(|(other, _)| *other != slot);
            views.push((slot, Arc::clone(view)));
            known
        });
    }

    /// The view of the service that a route names, else of the default one, else of the only one.
    ///
    /// As long as a key has not told its service, a name that is not known may be that key's.
    pub fn resolve(&self, named: Option<ServiceId>) -> Result<Arc<View>, Reason> {
        let known = self.known.load();
        let complete = known.values().map(Vec::len).sum::<usize>() >= self.expected;
        let service = match named.or(self.default) {
            Some(service) => service,
            None if known.len() == 1 && complete => *known.keys().next().ok_or(Reason::Internal)?,
            None if complete => return Err(Reason::ServiceUnknown),
            None => return Err(Reason::ViewMissing),
        };
        let missing = if complete { Reason::ServiceUnknown } else { Reason::ViewMissing };
        known.get(&service).and_then(|views| newest_in_contact(views)).ok_or(missing)
    }
}

/// Of two keys' views of one service, the newest among those in contact: what one stream has learnt already
/// counts, even if the other was confirmed a moment later; and a key that has lost contact is not asked.
fn newest_in_contact(views: &[(Slot, Arc<View>)]) -> Option<Arc<View>> {
    let latest = views.iter().filter_map(|(_, view)| view.confirmed_at()).max();
    let in_contact = |view: &View| view.confirmed_at().map(|at| at + LAG) >= latest;
    let newest = views.iter().filter(|(_, view)| in_contact(view)).max_by_key(|(_, view)| view.revision());
    newest.map(|(_, view)| Arc::clone(view))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{
        Confirmation,
        tests::{SERVICE, snapshot},
    };
    use countersign_identity::Revision;

    fn view(service: ServiceId, revision: i64, confirmed: u64) -> Arc<View> {
        let mut snapshot = snapshot(revision);
        snapshot.terms.service = service;
        let (revision, floor) = (Revision::new(revision), Revision::new(1));
        let confirmation = Confirmation { revision, floor, asked_at: Duration::from_secs(confirmed) };
        Arc::new(View::of(snapshot, None).confirm(confirmation))
    }

    #[test]
    fn an_unknown_service_is_unknown_only_when_every_key_has_told_its_service() {
        let other = ServiceId::from_bits(99);
        let views = Views::new(2, None);
        assert_eq!(views.resolve(Some(other)).unwrap_err(), Reason::ViewMissing);
        assert_eq!(views.resolve(None).unwrap_err(), Reason::ViewMissing);
        views.publish(Slot(0), &view(SERVICE, 10, 1));
        assert_eq!(views.resolve(Some(SERVICE)).unwrap().service(), SERVICE);
        assert_eq!(views.resolve(Some(other)).unwrap_err(), Reason::ViewMissing);
        views.publish(Slot(1), &view(other, 10, 1));
        assert_eq!(views.resolve(Some(ServiceId::from_bits(7))).unwrap_err(), Reason::ServiceUnknown);
        assert_eq!(views.resolve(None).unwrap_err(), Reason::ServiceUnknown);
    }

    #[test]
    fn of_two_keys_of_one_service_the_newer_view_in_contact_is_asked() {
        let views = Views::new(2, None);
        let asked = |views: &Views| views.resolve(None).unwrap().revision().number();
        views.publish(Slot(0), &view(SERVICE, 10, 5));
        views.publish(Slot(1), &view(SERVICE, 11, 4));
        assert_eq!(asked(&views), 11, "it knows more, though it was confirmed a moment earlier");
        views.publish(Slot(0), &view(SERVICE, 10, 15));
        assert_eq!(asked(&views), 10, "the other has lost contact");
        views.publish(Slot(1), &Arc::new(View::of(snapshot(12), None)));
        assert_eq!(asked(&views), 10, "the other was never confirmed");
    }
}
