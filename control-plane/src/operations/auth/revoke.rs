//! Token revocation (RFC 7009). Possession of a token authorizes its revocation.

use crate::{
    domain::{change::Change, credential::Credential},
    operations::{Context, OperationError},
    store::{Conn, Write, agents, feed, sessions, signing_keys},
};
use countersign_identity::{Claims, RefreshId, SessionId, UnverifiedToken};

/// Revokes a token. A refresh token ends its session with all tokens of it; an access token revokes only itself. Unknown and
/// expired tokens succeed without effect, and the response does not tell the difference.
pub async fn revoke_token(context: &Context, token: &str) -> Result<(), OperationError> {
    if let Some(presented) = Credential::<RefreshId>::parse(token) {
        return revoke_session(context, &presented).await;
    }
    let Ok(unverified) = UnverifiedToken::parse(token) else { return Ok(()) };
    let keys = signing_keys::ring(context.store.read().await?.conn()).await?.set();
    match unverified.verify(&keys) {
        Ok(signed) if context.now() < signed.claims().expires_at() => revoke_access(context, signed.claims()).await,
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Ends the session of a refresh token, including a used one: its holder was once given the session.
async fn revoke_session(context: &Context, presented: &Credential<RefreshId>) -> Result<(), OperationError> {
    let found = sessions::find_token_by_credential(context.store.read().await?.conn(), presented).await?;
    let Some(token) = found else { return Ok(()) };
    let work = async |mut tx: Write| {
        end_session(&mut tx, token.session).await?;
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    context.store.write("revoke_session", work).await
}

async fn revoke_access(context: &Context, claims: &Claims) -> Result<(), OperationError> {
    if is_revoked(context.store.read().await?.conn(), claims).await? {
        return Ok(());
    }
    let work = async |mut tx: Write| {
        // Serializes concurrent revocations, so that the second one sees the change of the first.
        agents::lock(tx.conn(), claims.sub).await?;
        if !is_revoked(tx.conn(), claims).await? {
            tx.record_change(Change::Token(claims.jti));
        }
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    context.store.write("revoke_token", work).await
}

/// Ends a session. Does nothing if it has already ended.
pub(in crate::operations) async fn end_session(tx: &mut Write, session: SessionId) -> Result<(), OperationError> {
    let now = tx.now();
    if sessions::end(tx.conn(), session, now).await? {
        tx.record_change(Change::Session(session));
    }
    Ok(())
}

/// Whether the token or its session was revoked. The record of a revoked token is its change in the feed. When the floor
/// passes that change, the token itself is below the floor and refused for that reason.
pub(in crate::operations) async fn is_revoked(conn: &mut Conn, claims: &Claims) -> Result<bool, OperationError> {
    let session = sessions::find(conn, claims.sid).await?;
    Ok(session.is_some_and(|session| session.ended_at.is_some()) || feed::token_is_revoked(conn, claims.jti).await?)
}
