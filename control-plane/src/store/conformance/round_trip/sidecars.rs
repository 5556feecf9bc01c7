//! The streams of sidecars, the control planes that serve them, and audited changes that are not yet in force at all sidecars.

use super::{time, whole_list};
use crate::{
    domain::{
        page::Page,
        sidecar::{SidecarIdentity, SidecarInstance, SidecarProgress},
    },
    store::{
        conformance::StoreFixture,
        feed,
        sidecars::{self, ControlPlane, Peer, RecordedSidecar},
        unconfirmed_changes::{self, UnconfirmedChanges},
    },
};
use countersign_identity::{ApiKeyId, Revision, ServiceId, Timestamp};
use std::time::Duration;

const SERVICE: ServiceId = ServiceId::from_bits(880);
const STALENESS: Duration = Duration::from_mins(1);

fn identity(instance: u8) -> SidecarIdentity {
    SidecarIdentity {
        instance: SidecarInstance::from_bytes([instance; 16]),
        api_key: ApiKeyId::from_bits(880),
        service: SERVICE,
        address: format!("192.0.2.{instance}:1000"),
        release: "0.1.0".to_owned(),
    }
}

/// The first stream of a sidecar, at the control plane `first`.
fn open_stream(identity: &SidecarIdentity) -> RecordedSidecar {
    RecordedSidecar {
        identity: identity.clone(),
        control_plane: "first".to_owned(),
        stream: 1,
        connected_at: time(1),
        progress: SidecarProgress { applied: Revision::new(5), required: Revision::new(9), applied_at: None },
        confirmed_at: None,
        ended_at: None,
        max_staleness: STALENESS,
        distributed: None,
    }
}

/// `written` as it is read back: with the newest revision that its control plane has sent to its streams (`distributed`), if the
/// control plane is registered.
fn row_of(written: &RecordedSidecar, distributed: Option<i64>) -> RecordedSidecar {
    RecordedSidecar { distributed: distributed.map(Revision::new), ..written.clone() }
}

const fn control_plane(id: &str, seen_at: i64) -> ControlPlane<'_> {
    ControlPlane { id, seen_at: time(seen_at), distributed: Revision::new(50) }
}

impl StoreFixture {
    /// The sidecars, without those that already refused all requests at `since`.
    async fn sidecars(&self, since: Timestamp) -> Vec<RecordedSidecar> {
        sidecars::list(self.read().await.conn(), SERVICE, since, whole_list()).await.unwrap().items
    }

    pub async fn sidecars_return_what_was_written(&self) {
        let sidecar = identity(1);
        let open = open_stream(&sidecar);
        self.commit(async |tx| {
            assert!(sidecars::register(tx.conn(), control_plane("first", 2)).await?);
            assert!(sidecars::write(tx.conn(), &open).await?);
            Ok(())
        })
        .await;
        assert_eq!(self.sidecars(time(3)).await, [row_of(&open, Some(50))]);
        let progress =
            SidecarProgress { applied: Revision::new(9), required: Revision::new(9), applied_at: Some(time(4)) };
        let applied = RecordedSidecar { progress, confirmed_at: Some(time(5)), ..open_stream(&sidecar) };
        self.commit(async |tx| sidecars::write(tx.conn(), &applied).await).await;
        assert_eq!(self.sidecars(time(6)).await, [row_of(&applied, Some(50))]);
        let ended = RecordedSidecar { ended_at: Some(time(6)), ..applied };
        self.commit(async |tx| sidecars::write(tx.conn(), &ended).await).await;
        assert_eq!(self.sidecars(time(7)).await, [row_of(&ended, Some(50))]);
        self.continue_with_an_ended_stream(&sidecar).await;
    }

