//! Refresh token rotation: every refresh replaces the refresh token.

use super::{
    failed_logins::emit_failed_login,
    issue::{Proof, TokenRequest},
    tokens::PreparedTokens,
};
use crate::{
    domain::{credential::Credential, session::Session, webhook::event::LoginFailureReason},
    operations::{Context, OperationError, TokenPair, request_batches},
    store::{Conn, sessions},
};
use countersign_identity::{AgentId, Reason, RefreshId, Revision, ServiceId};
use std::{net::IpAddr, sync::Arc};

/// A request for the next tokens with a refresh token whose secret is correct.
pub struct VerifiedRefresh {
    credential: Credential<RefreshId>,
    agent: AgentId,
    /// The service that the session is bound to.
    bound: Option<ServiceId>,
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
    let find = async |conn: &mut Conn| sessions::find_tokens_by_credential(conn, &[&credential]).await;
    let (token, session) = context.store.read_one(find).await?.pop().ok_or(Reason::RefreshInvalid)?;
    // Only the transaction of the refresh knows whether a later revocation of the agent has ended the session.
    let is_usable = session.check_refresh(&token, Revision::default(), context.now()).is_ok();
    let Session { agent, service: bound, .. } = session;
    Ok(VerifiedRefresh { credential, agent, bound, service, client_address, is_usable })
}

/// Refreshes a session. The reuse of a used refresh token ends the session.
pub async fn refresh_session(context: &Arc<Context>, refresh: VerifiedRefresh) -> Result<TokenPair, OperationError> {
    let VerifiedRefresh { credential, agent, bound, service, client_address, is_usable: _ } = refresh;
    let prepared = PreparedTokens::new(context);
    let request = TokenRequest { agent, service, proof: Proof::RefreshToken(credential), ids: prepared.ids() };
    match request_batches::fulfill(context, (), request).await {
        Ok(unsigned_token) => prepared.sign(context, &unsigned_token),
        Err(error) => {
            if matches!(&error, OperationError::Refused(refusal) if refusal.reason == Reason::RefreshReused) {
                let reason = LoginFailureReason::Refused(Reason::RefreshReused);
                emit_failed_login(context, (agent, bound), reason, client_address).await;
            }
            Err(error)
        }
    }
}
