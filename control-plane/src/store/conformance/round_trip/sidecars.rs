//! The streams of sidecars, and the control planes that serve them.

use super::{time, whole_list};
use crate::{
    domain::{
        page::Page,
        sidecar::{LastConfirmation, Sidecar, SidecarIdentity, SidecarInstance, SidecarKey, SidecarProgress},
    },
    store::{
        conformance::StoreFixture,
        sidecars::{self, NewRecord, StreamId},
        unconfirmed_changes::{self, UnconfirmedChanges},
    },
};
use countersign_identity::{ApiKeyId, Revision, ServiceId, Timestamp};
use std::time::Duration;

const SERVICE: ServiceId = ServiceId::from_bits(880);
const FIRST: StreamId<'_> = StreamId { control_plane: "first", number: 1 };
const SECOND: StreamId<'_> = StreamId { control_plane: "second", number: 1 };
const STALENESS: Duration = Duration::from_mins(1);

fn identity(instance: u8) -> SidecarIdentity {
    SidecarIdentity {
        key: SidecarKey { instance: SidecarInstance::from_bytes([instance; 16]), key: ApiKeyId::from_bits(880) },
        service: SERVICE,
        address: format!("192.0.2.{instance}:1000"),
        release: "0.1.0".to_owned(),
        protocol_version: 3,
    }
}

const fn progress(applied: i64, required: i64, applied_at: Option<Timestamp>) -> SidecarProgress {
    SidecarProgress { applied: Revision::new(applied), required: Revision::new(required), applied_at }
}

fn record(identity: &SidecarIdentity, progress: SidecarProgress, confirmed_at: Option<Timestamp>) -> NewRecord<'_> {
    NewRecord { identity, connected_at: time(1), progress, confirmed_at, max_staleness: STALENESS }
}

impl StoreFixture {
    async fn sidecars(&self, now: Timestamp) -> Vec<Sidecar> {
        let listed = sidecars::list(self.read().await.conn(), (SERVICE, now), whole_list()).await.unwrap();
        listed.items.into_iter().map(|recorded| recorded.into_sidecar(now)).collect()
    }

    pub async fn sidecars_return_what_was_written(&self) {
        let sidecar = identity(1);
        let new = record(&sidecar, progress(5, 9, None), None);
        self.commit(async |tx| {
            sidecars::record_control_plane(tx.conn(), "first", (time(2), Revision::new(50))).await?;
            assert_eq!(sidecars::record(tx.conn(), FIRST, &new).await?, None);
            Ok(())
        })
        .await;
        let expected = Sidecar {
            identity: sidecar.clone(),
            connected_at: time(1),
            is_connected: true,
            in_force: Some(Revision::new(5)),
            applied_at: None,
            confirmed: LastConfirmation::Continuing(None),
            max_staleness: STALENESS,
        };
        assert_eq!(self.sidecars(time(3)).await, std::slice::from_ref(&expected));
        assert!(!self.sidecars(time(33)).await[0].is_connected, "the control plane does not run any more");

        let applied = record(&sidecar, progress(9, 9, Some(time(4))), Some(time(5)));
        self.commit(async |tx| sidecars::update(tx.conn(), FIRST, &applied, None).await).await;
        let in_force = Sidecar {
            in_force: Some(Revision::new(50)),
            applied_at: Some(time(4)),
            confirmed: LastConfirmation::Continuing(Some(time(5))),
            ..expected
        };
        assert_eq!(self.sidecars(time(6)).await, std::slice::from_ref(&in_force));

        self.commit(async |tx| sidecars::update(tx.conn(), FIRST, &applied, Some(time(6))).await).await;
        let ended = Sidecar {
            is_connected: false,
            in_force: Some(Revision::new(9)),
            confirmed: LastConfirmation::By(time(5)),
            ..in_force
        };
        assert_eq!(self.sidecars(time(7)).await, [ended]);
        self.sidecars_are_listed_and_deleted(&sidecar).await;
    }

