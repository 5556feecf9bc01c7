//! Round trips of sessions, refresh tokens, signing keys and the row of the Countersign deployment.

use super::{agent, public_key, service, time, whole_list};
use crate::{
    domain::{
        agent::{Agent, Registration},
        session::{RefreshHashes, RefreshToken, Session},
        signing_key::SigningKey,
    },
    store::{
        Conn, agents,
        conformance::StoreFixture,
        deployment::{self, Quarantine, QuarantineReason},
        feed,
        logins::{self, IssueRecord, LoginAgent, LoginBasis, LoginQuery},
        query::params,
        sessions, signing_keys, sqlite_file,
    },
};
use countersign_identity::{AgentId, AgentStatus, Revision, Scope, ServiceId, SessionId, TrustScore};
use sqlx::{Connection, SqliteConnection};
use std::{collections::BTreeSet, time::Duration};
use zeroize::Zeroizing;

/// An agent and a service that no test creates.
pub(super) const UNKNOWN_AGENT: AgentId = AgentId::from_bits(98);
pub(super) const UNKNOWN_SERVICE: ServiceId = ServiceId::from_bits(98);

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
        audiences: [None, Some(service().id)].into(),
        refresh: RefreshHashes::of(&refresh_token(1)),
    }
}

fn refresh_token(secret: u8) -> RefreshToken {
    refresh_token_of(SessionId::from_bits(1), secret)
}

fn refresh_token_of(session: SessionId, secret: u8) -> RefreshToken {
    RefreshToken::new(session, Zeroizing::new([secret; 32]))
}

/// A login for a service, or for the default service of the agent.
pub(super) const fn login_query(agent: AgentId, service: Option<ServiceId>) -> LoginQuery {
    LoginQuery { agent, service, challenge: None }
}

/// The part of an agent that logins read.
fn login_agent(agent: &Agent) -> LoginAgent {
    let Registration { name, key, owner, .. } = &agent.registration;
    LoginAgent {
        id: agent.id,
        name: name.clone(),
        key: *key,
        has_owner: owner.is_some(),
        status: agent.status,
        cutoff: agent.cutoff,
        trust: agent.trust,
        last_seen_at: agent.last_seen_at,
        last_service: agent.last_service,
    }
}

