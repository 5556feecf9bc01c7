//! Round trips of sessions, refresh tokens, signing keys, idempotency keys and the row of the Countersign deployment.

use super::{agent, public_key, service, time, whole_list};
use crate::{
    domain::{
        credential::Credential,
        idempotency::{RESPONSE_RETENTION, RequestFingerprint, StoredResponse},
        session::{RefreshToken, Session},
        signing_key::SigningKey,
    },
    store::{
        StoreError, WriteTransaction, agents,
        conformance::StoreFixture,
        deployment::{self, Quarantine, QuarantineReason},
        feed, idempotency,
        logins::{self, IssueBasis, IssueQuery, LoginQuery},
        master_keys, sessions, signing_keys, sqlite_file,
    },
};
use countersign_identity::{AgentId, RefreshId, Revision, Scope, ServiceId, SessionId};
use sqlx::{Connection, SqliteConnection};
use std::time::Duration;
use zeroize::Zeroizing;

pub(super) fn session() -> Session {
    Session {
        id: SessionId::from_bits(1),
        agent: agent().id,
        service: Some(service().id),
        scope: Scope::try_from("read write").ok(),
        started_at: time(50),
        started_revision: Revision::new(51),
        expires_at: time(52),
        ended_at: None,
    }
}

impl StoreFixture {
    pub async fn sessions_return_what_was_written(&self) {
        let expired = Session { id: SessionId::from_bits(2), expires_at: time(49), ..session() };
        self.commit(async |tx| {
            let sessions = [(&session(), "a challenge".to_owned()), (&expired, "another challenge".to_owned())];
            sessions::insert(tx.conn(), &sessions).await
        })
        .await;
        let other = Session { id: SessionId::from_bits(3), ..session() };
        let repeated = async |mut tx: WriteTransaction| {
            sessions::insert(tx.conn(), &[(&other, "a challenge".to_owned())]).await?;
            tx.commit(()).await
        };
        assert!(self.first.write("round_trip", repeated).await.is_err(), "a challenge begins one session");
        let mut read = self.read().await;
        let conn = read.conn();
        assert_eq!(sessions::find(conn, other.id).await.unwrap(), None);
        assert_eq!(sessions::find(conn, session().id).await.unwrap(), Some(session()));
        // At time 48, both sessions are live; they began at the same time, and the second has the higher id.
        let newest_first = [expired.id, session().id];
        for (agent, now, kept, limit, expected) in [
            (agent().id, 48, 0, 9, &newest_first[..]),
            (agent().id, 48, 0, 1, &newest_first[..1]),
            (agent().id, 48, 1, 9, &newest_first[1..]),
            (agent().id, 49, 0, 9, &newest_first[1..]),
            (AgentId::from_bits(2), 48, 0, 9, &[]),
        ] {
            let listed = sessions::list_live_beyond(conn, agent, time(now), (kept, limit)).await.unwrap();
            assert_eq!(listed, expected);
        }
        drop(read);
        self.commit(async |tx| {
            assert_eq!(sessions::mark_ended(tx.conn(), &[session().id], time(54)).await?, [session().id]);
            assert_eq!(sessions::mark_ended(tx.conn(), &[session().id], time(55)).await?, []);
            assert_eq!(sessions::oldest_expiry(tx.conn(), time(0)).await?, Some(expired.expires_at));
            assert_eq!(sessions::delete_expired(tx.conn(), (time(0), expired.expires_at), 9).await?, 0);
            assert_eq!(sessions::delete_expired(tx.conn(), (expired.expires_at, session().expires_at), 9).await?, 1);
            assert_eq!(sessions::oldest_expiry(tx.conn(), time(0)).await?, Some(session().expires_at));
            Ok(())
        })
        .await;
        let mut read = self.read().await;
        let ended = Session { ended_at: Some(time(54)), ..session() };
        assert_eq!(sessions::find(read.conn(), session().id).await.unwrap(), Some(ended));
        assert_eq!(sessions::find(read.conn(), expired.id).await.unwrap(), None);
        let live = sessions::list_live_beyond(read.conn(), agent().id, time(48), (0, 9)).await.unwrap();
        assert_eq!(live, [], "an ended session is not live");
    }

