use super::*;
use crate::{
    fixtures::SERVICE_ID,
    view::{
        ApiKeyIndex,
        tests::{confirmed, header, view},
    },
};
use countersign_identity::Timestamp;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const OTHER: ServiceId = ServiceId::from_bits(99);

#[derive(Default)]
struct ManualClock(AtomicU64);

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(0)
    }

    fn since_boot(&self) -> Duration {
        Duration::from_secs(self.0.load(SeqCst))
    }
}

struct Sidecar {
    clock: Arc<ManualClock>,
    views: Arc<Views>,
    readiness: Readiness,
    monitor: StalenessMonitor,
}

impl Sidecar {
    fn new() -> Self {
        let clock = Arc::new(ManualClock(AtomicU64::new(1000)));
        let (views, readiness) = (Arc::new(Views::new(2, None)), Readiness::default());
        let monitor = StalenessMonitor::new(views.clone(), readiness.clone(), clock.clone());
        Self { clock, views, readiness, monitor }
    }

    /// Publishes a view that is confirmed now.
    fn confirm(&self, key: usize, service: ServiceId) {
        self.publish(key, service, Some(self.clock.since_boot()));
    }

    fn publish(&self, key: usize, service: ServiceId, confirmed_at: Option<Duration>) {
        let mut header = header();
        header.settings.service = service;
        let view = view(10, header);
        let view = confirmed_at.map_or_else(|| view.clone(), |at| confirmed(&view, at));
        self.views.publish(ApiKeyIndex(key), &Arc::new(view));
    }

    /// Lets time pass, and returns what readiness waits for.
    fn pending_after(&mut self, seconds: u64) -> Vec<String> {
        self.clock.0.fetch_add(seconds, SeqCst);
        self.monitor.update();
        self.readiness.pending()
    }

    #[track_caller]
    fn assert_pending(&mut self, seconds: u64, expected: &str) {
        let pending = self.pending_after(seconds);
        assert!(matches!(&pending[..], [text] if text.contains(expected)), "{pending:?}");
    }

    #[track_caller]
    fn assert_ready(&mut self, seconds: u64) {
        assert_eq!(self.pending_after(seconds), Vec::<String>::new());
    }
}

#[test]
fn is_not_ready_exactly_while_checks_are_denied_and_until_two_confirmations() {
    let mut sidecar = Sidecar::new();
    sidecar.publish(0, SERVICE_ID, None);
    sidecar.assert_ready(0);
    sidecar.confirm(0, SERVICE_ID);
    sidecar.assert_ready(0);
    sidecar.assert_ready(59);
    let names = format!("view of service {SERVICE_ID} (sync.keys[0]): the last one is 60 s old, the limit is 60 s");
    sidecar.assert_pending(1, &names);
    sidecar.assert_pending(7, "67 s old");
    sidecar.confirm(0, SERVICE_ID);
    sidecar.assert_pending(1, "a second confirmation");
    sidecar.assert_pending(1, "a second confirmation");
    sidecar.confirm(0, SERVICE_ID);
    sidecar.assert_ready(1);
}

#[test]
fn single_confirmations_do_not_make_the_sidecar_ready() {
    let mut sidecar = Sidecar::new();
    sidecar.confirm(0, SERVICE_ID);
    sidecar.assert_ready(0);
    sidecar.assert_pending(60, "60 s old");
    for _ in 0..3 {
        sidecar.confirm(0, SERVICE_ID);
        sidecar.assert_pending(10, "a second confirmation");
        sidecar.assert_pending(50, "60 s old");
    }
}

#[test]
fn view_that_is_no_longer_confirmed_makes_the_sidecar_not_ready() {
    let mut sidecar = Sidecar::new();
    sidecar.confirm(0, SERVICE_ID);
    sidecar.assert_ready(0);
    sidecar.publish(0, SERVICE_ID, None);
    sidecar.assert_pending(1, &format!("a confirmation of the view of service {SERVICE_ID} (sync.keys[0])"));
    sidecar.confirm(0, SERVICE_ID);
    sidecar.assert_pending(1, "a second confirmation");
    sidecar.confirm(0, SERVICE_ID);
    sidecar.assert_ready(1);
}

#[test]
fn second_key_of_a_service_keeps_the_sidecar_ready() {
    let mut sidecar = Sidecar::new();
    sidecar.confirm(0, SERVICE_ID);
    sidecar.confirm(1, SERVICE_ID);
    sidecar.assert_ready(50);
    sidecar.confirm(1, SERVICE_ID);
    sidecar.assert_ready(59);
    sidecar.assert_pending(1, "(sync.keys[0] and sync.keys[1])");
}

#[test]
fn refused_key_counts_only_if_no_other_service_is_served() {
    let mut sidecar = Sidecar::new();
    sidecar.confirm(0, SERVICE_ID);
    sidecar.confirm(1, OTHER);
    sidecar.assert_ready(0);
    sidecar.views.mark_key_refused(ApiKeyIndex(0));
    sidecar.assert_ready(50);
    sidecar.confirm(1, OTHER);
    sidecar.assert_ready(50);
    // Now the view of the other service is stale, too, so both services keep the sidecar from being ready.
    let pending = sidecar.pending_after(10);
    assert!(
        pending.len() == 2 && pending.iter().any(|text| text.contains("(sync.keys[0], which the control")),
        "{pending:?}"
    );
    sidecar.confirm(1, OTHER);
    sidecar.assert_pending(1, "a second confirmation");
    sidecar.confirm(1, OTHER);
    sidecar.assert_ready(1);
}