impl StoreFixture {
    pub async fn sessions_return_what_was_written(&self) {
        let expired = Session { id: SessionId::from_bits(2), expires_at: time(49), ..session() };
        let other = Session { id: SessionId::from_bits(3), ..session() };
        self.commit(async |tx| {
            assert!(sessions::insert(tx.conn(), &session(), "a challenge").await?);
            assert!(sessions::insert(tx.conn(), &expired, "another challenge").await?);
            assert!(!sessions::insert(tx.conn(), &other, "a challenge").await?, "a challenge begins one session");
            Ok(())
        })
        .await;
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
            let listed = sessions::list_live_beyond(conn, agent, time(now), kept, limit).await.unwrap();
            assert_eq!(listed, expected);
        }
        drop(read);
        self.commit(async |tx| {
            assert_eq!(sessions::mark_ended(tx.conn(), &[session().id], time(54)).await?, [session().id]);
            assert_eq!(sessions::mark_ended(tx.conn(), &[session().id], time(55)).await?, []);
            assert_eq!(sessions::EXPIRED.oldest_deletable(tx.conn(), time(0)).await?, Some(expired.expires_at));
            // `delete` leaves rows that expired at exactly `until`.
            assert_eq!(sessions::EXPIRED.delete(tx.conn(), time(0), expired.expires_at, 9).await?, 0);
            assert_eq!(sessions::EXPIRED.delete(tx.conn(), expired.expires_at, session().expires_at, 9).await?, 1);
            assert_eq!(sessions::EXPIRED.oldest_deletable(tx.conn(), time(0)).await?, Some(session().expires_at));
            Ok(())
        })
        .await;
        let mut read = self.read().await;
        let ended = Session { ended_at: Some(time(54)), ..session() };
        assert_eq!(sessions::find(read.conn(), session().id).await.unwrap(), Some(ended));
        assert_eq!(sessions::find(read.conn(), expired.id).await.unwrap(), None);
        let live = sessions::list_live_beyond(read.conn(), agent().id, time(48), 0, 9).await.unwrap();
        assert_eq!(live, [], "an ended session is not live");
    }

    pub async fn logins_read_what_was_written(&self) {
        let session = Session { id: SessionId::from_bits(73), expires_at: time(80), ..session() };
        let used = "the challenge of this test";
        assert!(self.commit(async |tx| sessions::insert(tx.conn(), &session, used).await).await);
        let id = agent().id;
        let stored = agents::find(self.read().await.conn(), id).await.unwrap().unwrap();
        let position = feed::position(self.read().await.conn()).await.unwrap();
        for (agent, challenge, challenge_is_used) in [
            (id, Some(used), true),
            (id, Some("an unused challenge"), false),
            (id, None, false),
            (UNKNOWN_AGENT, Some(used), true),
        ] {
            let challenge = challenge.map(str::to_owned);
            let query = LoginQuery { challenge, ..login_query(agent, Some(UNKNOWN_SERVICE)) };
            let basis = logins::read(self.read().await.conn(), &query, time(79)).await.unwrap();
            let expected = LoginBasis {
                at: time(79),
                position,
                restored_at: None,
                agent: (agent == id).then(|| login_agent(&stored)),
                audience: query.service,
                has_service: false,
                challenge_is_used,
                audience_recorded_until: None,
                contacted_at: None,
                has_targets: false,
                roles: vec![],
            };
            assert_eq!(basis, expected);
        }
        let expired = self.commit(async |tx| sessions::EXPIRED.delete(tx.conn(), time(80), time(81), 9).await).await;
        assert_eq!(expired, 1);
    }

    /// Checks the statements that begin or refresh a session only if its agent is unchanged. Only PostgreSQL has such statements.
    pub async fn sessions_begin_and_continue_if_nothing_changed(&self) {
        if self.is_sqlite() {
            return;
        }
        let new = Session { id: SessionId::from_bits(76), expires_at: time(80), ..session() };
        let (challenge, service) = ("the challenge of the new session", service().id);
        let find = async || agents::find(self.read().await.conn(), new.agent).await.unwrap().unwrap();
        let before = find().await;
        let stored = login_agent(&before);
        let record = IssueRecord {
            issued_at: time(77),
            last_service: Some(service),
            audience: Some(service),
            recorded_until: None,
            contact: None,
        };
        let begin = async |agent: &LoginAgent| {
            self.commit(async |tx| logins::begin_if_unchanged(tx.conn(), agent, &record, &new, challenge).await).await
        };
        let changed_agents = [
            LoginAgent { id: UNKNOWN_AGENT, ..stored.clone() },
            LoginAgent { status: AgentStatus::Suspended, ..stored.clone() },
            LoginAgent { cutoff: Revision::new(stored.cutoff.number() + 1), ..stored.clone() },
            LoginAgent { trust: TrustScore::from_hundredths(1).unwrap(), ..stored.clone() },
            LoginAgent { last_service: Some(UNKNOWN_SERVICE), ..stored.clone() },
        ];
        for changed in &changed_agents {
            assert!(!begin(changed).await, "{changed:?}");
        }
        assert_eq!(sessions::find(self.read().await.conn(), new.id).await.unwrap(), None);
        assert_eq!(find().await, before);
        assert!(begin(&stored).await);
        let stored = LoginAgent { last_service: Some(service), ..stored };
        assert!(!begin(&stored).await, "the challenge was used");
        assert_eq!(sessions::find(self.read().await.conn(), new.id).await.unwrap().as_ref(), Some(&new));
        let seen = Agent { last_seen_at: Some(time(77)), last_service: Some(service), ..before };
        assert_eq!(find().await, seen);

        let [first, second, third] = [1, 2, 3].map(|secret| refresh_token_of(new.id, secret));
        let audiences = BTreeSet::from([Some(service)]);
        let next = Session { audiences: audiences.clone(), ..new.clone() };
        let refresh = async |agent: &LoginAgent, used: &RefreshToken, next_token: &RefreshToken| {
            self.commit(async |tx| {
                logins::refresh_if_unchanged(tx.conn(), agent, &record, &next, used, next_token).await
            })
            .await
        };
        for changed in &changed_agents {
            assert!(!refresh(changed, &first, &second).await, "{changed:?}");
        }
        assert!(refresh(&stored, &first, &second).await);
        assert!(!refresh(&stored, &first, &third).await, "the token was used");
        let found = sessions::find(self.read().await.conn(), new.id).await.unwrap().unwrap();
        assert_eq!((found.refresh.current, found.audiences), (second.hash(), audiences));
        self.commit(async |tx| sessions::mark_ended(tx.conn(), &[new.id], time(78)).await).await;
        assert!(!refresh(&stored, &second, &third).await, "the session has ended");
        self.commit(async |tx| sessions::EXPIRED.delete(tx.conn(), time(78), time(79), 9).await).await;
    }

    /// Expects that `sessions_return_what_was_written` has ended the session. Makes it live again, and ends it at the end.
    pub async fn refresh_tokens_return_what_was_written(&self) {
        let id = session().id;
        let (first, second, third) = (refresh_token(1), refresh_token(2), refresh_token(3));
        self.commit(async |tx| {
            let conn = tx.conn();
            // `changes_go_to_live_audiences` needs both services as audiences of the session.
            let audiences = BTreeSet::from([Some(ServiceId::from_bits(1)), Some(ServiceId::from_bits(2))]);
            let replace =
                async |conn: &mut Conn, used, new| sessions::replace_refresh_token(conn, used, new, &audiences).await;
            assert!(!replace(conn, &first, &second).await?, "the session has ended");
            conn.apply("UPDATE sessions SET ended_at = NULL WHERE id = $1", params![id]).await?;
            assert!(replace(conn, &first, &second).await?);
            assert!(!replace(conn, &first, &third).await?, "the token was used");
            let found = sessions::find(conn, id).await?.unwrap();
            assert_eq!((found.refresh.current, &found.audiences), (second.hash(), &audiences));
            assert!(replace(conn, &second, &first).await?, "the session has its first token again");
            sessions::mark_ended(conn, &[id], time(54)).await?;
            Ok(())
        })
        .await;
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
        // Lifting the quarantine also removes the fingerprint, so that any instance can serve the database.
        assert_eq!(deployment::find_instance_fingerprint(self.read().await.conn()).await.unwrap(), None);
    }

    /// Marks the database as one that must not be served. PostgreSQL needs SQL for this, because the store marks only SQLite.
    async fn set_quarantine(&self, quarantine: Quarantine) {
        if self.is_sqlite() {
            let mut connection = SqliteConnection::connect(&self.url).await.unwrap();
            sqlite_file::set_quarantine(&mut connection, Some(quarantine)).await.unwrap();
            connection.close().await.unwrap();
            return;
        }
        let Quarantine { reason, at } = quarantine;
        self.commit(async |tx| {
            let sql = "UPDATE deployment SET quarantined_at = $1, quarantine_reason = $2 WHERE id = 1";
            tx.conn().apply(sql, params![at, reason.as_str()]).await
        })
        .await;
    }
}