    /// Must run when all other sessions expire after time 47.
    pub async fn ended_session_is_deleted_like_one_that_expired_then(&self) {
        let session = Session { id: SessionId::from_bits(72), ..session() };
        self.commit(async |tx| {
            sessions::insert(tx.conn(), &[(&session, "challenge of an ended session".to_owned())]).await?;
            assert_eq!(sessions::mark_ended(tx.conn(), &[session.id], time(46)).await?, [session.id]);
            let ended = Session { ended_at: Some(time(46)), expires_at: time(46), ..session.clone() };
            assert_eq!(sessions::find(tx.conn(), session.id).await?, Some(ended));
            assert_eq!(sessions::oldest_expiry(tx.conn(), time(0)).await?, Some(time(46)));
            assert_eq!(sessions::delete_expired(tx.conn(), (time(0), time(46)), 9).await?, 0);
            assert_eq!(sessions::delete_expired(tx.conn(), (time(0), time(47)), 9).await?, 1);
            Ok(())
        })
        .await;
    }

    /// A session can have any number of refresh tokens. Must run when all sessions expire after time 40.
    pub async fn expired_session_is_deleted_in_batches(&self) {
        const TOKENS: u128 = 25;
        let [first, second] =
            [70, 71].map(|id| Session { id: SessionId::from_bits(id), expires_at: time(40), ..session() });
        self.commit(async |tx| {
            let sessions =
                [(&first, "challenge of many tokens".to_owned()), (&second, "challenge of no token".to_owned())];
            sessions::insert(tx.conn(), &sessions).await?;
            let token = |number| {
                let secret = Credential::new(RefreshId::from_bits(700 + number), Zeroizing::new([1; 32]));
                let (id, secret) = (secret.id(), secret.hash());
                (RefreshToken { id, session: first.id, secret, issued_at: time(30), used_at: None }, None)
            };
            let tokens: Vec<_> = (0..TOKENS).map(token).collect();
            sessions::insert_tokens(tx.conn(), &tokens, time(31)).await
        })
        .await;
        let mut deleted = Vec::new();
        while sessions::oldest_expiry(self.read().await.conn(), time(0)).await.unwrap() == Some(time(40)) {
            deleted.push(
                self.commit(async |tx| sessions::delete_expired(tx.conn(), (time(40), time(41)), 10).await).await,
            );
        }
        assert!(deleted.iter().all(|rows| (1..=10).contains(rows)), "{deleted:?}");
        assert_eq!(u128::from(deleted.iter().sum::<u64>()), TOKENS + 2);
        let mut read = self.read().await;
        for session in [first, second] {
            assert_eq!(sessions::find(read.conn(), session.id).await.unwrap(), None);
        }
    }

    pub async fn logins_read_what_was_written(&self) {
        let (unknown_agent, unknown_service) = (AgentId::from_bits(98), ServiceId::from_bits(98));
        let mut read = self.read().await;
        let conn = read.conn();
        let stored = agents::find(conn, agent().id).await.unwrap().unwrap();
        let position = feed::position(conn).await.unwrap();
        let master_key = master_keys::find(conn).await.unwrap().current;
        let cases = [
            (stored.id, Some(service().id), Some("a challenge"), (Some(stored.status), true, true)),
            (stored.id, None, Some("a third challenge"), (Some(stored.status), false, false)),
            (unknown_agent, Some(unknown_service), Some("a challenge"), (None, false, true)),
            (stored.id, Some(service().id), None, (Some(stored.status), true, false)),
        ];
        let queries = cases.map(|(agent, service, challenge, _)| {
            let challenge = challenge.map(str::to_owned);
            LoginQuery { agent, service, challenge }
        });
        let bases = logins::read_for_logins(conn, &queries).await.unwrap();
        for (basis, (id, _, _, expected)) in bases.iter().zip(cases) {
            assert_eq!((basis.status, basis.has_service, basis.challenge_is_used), expected);
            let key = (id == stored.id).then_some(stored.registration.key);
            assert_eq!(basis.public_key().unwrap(), key);
            assert_eq!((basis.restore_revision, &basis.master_key), (position.cutoff, &master_key));
        }
        assert_eq!(bases.len(), cases.len());
        drop(read);
        self.issues_read_what_was_written().await;
    }