    /// `sidecar` is recorded, and its stream has ended.
    async fn sidecars_are_listed_and_deleted(&self, sidecar: &SidecarIdentity) {
        let other = identity(2);
        let (position, missing) = (sidecar.key, identity(3).key);
        self.commit(async |tx| {
            sidecars::record(tx.conn(), FIRST, &record(&other, progress(0, 0, None), Some(time(1)))).await?;
            let conn = tx.conn();
            let page = Page { limit: 1, offset: 0, after: None };
            let listed = sidecars::list(conn, (SERVICE, time(9)), page).await?;
            assert_eq!((listed.items.len(), listed.total.count, listed.next), (1, 2, Some(position)));
            let rest = sidecars::list(conn, (SERVICE, time(9)), Page { after: Some(position), ..page }).await?;
            assert_eq!(rest.items[0].identity, other);
            let of_other_control_plane = sidecars::list_elsewhere(conn, (Some(SERVICE), "second"), None, 9).await?;
            assert_eq!(of_other_control_plane.len(), 2);
            let ended = sidecars::list_elsewhere(conn, (Some(SERVICE), "first"), None, 9).await?;
            assert_eq!(ended.len(), 1, "the other stream is open at this control plane");
            assert_eq!(sidecars::list_elsewhere(conn, (None, "first"), None, 9).await?, ended);
            assert_eq!(sidecars::list_elsewhere(conn, (None, "first"), Some(ended[0].identity.key), 9).await?, []);
            assert!(sidecars::is_recorded(conn, position).await? && !sidecars::is_recorded(conn, missing).await?);

            // The last confirmation was at 5 s.
            assert_eq!(sidecars::oldest_expiry(conn, time(0)).await?, Some(time(3665)));
            assert_eq!(
                sidecars::list(conn, (SERVICE, time(65)), whole_list()).await?.items.len(),
                1,
                "it does not decide"
            );
            assert_eq!(sidecars::delete_expired(conn, (time(0), time(3664)), 9).await?, 0);
            assert_eq!(sidecars::delete_expired(conn, (time(0), time(3665)), 9).await?, 1);
            sidecars::forget(conn, other.key).await?;
            sidecars::delete_control_plane(conn, "first").await?;
            assert_eq!(sidecars::list(conn, (SERVICE, time(9)), whole_list()).await?.items, []);
            Ok(())
        })
        .await;
    }

    pub async fn moved_stream_is_changed_by_its_control_plane_only(&self) {
        let sidecar = identity(1);
        let old = record(&sidecar, progress(5, 9, None), Some(time(8)));
        let new = record(&sidecar, progress(7, 7, None), Some(time(2)));
        self.commit(async |tx| {
            let conn = tx.conn();
            sidecars::record(conn, FIRST, &old).await?;
            assert_eq!(sidecars::record(conn, SECOND, &new).await?, Some(time(8)), "the later confirmation remains");
            sidecars::update(conn, FIRST, &old, Some(time(9))).await?;
            sidecars::update(conn, StreamId { number: 2, ..SECOND }, &old, Some(time(9))).await?;
            sidecars::delete(conn, FIRST, sidecar.key).await?;
            sidecars::delete(conn, StreamId { number: 2, ..SECOND }, sidecar.key).await?;
            Ok(())
        })
        .await;
        let found = &self.sidecars(time(9)).await[0];
        assert_eq!(
            (found.in_force, found.confirmed),
            (Some(Revision::new(7)), LastConfirmation::Continuing(Some(time(8))))
        );
        self.commit(async |tx| sidecars::delete(tx.conn(), SECOND, sidecar.key).await).await;
        assert_eq!(self.sidecars(time(9)).await, []);
    }