    /// Lists and deletes sidecars. Expects that `sidecar` is recorded, and that its stream ended at 6 s.
    async fn continue_with_an_ended_stream(&self, sidecar: &SidecarIdentity) {
        let other = identity(2);
        let position = sidecar.instance;
        self.commit(async |tx| {
            sidecars::write(tx.conn(), &open_stream(&other)).await?;
            let conn = tx.conn();
            let page = Page { limit: 1, offset: 0, after: None };
            let listed = sidecars::list(conn, SERVICE, time(9), page).await?;
            assert_eq!((listed.items.len(), listed.total.count, listed.next), (1, 2, Some(position)));
            let rest = sidecars::list(conn, SERVICE, time(9), Page { after: Some(position), ..page }).await?;
            assert_eq!(rest.items[0].identity, other);
            let all = sidecars::recorded_after(conn, SERVICE, time(0), None, 9).await?;
            assert_eq!((all.len(), all[0].ended_at, all[1].ended_at), (2, Some(time(6)), None));
            assert_eq!(sidecars::recorded_after(conn, SERVICE, time(0), None, 1).await?, all[..1]);
            assert_eq!(sidecars::recorded_after(conn, SERVICE, time(0), Some(position), 9).await?, all[1..]);
            assert_eq!(sidecars::next_service(conn, None).await?, Some(SERVICE));
            assert_eq!(sidecars::next_service(conn, Some(SERVICE)).await?, None);

            let refuses_by = time(6).saturating_add(STALENESS);
            let deletable_at = refuses_by.saturating_add(sidecars::KEPT_AFTER_EXPIRY);
            assert_eq!(sidecars::EXPIRED.oldest_deletable(conn, time(0)).await?, Some(deletable_at));
            let deciding = sidecars::list(conn, SERVICE, refuses_by, whole_list()).await?.items;
            assert_eq!(deciding.len(), 1, "60 s after its stream ended, the first sidecar refuses all requests");
            let too_early = deletable_at.saturating_sub(Duration::from_secs(1));
            assert_eq!(sidecars::EXPIRED.delete(conn, time(0), too_early, 9).await?, 0);
            assert_eq!(sidecars::EXPIRED.delete(conn, time(0), deletable_at, 9).await?, 1);
            assert!(!sidecars::forget(conn, SERVICE, other.instance).await?, "its stream has not ended");
            sidecars::write(conn, &RecordedSidecar { ended_at: Some(time(9)), ..open_stream(&other) }).await?;
            assert!(sidecars::forget(conn, SERVICE, sidecar.instance).await?, "its row is already gone");
            assert!(sidecars::forget(conn, SERVICE, other.instance).await?);
            sidecars::delete_control_plane(conn, "first").await?;
            assert_eq!(sidecars::list(conn, SERVICE, time(9), whole_list()).await?.items, []);
            Ok(())
        })
        .await;
    }

    /// If a control plane could not write for a while, another one may have recorded a later stream of the same sidecar before.
    pub async fn later_stream_of_a_sidecar_is_not_replaced(&self) {
        let sidecar = identity(1);
        let later = RecordedSidecar { control_plane: "second".to_owned(), stream: 5, ..open_stream(&sidecar) };
        let late = RecordedSidecar { stream: 4, ended_at: Some(time(3)), ..open_stream(&sidecar) };
        self.commit(async |tx| {
            let conn = tx.conn();
            assert!(sidecars::write(conn, &later).await?);
            assert!(!sidecars::write(conn, &late).await?);
            sidecars::delete(conn, &late).await?;
            sidecars::delete(conn, &RecordedSidecar { control_plane: "second".to_owned(), ..late.clone() }).await?;
            assert_eq!(sidecars::recorded_after(conn, SERVICE, time(0), None, 9).await?, [row_of(&later, None)]);
            assert!(sidecars::write(conn, &later).await?, "again");
            let next = RecordedSidecar { stream: 6, ..open_stream(&sidecar) };
            assert!(sidecars::write(conn, &next).await?);
            sidecars::delete(conn, &next).await
        })
        .await;
        assert_eq!(self.sidecars(time(9)).await, []);
    }

    /// A sidecar may still use the longer maximum staleness of its earlier stream, so we must count with the longer one.
    pub async fn new_stream_of_a_sidecar_keeps_the_longest_staleness(&self) {
        let sidecar = identity(1);
        let long = RecordedSidecar { max_staleness: STALENESS * 2, ..open_stream(&sidecar) };
        self.commit(async |tx| {
            sidecars::write(tx.conn(), &long).await?;
            let ended = RecordedSidecar { stream: 2, ended_at: Some(time(5)), ..open_stream(&sidecar) };
            sidecars::write(tx.conn(), &ended).await
        })
        .await;
        assert_eq!(self.sidecars(time(124)).await[0].max_staleness, STALENESS * 2);
        assert_eq!(self.sidecars(time(125)).await, [], "it expires after the longer staleness");
        let last = RecordedSidecar { stream: 2, ..open_stream(&sidecar) };
        self.commit(async |tx| sidecars::delete(tx.conn(), &last).await).await;
    }

    /// A restore records that each service may have unknown sidecars: `record_unknown` writes a row for each service in the table
    /// of services. So the test looks at any service except `SERVICE`, which is not in the table.
    pub async fn unknown_sidecars_count_for_the_longest_known_staleness(&self) {
        let sidecar = identity(1);
        let long = RecordedSidecar { max_staleness: STALENESS * 2, ..open_stream(&sidecar) };
        self.commit(async |tx| {
            let conn = tx.conn();
            sidecars::write(conn, &long).await?;
            sidecars::record_unknown(conn, time(7), STALENESS).await?;
            sidecars::record_unknown(conn, time(8), STALENESS).await
        })
        .await;
        let mut read = self.read().await;
        let mut service = sidecars::next_service(read.conn(), None).await.unwrap().unwrap();
        if service == SERVICE {
            service = sidecars::next_service(read.conn(), Some(SERVICE)).await.unwrap().unwrap();
        }
        let rows = sidecars::recorded_after(read.conn(), service, time(9), None, 9).await.unwrap();
        let [unknown] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(unknown.identity.instance, SidecarInstance::UNKNOWN);
        assert_eq!((unknown.progress.applied, unknown.max_staleness), (Revision::default(), STALENESS * 2));
        assert_eq!(unknown.ended_at, Some(time(8)));
        let until = time(8).saturating_add(STALENESS * 2);
        assert_eq!(sidecars::recorded_after(read.conn(), service, until, None, 9).await.unwrap(), []);
        drop(read);
        self.commit(async |tx| {
            assert!(sidecars::EXPIRED.delete(tx.conn(), time(0), time(4000), 99).await? > 0);
            sidecars::delete(tx.conn(), &long).await
        })
        .await;
    }