    async fn issues_read_what_was_written(&self) {
        let [first, second] =
            [73, 74].map(|id| Session { id: SessionId::from_bits(id), expires_at: time(80), ..session() });
        let begun = [(&first, "a fourth challenge".to_owned()), (&second, "a fifth challenge".to_owned())];
        self.commit(async |tx| sessions::insert(tx.conn(), &begun).await).await;
        let other_agent = AgentId::from_bits(98);
        for (challenge, now, quota, challenge_is_used, live_sessions) in [
            (Some("a fourth challenge"), 79, 9, true, 2),
            (Some("a third challenge"), 79, 1, false, 1),
            (Some("a third challenge"), 80, 9, false, 0),
            (None, 79, 9, false, 0),
        ] {
            let query = |agent| IssueQuery { agent, audience: None, challenge: challenge.map(str::to_owned) };
            let queries = [query(other_agent), query(agent().id)];
            let mut read = self.read().await;
            let bases = logins::read_for_issue(read.conn(), &queries, time(now), (9, quota)).await.unwrap();
            let expected = IssueBasis { other_audiences: 0, challenge_is_used, live_sessions };
            let unknown = IssueBasis { live_sessions: 0, ..expected };
            assert_eq!(bases, [(other_agent, unknown), (agent().id, expected)].into());
        }
        let expired = self.commit(async |tx| sessions::delete_expired(tx.conn(), (time(80), time(81)), 9).await).await;
        assert_eq!(expired, 2);
    }

    pub async fn refresh_tokens_return_what_was_written(&self) {
        let credential = Credential::new(RefreshId::from_bits(1), Zeroizing::new([1; 32]));
        let wrong = Credential::new(RefreshId::from_bits(1), Zeroizing::new([2; 32]));
        let (id, secret) = (credential.id(), credential.hash());
        let token = RefreshToken { id, session: session().id, secret, issued_at: time(53), used_at: None };
        let tokens = [(token.clone(), Some(service().id))];
        self.commit(async |tx| sessions::insert_tokens(tx.conn(), &tokens, time(58)).await).await;
        let mut read = self.read().await;
        let conn = read.conn();
        let session = sessions::find(conn, session().id).await.unwrap().unwrap();
        let found = sessions::find_tokens_by_credential(conn, &[&credential]).await.unwrap();
        assert_eq!(found, [(token.clone(), session.clone())]);
        assert_eq!(sessions::find_tokens_by_credential(conn, &[&wrong]).await.unwrap(), []);
        assert_eq!(sessions::find_agent_by_token(conn, id).await.unwrap(), Some(agent().id));
        drop(read);
        self.commit(async |tx| {
            sessions::mark_tokens_used(tx.conn(), &[id], time(56)).await?;
            let second_use = sessions::mark_tokens_used(tx.conn(), &[id], time(57)).await;
            assert!(matches!(second_use, Err(StoreError::UnexpectedRowCount(_))));
            Ok(())
        })
        .await;
        let used = RefreshToken { used_at: Some(time(56)), ..token };
        let stored = sessions::find_tokens_by_credential(self.read().await.conn(), &[&credential]).await.unwrap();
        assert_eq!(stored, [(used, session)]);
    }

    pub async fn signing_keys_return_what_was_written(&self) {
        let publish = |number, at| SigningKey::new_published(public_key(number), time(at), Duration::from_secs(99));
        let (mut signing, next) = (SigningKey { signs_from: Some(time(61)), ..publish(7, 60) }, publish(8, 62));
        self.commit(async |tx| {
            signing_keys::insert(tx.conn(), &signing, "a sealed key").await?;
            signing_keys::insert(tx.conn(), &next, "another sealed key").await
        })
        .await;
        let mut read = self.read().await;
        let conn = read.conn();
        let listed = signing_keys::list(conn, &whole_list()).await.unwrap();
        assert_eq!((listed.items, listed.total.count), (vec![next.clone(), signing.clone()], 2));
        assert_eq!(
            signing_keys::find_sealed_private(conn, &signing.kid).await.unwrap().as_deref(),
            Some("a sealed key")
        );
        drop(read);

        signing.signs_from = Some(time(63));
        signing.retires_at = Some(time(64));
        signing.token_lifetime = Duration::from_secs(65);
        signing.removed_at = Some(time(66));
        signing.revoked_at = Some(time(67));
        self.commit(async |tx| signing_keys::update(tx.conn(), &signing).await).await;
        let mut read = self.read().await;
        let conn = read.conn();
        assert_eq!(signing_keys::list(conn, &whole_list()).await.unwrap().items, [next.clone(), signing.clone()]);
        let ring = signing_keys::load_ring(conn).await.unwrap();
        assert_eq!(ring.keys().to_vec(), [next]);
        assert_eq!(signing_keys::find_sealed_private(conn, &signing.kid).await.unwrap(), None);
        assert!(signing_keys::exists(conn, &signing.kid).await.unwrap());
    }

