//! End a token before its time (RFC 7009). Whoever has it may: possession is the authority.

use crate::{
    domain::{change::Change, credential::Credential},
    operations::{Context, OperationError},
    store::{Conn, Write, agents, feed, sessions, signing_keys},
};
use countersign_identity::{Claims, RefreshId, SessionId, UnverifiedToken};

/// Revokes: a refresh token ends its login with all its tokens, an access token itself only. What is none of ours,
/// or dead, has nothing to be ended, and nobody learns which it was.
pub async fn revoke_token(context: &Context, token: &str) -> Result<(), OperationError> {
    if let Some(presented) = Credential::<RefreshId>::parse(token) {
        return revoke_login(context, &presented).await;
    }
    let Ok(unverified) = UnverifiedToken::parse(token) else { return Ok(()) };
    let keys = signing_keys::ring(context.store.read().await?.conn()).await?.set();
    match unverified.verify(&keys) {
        Ok(signed) if context.now() < signed.claims().expires_at() => revoke_access(context, signed.claims()).await,
        Ok(_) | Err(_) => Ok(()),
    }
}

/// A used refresh token ends its login too: whoever has it was given that login, and wants it ended.
async fn revoke_login(context: &Context, presented: &Credential<RefreshId>) -> Result<(), OperationError> {
    let found = sessions::find_token_by_credential(context.store.read().await?.conn(), presented).await?;
    let Some(token) = found else { return Ok(()) };
    let work = async |mut tx: Write| {
        end_session(&mut tx, token.session).await?;
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    context.store.write("revoke_login", work).await
}

async fn revoke_access(context: &Context, claims: &Claims) -> Result<(), OperationError> {
    if is_revoked(context.store.read().await?.conn(), claims).await? {
        return Ok(());
    }
    let work = async |mut tx: Write| {
        // Of two who revoke it at once, the second sees what the first has noted.
        agents::lock(tx.conn(), claims.sub).await?;
        if !is_revoked(tx.conn(), claims).await? {
            tx.record_change(Change::Token(claims.jti));
        }
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    context.store.write("revoke_token", work).await
}

/// Ends a login; if it had ended before, nothing changes.
pub(in crate::operations) async fn end_session(tx: &mut Write, session: SessionId) -> Result<(), OperationError> {
    let now = tx.now();
    if sessions::end(tx.conn(), session, now).await? {
        tx.record_change(Change::Session(session));
    }
    Ok(())
}

/// Whether the token or its login was revoked. That a token was is remembered by its change, which is forgotten
/// with the floor: the token is below that then, and refused for it.
pub(in crate::operations) async fn is_revoked(conn: &mut Conn, claims: &Claims) -> Result<bool, OperationError> {
    let session = sessions::find(conn, claims.sid).await?;
    Ok(session.is_some_and(|session| session.ended_at.is_some()) || feed::token_is_revoked(conn, claims.jti).await?)
}
