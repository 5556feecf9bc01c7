//! Token revocation (RFC 7009). Possession of a token authorizes its revocation.

use crate::{
    domain::{change::Change, session::RefreshToken},
    operations::{Context, OperationError},
    store::{Conn, StoreError, WriteTransaction, agents, feed, sessions, signing_keys},
};
use countersign_identity::{Audience, Claims, Revision, SessionId, UnverifiedToken};

/// Revokes a token. The revocation of a refresh token ends its session, which invalidates all tokens of the session. The
/// revocation of an access token affects only that token. Unknown and expired tokens cause no change and no error. Returns the
/// revision from which on sidecars refuse the token.
pub async fn revoke_token(context: &Context, token: &str) -> Result<Revision, OperationError> {
    if let Some(refresh) = RefreshToken::parse(token) {
        return revoke_session(context, &refresh).await;
    }
    let Ok(unverified) = UnverifiedToken::parse(token) else { return newest_revision(context).await };
    let keys = signing_keys::load_ring(context.store.read().await?.conn()).await?.key_set();
    match unverified.verify(&keys) {
        Ok(signed) if context.now() < signed.claims().expires_at() => {
            revoke_access_token(context, signed.claims()).await
        }
        Ok(_) | Err(_) => newest_revision(context).await,
    }
}

/// Ends the session of a refresh token. A used refresh token can also end its session, because possession of any refresh
/// token of a session authorizes the end of the session.
async fn revoke_session(context: &Context, token: &RefreshToken) -> Result<Revision, OperationError> {
    let session = context.store.read_one(async |conn: &mut Conn| sessions::find(conn, token.session()).await).await?;
    let live = session.filter(|session| session.issued(token) && session.ended_at.is_none());
    let Some(session) = live else { return newest_revision(context).await };
    let work = async |mut tx: WriteTransaction| {
        agents::lock(tx.conn(), session.agent).await?;
        end_sessions(&mut tx, &[session.id]).await?;
        Ok::<_, OperationError>(tx.commit_change(()).await?)
    };
    Ok(context.store.write("revoke_session", work).await?.revision)
}

/// The newest revision: a token that was revoked before, or that never was valid, is refused from an earlier revision on.
async fn newest_revision(context: &Context) -> Result<Revision, OperationError> {
    Ok(feed::position(context.store.read().await?.conn()).await?.revision)
}

async fn revoke_access_token(context: &Context, claims: &Claims) -> Result<Revision, OperationError> {
    if is_revoked(context.store.read().await?.conn(), claims).await? {
        return newest_revision(context).await;
    }
    let work = async |mut tx: WriteTransaction| {
        // The lock on the agent serializes concurrent revocations, so that the second transaction sees the change of the
        // first.
        agents::lock(tx.conn(), claims.sub).await?;
        if !is_revoked(tx.conn(), claims).await? {
            let audience = match claims.audience() {
                Some(Audience::Service(service)) => Some(service),
                Some(Audience::Unbound) | None => None,
            };
            tx.record_change(Change::Token(claims.jti, audience));
        }
        Ok::<_, OperationError>(tx.commit_change(()).await?)
    };
    Ok(context.store.write("revoke_token", work).await?.revision)
}

/// Ends sessions. Does nothing to a session that has already ended. The caller must hold the locks on the agents, so that no
/// concurrent refresh issues a token for another service.
pub(in crate::operations) async fn end_sessions(
    tx: &mut WriteTransaction,
    sessions: &[SessionId],
) -> Result<(), StoreError> {
    let now = tx.now();
    for ended in sessions::mark_ended(tx.conn(), sessions, now).await? {
        tx.record_change(Change::Session(ended));
    }
    Ok(())
}

/// Whether an access token or its session was revoked. A session is deleted only when all its tokens have expired, so a token
/// whose session does not exist counts as revoked: the clock of a replica may have been behind when the session ended. The
/// revocation of an access token is recorded only as a change in the change feed. When the revision floor (the oldest revision
/// from which a sidecar can resume) passes the change that records a revocation, the revision of the revoked token is below the
/// floor, and the token is refused because of its revision.
pub(in crate::operations) async fn is_revoked(conn: &mut Conn, claims: &Claims) -> Result<bool, OperationError> {
    let session = sessions::find(conn, claims.sid).await?;
    Ok(session.is_none_or(|session| session.ended_at.is_some()) || feed::token_is_revoked(conn, claims.jti).await?)
}