    pub async fn streams_of_killed_control_planes_end(&self) {
        let (killed, alive) = (identity(1), identity(2));
        let peer = |seen_at| Peer { id: "first".to_owned(), seen_at: time(seen_at) };
        let progress =
            SidecarProgress { applied: Revision::new(5), required: Revision::new(5), applied_at: Some(time(2)) };
        let of_first = RecordedSidecar { progress, confirmed_at: Some(time(1)), ..open_stream(&killed) };
        let of_second = RecordedSidecar { control_plane: "second".to_owned(), ..open_stream(&alive) };
        self.commit(async |tx| {
            let conn = tx.conn();
            for stream in [&of_first, &of_second] {
                sidecars::write(conn, stream).await?;
            }
            // Registering again is no error.
            for name in ["first", "second", "first"] {
                assert!(sidecars::register(conn, control_plane(name, 2)).await?);
            }
            assert_eq!(sidecars::peers(conn, "second").await?, [peer(2)]);
            assert!(sidecars::renew(conn, control_plane("first", 3)).await?);
            sidecars::end_killed(conn, &peer(2), time(32)).await?;
            assert!(sidecars::is_registered(conn, "first").await?, "it has written after that time");
            Ok(())
        })
        .await;
        assert_eq!(self.sidecars(time(34)).await, [row_of(&of_first, Some(50)), row_of(&of_second, Some(50))]);
        self.commit(async |tx| {
            let conn = tx.conn();
            sidecars::end_killed(conn, &peer(3), time(35)).await?;
            assert_eq!(sidecars::peers(conn, "second").await?, []);
            assert!(!sidecars::is_registered(conn, "first").await?);
            assert!(!sidecars::renew(conn, control_plane("first", 36)).await?);
            Ok(())
        })
        .await;
        let ended = RecordedSidecar { ended_at: Some(time(35)), ..of_first };
        assert_eq!(self.sidecars(time(36)).await, [row_of(&ended, None), row_of(&of_second, Some(50))]);
        assert_eq!(self.sidecars(time(95)).await.len(), 1);
    }

    pub async fn unconfirmed_changes_return_what_was_written(&self) {
        let changes = |first_sequence, last_sequence, (first_changed_at, changed_at)| UnconfirmedChanges {
            chain: "chain".to_owned(),
            first_sequence,
            last_sequence,
            first_changed_at: time(first_changed_at),
            changed_at: time(changed_at),
            awaited: None,
        };
        let newest = feed::position(self.read().await.conn()).await.unwrap().revision;
        let awaited = |changes| UnconfirmedChanges { awaited: Some(newest), ..changes };
        self.commit(async |tx| {
            let conn = tx.conn();
            unconfirmed_changes::add(conn, &changes(5, 6, (1, 1))).await?;
            unconfirmed_changes::add(conn, &changes(8, 9, (2, 2))).await?;
            // Chains after `chai`, and then after `chain`.
            assert_eq!(unconfirmed_changes::list(conn, "chai", 9).await?, [changes(5, 9, (1, 2))]);
            assert_eq!(unconfirmed_changes::list(conn, "chain", 9).await?, []);
            assert!(unconfirmed_changes::is_first(conn, &changes(5, 6, (1, 1))).await?);
            unconfirmed_changes::remove(conn, &changes(5, 6, (1, 1))).await?;
            assert!(
                !unconfirmed_changes::is_first(conn, &changes(5, 6, (1, 1))).await?,
                "another process has confirmed it"
            );
            // Entry 7 is not about a change, so the rest begins after the removed range.
            assert_eq!(unconfirmed_changes::list(conn, "", 9).await?, [changes(7, 9, (1, 2))], "later changes remain");

            unconfirmed_changes::await_newest_revision(conn, "chain").await?;
            unconfirmed_changes::add(conn, &changes(10, 10, (3, 3))).await?;
            unconfirmed_changes::await_newest_revision(conn, "chain").await?;
            assert_eq!(unconfirmed_changes::list(conn, "", 9).await?, [awaited(changes(7, 9, (1, 2)))]);
            unconfirmed_changes::remove(conn, &awaited(changes(7, 9, (1, 2)))).await?;
            assert_eq!(unconfirmed_changes::list(conn, "", 9).await?, [changes(10, 10, (3, 3))]);
            unconfirmed_changes::await_newest_revision(conn, "chain").await?;
            unconfirmed_changes::add(conn, &changes(11, 11, (4, 4))).await
        })
        .await;
    }
}
