//! Token revocation (RFC 7009). Possession of a token authorizes its revocation.

use crate::{
    domain::{change::Change, session::RefreshToken},
    operations::{Context, OperationError},
    store::{Conn, StoreError, WriteTransaction, agents, feed, sessions, signing_keys},
};
use countersign_identity::{Audience, Claims, Revision, SessionId, UnverifiedToken};

/// Revokes a token. Revoking a refresh token ends its session, which invalidates all tokens of the session. Revoking an access token
/// affects only this token. Unknown and expired tokens cause no change and no error. Returns a revision from which on sidecars refuse
/// the token.
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

/// Ends the session of a refresh token, even of one that was used before: whoever has any refresh token of a session may end it.
async fn revoke_session(context: &Context, token: &RefreshToken) -> Result<Revision, OperationError> {
    let session = context.store.read_one(async |conn: &mut Conn| sessions::find(conn, token.session()).await).await?;
    let session = session.filter(|session| session.issued(token) && session.ended_at.is_none());
    let Some(session) = session else { return newest_revision(context).await };
    let work = async |mut tx: WriteTransaction| {
        agents::lock(tx.conn(), session.agent).await?;
        end_sessions(&mut tx, &[session.id]).await?;
        Ok::<_, OperationError>(tx.commit_change(()).await?)
    };
    Ok(context.store.write("revoke_session", work).await?.revision)
}

/// The newest revision, for tokens that sidecars already refuse: they were revoked before, or never valid.
async fn newest_revision(context: &Context) -> Result<Revision, OperationError> {
    Ok(feed::position(context.store.read().await?.conn()).await?.revision)
}

async fn revoke_access_token(context: &Context, claims: &Claims) -> Result<Revision, OperationError> {
    if is_revoked(context.store.read().await?.conn(), claims).await? {
        return newest_revision(context).await;
    }
    let work = async |mut tx: WriteTransaction| {
        // The lock on the agent serializes concurrent revocations, so the second one sees the change of the first.
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

/// Ends sessions that have not ended yet. The caller must hold the locks on the agents. Otherwise, a concurrent refresh could issue
/// a token for another service, whose sidecars would not receive the end of the session.
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

/// Whether an access token or its session was revoked.
///
/// We delete a session only when all its tokens have expired. If a token without a session seems to be valid, some clock was wrong,
/// so it counts as revoked. Only the change feed records the revocation of a single access token. Housekeeping deletes this record
/// when the revision floor has reached it. The token is older than the record, and tokens below the floor are refused anyway.
pub(in crate::operations) async fn is_revoked(conn: &mut Conn, claims: &Claims) -> Result<bool, OperationError> {
    let session = sessions::find(conn, claims.sid).await?;
    Ok(session.is_none_or(|session| session.ended_at.is_some()) || feed::token_is_revoked(conn, claims.jti).await?)
}