    pub async fn idempotency_keys_return_what_was_written(&self) {
        let request = |body: &str| RequestFingerprint { id: "an id".to_owned(), body_digest: body.to_owned() };
        let (one, other) = (request("a body"), request("another body"));
        let (now, expired) = (time(0), time(0).saturating_add(RESPONSE_RETENTION));
        self.commit(async |tx| {
            let conn = tx.conn();
            assert_eq!(idempotency::claim_key(conn, &one, now).await?, StoredResponse::New);
            idempotency::set_response(conn, &one, "a response").await?;
            assert_eq!(idempotency::oldest_expiry(conn, expired).await?, Some(expired));
            assert_eq!(idempotency::delete_expired(conn, (time(0), now), 9).await?, 0);
            let stored = StoredResponse::Completed("a response".to_owned());
            assert_eq!(idempotency::claim_key(conn, &one, now).await?, stored);
            assert_eq!(idempotency::claim_key(conn, &other, now).await?, StoredResponse::BodyDiffers);
            assert_eq!(idempotency::claim_key(conn, &other, expired).await?, StoredResponse::New);
            assert_eq!(idempotency::delete_expired(conn, (time(0), expired), 9).await?, 0);
            let empty = StoredResponse::Completed(String::new());
            assert_eq!(idempotency::claim_key(conn, &other, expired).await?, empty);
            Ok(())
        })
        .await;
    }

    /// The columns of the table `deployment` that are written only once are read by the test `creates_one_deployment`.
    pub async fn deployment_returns_what_was_written(&self) {
        let fingerprint = "1 2 3 4";
        let write = async |tx: &mut crate::store::WriteTransaction| {
            deployment::lock(tx.conn()).await?;
            tx.check_write().await?;
            deployment::set_instance_fingerprint(tx.conn(), fingerprint).await
        };
        self.commit(write).await;
        let stored = deployment::find_instance_fingerprint(self.read().await.conn()).await.unwrap();
        assert_eq!(stored.as_deref(), Some(fingerprint));
        assert_eq!(deployment::find_quarantine(self.read().await.conn()).await.unwrap(), None);

        let quarantine = Quarantine { reason: QuarantineReason::Migrating, at: time(70) };
        self.set_quarantine(quarantine).await;
        let stored = deployment::find_quarantine(self.read().await.conn()).await.unwrap();
        assert_eq!(stored, Some(quarantine));
        self.commit(async |tx| deployment::lift_quarantine(tx.conn()).await).await;
        assert_eq!(deployment::find_quarantine(self.read().await.conn()).await.unwrap(), None);
        assert_eq!(deployment::find_instance_fingerprint(self.read().await.conn()).await.unwrap(), None);
        // The test `every_column_was_written` needs values in all columns of the table `deployment`.
        self.commit(write).await;
        self.set_quarantine(quarantine).await;
    }

    /// Sets the quarantine mark directly on PostgreSQL, because the store sets the mark on SQLite only.
    async fn set_quarantine(&self, quarantine: Quarantine) {
        if self.is_sqlite() {
            let mut connection = SqliteConnection::connect(&self.url).await.unwrap();
            sqlite_file::set_quarantine(&mut connection, Some(quarantine)).await.unwrap();
            connection.close().await.unwrap();
            return;
        }
        let Quarantine { reason, at } = quarantine;
        self.commit(async |tx| {
            let query = sqlx::query("UPDATE deployment SET quarantined_at = $1, quarantine_reason = $2 WHERE id = 1");
            query.bind(at.micros()).bind(reason.as_str()).execute(tx.conn()).await?;
            Ok(())
        })
        .await;
    }
}