    pub async fn oldest_sidecars_without_a_stream_become_one_row(&self) {
        let ended: Vec<_> = (1..=5).map(identity).collect();
        self.commit(async |tx| {
            let conn = tx.conn();
            for (sidecar, second) in ended.iter().zip([5, 1, 2, 3, 4]) {
                let new = record(sidecar, progress(9, 9, None), Some(time(second)));
                sidecars::record(conn, FIRST, &new).await?;
                sidecars::update(conn, FIRST, &new, Some(time(second))).await?;
            }
            let key = ended[0].key.key;
            sidecars::merge_oldest_ended(conn, key, 5).await?;
            assert_eq!(
                sidecars::list(conn, (SERVICE, time(9)), whole_list()).await?.items.len(),
                5,
                "there are not too many"
            );
            sidecars::merge_oldest_ended(conn, key, 4).await?;
            sidecars::merge_oldest_ended(conn, key, 3).await?;
            Ok(())
        })
        .await;
        let listed = self.sidecars(time(5)).await;
        let instances: Vec<_> = listed.iter().map(|sidecar| sidecar.identity.key.instance).collect();
        let [first, fourth, fifth] = [0, 3, 4].map(|index: usize| ended[index].key.instance);
        assert_eq!(instances, [SidecarInstance::MERGED, first, fourth, fifth], "the two oldest ones are merged");
        assert_eq!(
            (listed[0].in_force, listed[0].confirmed),
            (Some(Revision::default()), LastConfirmation::By(time(2)))
        );
        self.commit(async |tx| {
            assert_eq!(
                sidecars::delete_expired(tx.conn(), (time(0), time(3662)), 9).await?,
                1,
                "it expires as the later one"
            );
            assert_eq!(sidecars::delete_expired(tx.conn(), (time(0), time(3699)), 9).await?, 3);
            Ok(())
        })
        .await;
    }

    /// Leaves values for the test `every_column_was_written`.
    pub async fn streams_of_killed_control_planes_end(&self) {
        let (killed, alive) = (identity(1), identity(2));
        self.commit(async |tx| {
            let conn = tx.conn();
            for (stream, sidecar) in [(FIRST, &killed), (SECOND, &alive)] {
                sidecars::record(conn, stream, &record(sidecar, progress(5, 5, Some(time(2))), Some(time(1)))).await?;
            }
            sidecars::record_control_plane(conn, "first", (time(2), Revision::new(50))).await?;
            assert!(!sidecars::has_peers(conn, "first", time(2)).await?);
            sidecars::record_control_plane(conn, "second", (time(20), Revision::new(50))).await?;
            assert!(sidecars::has_peers(conn, "second", time(31)).await?);
            assert!(!sidecars::has_peers(conn, "second", time(32)).await?, "the first one was killed");
            sidecars::end_streams_of_killed(conn, time(31), 9).await?;
            Ok(())
        })
        .await;
        assert_eq!(self.sidecars(time(31)).await[0].confirmed, LastConfirmation::Continuing(Some(time(1))));
        self.commit(async |tx| sidecars::end_streams_of_killed(tx.conn(), time(32), 9).await).await;
        let [ended, served] = &self.sidecars(time(33)).await[..] else { panic!("there are two sidecars") };
        assert_eq!((ended.confirmed, ended.is_connected), (LastConfirmation::By(time(32)), false));
        assert_eq!(ended.in_force, Some(Revision::new(5)), "it may have missed later changes");
        assert_eq!((served.in_force, served.is_connected), (Some(Revision::new(50)), true));
    }

    /// Leaves values for the test `every_column_was_written`.
    pub async fn unconfirmed_changes_return_what_was_written(&self) {
        let changes = |first_sequence, last_sequence, changed_at| UnconfirmedChanges {
            chain: "chain".to_owned(),
            first_sequence,
            last_sequence,
            changed_at: time(changed_at),
        };
        self.commit(async |tx| {
            let conn = tx.conn();
            unconfirmed_changes::add(conn, &changes(5, 6, 1)).await?;
            unconfirmed_changes::add(conn, &changes(8, 9, 2)).await?;
            assert_eq!(unconfirmed_changes::list(conn, "chai", 9).await?, [changes(5, 9, 2)]);
            assert_eq!(unconfirmed_changes::list(conn, "chain", 9).await?, []);
            assert!(unconfirmed_changes::is_first(conn, &changes(5, 6, 1)).await?);
            unconfirmed_changes::remove(conn, &changes(5, 6, 1)).await?;
            assert!(!unconfirmed_changes::is_first(conn, &changes(5, 6, 1)).await?, "another process has confirmed it");
            assert_eq!(unconfirmed_changes::list(conn, "", 9).await?, [changes(7, 9, 2)], "later changes remain");
            unconfirmed_changes::remove(conn, &changes(7, 9, 2)).await?;
            assert_eq!(unconfirmed_changes::list(conn, "", 9).await?, []);
            unconfirmed_changes::add(conn, &changes(10, 10, 3)).await?;
            Ok(())
        })
        .await;
    }
}
