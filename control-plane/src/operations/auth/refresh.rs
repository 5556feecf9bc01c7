//! Refresh token rotation: every refresh replaces the refresh token.

use super::{
    failed_logins::emit_failed_login,
    revoke::end_session,
    tokens::{PreparedTokens, TokenAudience, UnsignedToken, issue_tokens},
};
use crate::{
    domain::{credential::Credential, session::RefreshToken, webhook::event::LoginFailureReason},
    operations::{Context, NotFound, OperationError, TokenPair},
    store::{CommittedTransaction, Conn, WriteTransaction, agents, feed, services, sessions},
};
use countersign_identity::{AgentId, Reason, RefreshId, Revision, ServiceId};
use std::net::IpAddr;

/// The agent of a session, and the service that the session is bound to.
type SessionSubject = (AgentId, Option<ServiceId>);

/// A request for the next tokens with a refresh token whose secret is correct.
pub struct VerifiedRefresh {
    credential: Credential<RefreshId>,
    agent: AgentId,
    /// The service that the request names.
    service: Option<ServiceId>,
    client_address: Option<IpAddr>,
    is_usable: bool,
}

impl VerifiedRefresh {
    /// The agent of the session, if the refresh token was usable when it was read. A used token, or that of an ended session,
    /// may have been copied, so it proves nothing about its sender.
    pub fn proven_agent(&self) -> Option<AgentId> {
        self.is_usable.then_some(self.agent)
    }
}

/// Verifies the secret of a refresh token. Changes nothing.
pub async fn verify_refresh(
    context: &Context,
    token: &str,
    service: Option<ServiceId>,
    client_address: Option<IpAddr>,
) -> Result<VerifiedRefresh, OperationError> {
    let credential = Credential::<RefreshId>::parse(token).ok_or(Reason::RefreshInvalid)?;
    let find = async |conn: &mut Conn| sessions::find_token_by_credential(conn, &credential).await;
    let (token, session) = context.store.read_one(find).await?.ok_or(Reason::RefreshInvalid)?;
    // Only the transaction of the refresh knows whether a later revocation of the agent has ended the session.
    let is_usable = session.check_refresh(&token, Revision::default(), context.now()).is_ok();
    Ok(VerifiedRefresh { credential, agent: session.agent, service, client_address, is_usable })
}

/// Refreshes a session. The reuse of a used refresh token ends the session.
pub async fn refresh_session(context: &Context, refresh: &VerifiedRefresh) -> Result<TokenPair, OperationError> {
    let VerifiedRefresh { credential, agent, service, client_address, is_usable: _ } = refresh;
    let (agent, service, client_address) = (*agent, *service, *client_address);
    let prepared = PreparedTokens::new(context);
    let prepared_ref = &prepared;
    let work = async |mut tx: WriteTransaction| {
        // As for a login, the lock comes before the revision, and the revision before everything else.
        let agent = agents::lock_and_find(tx.conn(), agent).await?.ok_or(Reason::RefreshInvalid)?;
        let position = feed::position(tx.conn()).await?;
        let rev = position.revision;
        let found = sessions::find_token_by_credential(tx.conn(), credential).await?;
        let (token, session) = found.ok_or(Reason::RefreshInvalid)?;
        let now = tx.now();
        if let Some(named) = service {
            services::find_live(tx.conn(), named).await?.ok_or(OperationError::NotFound(NotFound::Service))?;
        }
        agent.require_active()?;
        if let Some(bound) = session.service {
            services::find_live(tx.conn(), bound).await?.ok_or(Reason::RefreshRevoked)?;
        }
        match session.check_refresh(&token, agent.cutoff.max(position.cutoff), now) {
            Ok(()) if sessions::mark_token_used(tx.conn(), token.id, now).await? => {}
            Ok(()) | Err(Reason::RefreshReused) => {
                return end_session_after_reuse(tx, &token, (agent.id, session.service)).await;
            }
            Err(reason) => return Err(reason.into()),
        }
        let audience = match (service, session.service) {
            // The session is bound to this service because the agent named it, or because it was the default service.
            (None, Some(service)) => TokenAudience::Default(service),
            (named, _) => TokenAudience::choose(tx.conn(), named, &agent, now).await?,
        };
        agents::set_last_seen(tx.conn(), agent.id, now, None).await?;
        let unsigned_token = issue_tokens(&mut tx, context, prepared_ref, rev, (&agent, &session, audience)).await?;
        Ok(tx.commit(Ok(unsigned_token)).await?)
    };
    match context.store.write("refresh", work).await? {
        Ok(unsigned_token) => prepared.sign(context, &unsigned_token),
        Err(subject) => {
            let reason = Reason::RefreshReused;
            emit_failed_login(context, subject, LoginFailureReason::Refused(reason), client_address).await;
            Err(reason.into())
        }
    }
}

/// Ends the session. The reuse of a refresh token means that the token was copied, and the server cannot distinguish the
/// thief from the agent.
async fn end_session_after_reuse(
    mut tx: WriteTransaction,
    token: &RefreshToken,
    subject: SessionSubject,
) -> Result<CommittedTransaction<Result<UnsignedToken, SessionSubject>>, OperationError> {
    end_session(&mut tx, token.session).await?;
    Ok(tx.commit(Err(subject)).await?)
}
