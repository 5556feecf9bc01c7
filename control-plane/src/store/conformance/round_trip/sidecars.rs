//! The streams of sidecars, and the control planes that serve them.

use super::{time, whole_list};
use crate::{
    domain::{
        page::Page,
        sidecar::{LastConfirmation, Sidecar, SidecarIdentity, SidecarInstance, SidecarKey, SidecarProgress},
    },
    store::{
        conformance::StoreFixture,
        feed,
        sidecars::{self, EndedProcess, NewRecord, Peer, Recorded, StreamId},
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
        key: SidecarKey { instance: SidecarInstance::from_bytes([instance; 16]), index: 2 },
        api_key: ApiKeyId::from_bits(880),
        service: SERVICE,
        address: format!("192.0.2.{instance}:1000"),
        release: "0.1.0".to_owned(),
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
        listed.items.into_iter().map(sidecars::RecordedSidecar::into_sidecar).collect()
    }

    pub async fn sidecars_return_what_was_written(&self) {
        let sidecar = identity(1);
        let new = record(&sidecar, progress(5, 9, None), None);
        self.commit(async |tx| {
            assert!(sidecars::record_control_plane(tx.conn(), ("first", true), (time(2), Revision::new(50))).await?);
            assert_eq!(sidecars::record(tx.conn(), FIRST, &new).await?, Recorded::Confirmed(None));
            Ok(())
        })
        .await;
        let expected = Sidecar {
            identity: sidecar.clone(),
            connected_at: time(1),
            is_connected: true,
            in_force: Revision::new(5),
            applied_at: None,
            confirmed: LastConfirmation::Continuing,
            last_known_confirmation: None,
            max_staleness: STALENESS,
        };
        assert_eq!(self.sidecars(time(3)).await, std::slice::from_ref(&expected));

        let applied = record(&sidecar, progress(9, 9, Some(time(4))), Some(time(5)));
        self.commit(async |tx| sidecars::update(tx.conn(), FIRST, &applied).await).await;
        let in_force = Sidecar {
            in_force: Revision::new(50),
            applied_at: Some(time(4)),
            last_known_confirmation: Some(time(5)),
            ..expected
        };
        assert_eq!(self.sidecars(time(6)).await, std::slice::from_ref(&in_force));

        self.commit(async |tx| sidecars::end(tx.conn(), FIRST, &sidecar, time(6)).await).await;
        let ended = Sidecar {
            is_connected: false,
            in_force: Revision::new(9),
            // Later confirmations were not written.
            confirmed: LastConfirmation::By(time(6)),
            ..in_force
        };
        assert_eq!(self.sidecars(time(7)).await, [ended]);
        self.sidecars_are_listed_and_deleted(&sidecar).await;
    }

    /// `sidecar` is recorded, and its stream has ended at 6 s.
    async fn sidecars_are_listed_and_deleted(&self, sidecar: &SidecarIdentity) {
        let other = identity(2);
        let position = sidecar.key;
        self.commit(async |tx| {
            sidecars::record(tx.conn(), FIRST, &record(&other, progress(0, 0, None), Some(time(1)))).await?;
            let conn = tx.conn();
            let page = Page { limit: 1, offset: 0, after: None };
            let listed = sidecars::list(conn, (SERVICE, time(9)), page).await?;
            assert_eq!((listed.items.len(), listed.total.count, listed.next), (1, 2, Some(position)));
            let rest = sidecars::list(conn, (SERVICE, time(9)), Page { after: Some(position), ..page }).await?;
            assert_eq!(rest.items[0].identity, other);
            let all = sidecars::recorded_after(conn, (SERVICE, time(0)), None, 9).await?;
            assert_eq!((all.len(), all[0].is_open(), all[1].is_open()), (2, false, true));
            assert_eq!((&*all[1].control_plane, all[1].stream), ("first", 1));
            assert_eq!(sidecars::recorded_after(conn, (SERVICE, time(0)), None, 1).await?, all[..1]);
            assert_eq!(sidecars::recorded_after(conn, (SERVICE, time(0)), Some(position), 9).await?, all[1..]);
            assert_eq!(sidecars::next_service(conn, None).await?, Some(SERVICE));
            assert_eq!(sidecars::next_service(conn, Some(SERVICE)).await?, None);
            assert!(!sidecars::is_open_at(conn, "first", sidecar).await?, "it has ended");
            assert!(sidecars::is_open_at(conn, "first", &other).await?);
            assert!(!sidecars::is_open_at(conn, "second", &other).await?, "others may end it");

            assert_eq!(sidecars::oldest_expiry(conn, time(0)).await?, Some(time(3666)));
            assert_eq!(
                sidecars::list(conn, (SERVICE, time(66)), whole_list()).await?.items.len(),
                1,
                "it does not decide"
            );
            assert_eq!(sidecars::delete_expired(conn, time(0), time(3665), 9).await?, 0);
            assert_eq!(sidecars::delete_expired(conn, time(0), time(3666), 9).await?, 1);
            let process =
                EndedProcess { service: SERVICE, instance: other.key.instance, api_key: ApiKeyId::from_bits(880) };
            assert!(!sidecars::forget(conn, &process).await?, "the process runs, whatever another one says");
            sidecars::end(conn, FIRST, &other, time(9)).await?;
            let of_other_key = EndedProcess { api_key: ApiKeyId::from_bits(881), ..process };
            assert!(sidecars::forget(conn, &of_other_key).await?, "there is none");
            assert_eq!(sidecars::recorded_after(conn, (SERVICE, time(0)), None, 9).await?.len(), 1);
            assert!(sidecars::forget(conn, &process).await?);
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
            let recorded = sidecars::record(conn, SECOND, &new).await?;
            assert_eq!(recorded, Recorded::Confirmed(Some(time(8))), "the later confirmation remains");
            let others = [FIRST, StreamId { number: 2, ..SECOND }];
            for other in others {
                sidecars::update(conn, other, &old).await?;
                sidecars::end(conn, other, &sidecar, time(9)).await?;
                sidecars::delete(conn, other, &sidecar).await?;
            }
            Ok(())
        })
        .await;
        let found = &self.sidecars(time(9)).await[0];
        assert_eq!((found.in_force, found.last_known_confirmation), (Revision::new(7), Some(time(8))));
        self.commit(async |tx| sidecars::delete(tx.conn(), SECOND, &sidecar).await).await;
        assert_eq!(self.sidecars(time(9)).await, []);
    }

    /// A control plane that could not write for a while writes its streams late.
    pub async fn later_stream_of_a_sidecar_is_not_replaced(&self) {
        let sidecar = identity(1);
        let of_first = |number| StreamId { number, ..FIRST };
        let new = record(&sidecar, progress(7, 7, None), Some(time(2)));
        self.commit(async |tx| {
            let conn = tx.conn();
            sidecars::record(conn, StreamId { number: 5, ..SECOND }, &new).await?;
            let late = record(&sidecar, progress(9, 9, None), Some(time(3)));
            assert_eq!(sidecars::record(conn, of_first(4), &late).await?, Recorded::Superseded);
            let found = sidecars::recorded_after(conn, (SERVICE, time(0)), None, 9).await?;
            assert_eq!((&*found[0].control_plane, found[0].stream), ("second", 5));
            assert!(matches!(sidecars::record(conn, of_first(5), &new).await?, Recorded::Confirmed(_)), "again");
            assert!(matches!(sidecars::record(conn, of_first(6), &new).await?, Recorded::Confirmed(_)));
            sidecars::delete(conn, of_first(6), &sidecar).await
        })
        .await;
    }

    /// The process may decide with what an earlier stream has confirmed, under the settings of this stream.
    pub async fn new_stream_of_a_sidecar_forgets_nothing(&self) {
        let sidecar = identity(1);
        let long = NewRecord { max_staleness: STALENESS * 2, ..record(&sidecar, progress(5, 5, None), None) };
        let without_view = record(&sidecar, progress(0, 0, None), None);
        self.commit(async |tx| {
            let conn = tx.conn();
            assert_eq!(sidecars::record(conn, FIRST, &long).await?, Recorded::Confirmed(None), "it is new");
            let again = NewRecord { connected_at: time(4), ..without_view };
            assert_eq!(sidecars::record(conn, FIRST, &again).await?, Recorded::Confirmed(Some(time(4))));
            sidecars::end(conn, FIRST, &sidecar, time(5)).await?;
            Ok(())
        })
        .await;
        assert_eq!(self.sidecars(time(124)).await[0].max_staleness, STALENESS * 2);
        assert_eq!(self.sidecars(time(125)).await, [], "it expires after the longer one");
        self.commit(async |tx| sidecars::delete(tx.conn(), FIRST, &sidecar).await).await;
    }

    pub async fn unknown_sidecars_count_for_the_longest_known_staleness(&self) {
        let sidecar = identity(1);
        self.commit(async |tx| {
            let conn = tx.conn();
            sidecars::record(conn, FIRST, &record(&sidecar, progress(9, 9, None), None)).await?;
            sidecars::record_unknown(conn, time(7), STALENESS / 2).await?;
            sidecars::record_unknown(conn, time(8), STALENESS * 2).await
        })
        .await;
        let unknown = async |since| {
            let mut read = self.read().await;
            let position = (sidecars::OF_ANY_SERVICE, since);
            sidecars::recorded_after(read.conn(), position, None, 9).await.unwrap()
        };
        let [row] = &unknown(time(9)).await[..] else { panic!("there is not one row") };
        let listed = row.clone().into_sidecar();
        assert_eq!(listed.identity.key.instance, SidecarInstance::MERGED);
        assert_eq!((listed.in_force, listed.max_staleness), (Revision::default(), STALENESS * 2));
        assert_eq!(listed.confirmed, LastConfirmation::By(time(8)));
        self.commit(async |tx| sidecars::record_unknown(tx.conn(), time(9), STALENESS / 2).await).await;
        let until = time(9).saturating_add(STALENESS * 2);
        assert_eq!(
            unknown(until.saturating_sub(Duration::from_micros(1))).await.len(),
            1,
            "the staleness is still the longest"
        );
        assert_eq!(unknown(until).await, []);
        self.commit(async |tx| {
            assert_eq!(sidecars::delete_expired(tx.conn(), time(0), time(4000), 99).await?, 1);
            sidecars::delete(tx.conn(), FIRST, &sidecar).await
        })
        .await;
    }

    pub async fn oldest_sidecars_without_a_stream_become_one_row(&self) {
        let ended: Vec<_> = (1..=5).map(identity).collect();
        self.commit(async |tx| {
            let conn = tx.conn();
            for (sidecar, second) in ended.iter().zip([5, 1, 2, 3, 4]) {
                let new = record(sidecar, progress(9, 9, None), Some(time(second)));
                sidecars::record(conn, FIRST, &new).await?;
                sidecars::end(conn, FIRST, sidecar, time(second)).await?;
            }
            sidecars::merge_oldest_ended(conn, SERVICE, 5).await?;
            assert_eq!(
                sidecars::list(conn, (SERVICE, time(9)), whole_list()).await?.items.len(),
                5,
                "there are not too many"
            );
            sidecars::merge_oldest_ended(conn, SERVICE, 4).await?;
            sidecars::merge_oldest_ended(conn, SERVICE, 3).await?;
            Ok(())
        })
        .await;
        let listed = self.sidecars(time(5)).await;
        let instances: Vec<_> = listed.iter().map(|sidecar| sidecar.identity.key.instance).collect();
        let [first, fourth, fifth] = [0, 3, 4].map(|index: usize| ended[index].key.instance);
        assert_eq!(instances, [SidecarInstance::MERGED, first, fourth, fifth], "the two oldest ones are merged");
        assert_eq!((listed[0].in_force, listed[0].confirmed), (Revision::default(), LastConfirmation::By(time(2))));
        self.commit(async |tx| {
            assert_eq!(
                sidecars::delete_expired(tx.conn(), time(0), time(3662), 9).await?,
                1,
                "it expires as the later one"
            );
            assert_eq!(sidecars::delete_expired(tx.conn(), time(0), time(3699), 9).await?, 3);
            Ok(())
        })
        .await;
    }

    /// Leaves values for the test `every_column_was_written`.
    pub async fn streams_of_killed_control_planes_end(&self) {
        let (killed, alive) = (identity(1), identity(2));
        let peer = |seen_at, is_killed| Peer { id: "first".to_owned(), seen_at: time(seen_at), is_killed };
        self.commit(async |tx| {
            let conn = tx.conn();
            for (stream, sidecar) in [(FIRST, &killed), (SECOND, &alive)] {
                sidecars::record(conn, stream, &record(sidecar, progress(5, 5, Some(time(2))), Some(time(1)))).await?;
            }
            for name in ["first", "second", "first"] {
                assert!(sidecars::record_control_plane(conn, (name, true), (time(2), Revision::new(50))).await?);
            }
            assert_eq!(sidecars::peers(conn, "second").await?, [peer(2, false)]);
            assert!(sidecars::record_control_plane(conn, ("first", false), (time(3), Revision::new(50))).await?);
            sidecars::mark_killed(conn, &peer(2, false), time(32)).await?;
            assert!(sidecars::is_registered(conn, "first").await?, "it has written since");
            sidecars::mark_killed(conn, &peer(3, false), time(33)).await?;
            assert_eq!(sidecars::peers(conn, "second").await?, [peer(3, true)]);
            assert!(!sidecars::is_registered(conn, "first").await?);
            for name in [("first", false), ("first", true), ("other", false)] {
                assert!(!sidecars::record_control_plane(conn, name, (time(34), Revision::new(60))).await?, "{name:?}");
            }
            Ok(())
        })
        .await;
        let before = &self.sidecars(time(34)).await[0];
        assert_eq!((before.confirmed, before.is_connected), (LastConfirmation::Continuing, false));
        assert_eq!(before.in_force, Revision::new(5), "it may have missed later changes");
        self.commit(async |tx| sidecars::end_streams_of_killed(tx.conn(), "first", time(35), 9).await).await;
        let [ended, served] = &self.sidecars(time(36)).await[..] else { panic!("there are two sidecars") };
        // It may have been confirmed until its control plane was marked.
        assert_eq!((ended.confirmed, ended.is_connected), (LastConfirmation::By(time(35)), false));
        assert_eq!((served.in_force, served.is_connected), (Revision::new(50), true));
        assert_eq!(self.sidecars(time(95)).await.len(), 1);
        self.commit(async |tx| {
            sidecars::end_streams_of_killed(tx.conn(), "first", time(36), 9).await?;
            assert_eq!(sidecars::peers(tx.conn(), "second").await?, []);
            sidecars::record_control_plane(tx.conn(), ("third", true), (time(36), Revision::new(50))).await?;
            sidecars::mark_killed(tx.conn(), &Peer { id: "third".to_owned(), ..peer(36, false) }, time(37)).await
        })
        .await;
    }

    /// Leaves values for the test `every_column_was_written`.
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
            assert_eq!(unconfirmed_changes::list(conn, "chai", 9).await?, [changes(5, 9, (1, 2))]);
            assert_eq!(unconfirmed_changes::list(conn, "chain", 9).await?, []);
            assert!(unconfirmed_changes::is_first(conn, &changes(5, 6, (1, 1))).await?);
            unconfirmed_changes::remove(conn, &changes(5, 6, (1, 1))).await?;
            assert!(
                !unconfirmed_changes::is_first(conn, &changes(5, 6, (1, 1))).await?,
                "another process has confirmed it"
            );
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
