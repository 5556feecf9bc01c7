//! Refresh token rotation: every refresh replaces the refresh token.

use super::{
    failed_logins::emit_failed_login,
    issue::{Proof, TokenRequest},
    tokens::{PreparedTokens, RequestedToken},
};
use crate::{
    domain::{credential::Credential, session::Session, webhook::event::LoginFailureReason},
    operations::{Context, OperationError, TokenPair, request_batches},
    store::{Conn, Store, sessions},
};
use countersign_identity::{AgentId, Reason, RefreshId, Revision, ServiceId};
use std::{net::IpAddr, sync::Arc};
use tokio::sync::oneshot;
use tracing::Instrument as _;

/// A request for the next tokens with a refresh token whose secret is correct.
pub struct VerifiedRefresh {
    credential: Credential<RefreshId>,
    agent: AgentId,
    /// The service that the session is bound to.
    bound: Option<ServiceId>,
    client_address: Option<IpAddr>,
    /// Why the refresh token was not usable when it was read.
    refusal: Option<Reason>,
    /// Whether the session was ended. It stays so.
    session_is_ended: bool,
}

impl VerifiedRefresh {
    /// The agent of the session, if the refresh token was usable when it was read. A used token, or that of an ended session,
    /// may have been copied, so it proves nothing about its sender.
    pub fn proven_agent(&self) -> Option<AgentId> {
        self.refusal.is_none().then_some(self.agent)
    }
}

/// Verifies the secret of a refresh token. Changes nothing.
pub async fn verify_refresh(
    context: &Context,
    token: &str,
    client_address: Option<IpAddr>,
) -> Result<VerifiedRefresh, OperationError> {
    let credential = Credential::<RefreshId>::parse(token).ok_or(Reason::RefreshInvalid)?;
    let find = async |conn: &mut Conn| sessions::find_tokens_by_credential(conn, &[&credential]).await;
    let (token, session) = context.store.read_one(find).await?.pop().ok_or(Reason::RefreshInvalid)?;
    // Only the transaction of the refresh knows whether a later revocation of the agent has ended the session.
    let refusal = session.check_refresh(&token, Revision::default(), context.now()).err();
    let Session { agent, service: bound, ended_at, .. } = session;
    let session_is_ended = ended_at.is_some();
    Ok(VerifiedRefresh { credential, agent, bound, client_address, refusal, session_is_ended })
}

/// Refreshes a session. The reuse of a used refresh token ends the session. If the client leaves before the transaction, nothing
/// happens, so that it can use its token again; but a client that leaves cannot prevent the event about a reuse.
pub async fn refresh_session(
    context: &Arc<Context>,
    refresh: VerifiedRefresh,
    requested: RequestedToken,
) -> Result<TokenPair, OperationError> {
    if refresh.refusal != Some(Reason::RefreshReused) {
        return refresh_and_report_reuse(context, refresh, requested).await;
    }
    let (deadline, (reply, replied)) = (context.store.deadline(), oneshot::channel());
    let context = Arc::clone(context);
    let report = async move {
        let _client_has_left = reply.send(refresh_and_report_reuse(&context, refresh, requested).await);
    };
    drop(tokio::spawn(report.in_current_span()));
    Store::receive(replied, deadline).await?
}

async fn refresh_and_report_reuse(
    context: &Arc<Context>,
    refresh: VerifiedRefresh,
    requested: RequestedToken,
) -> Result<TokenPair, OperationError> {
    let VerifiedRefresh { credential, agent, bound, client_address, refusal, session_is_ended } = refresh;
    let result = match refusal {
        // There is nothing to write, so copies of old tokens cannot occupy the database's writer.
        Some(reason) if session_is_ended => Err(reason.into()),
        _ => issue_tokens(context, agent, requested, credential).await,
    };
    if matches!(&result, Err(OperationError::Refused(refusal)) if refusal.reason == Reason::RefreshReused) {
        let reason = LoginFailureReason::Refused(Reason::RefreshReused);
        emit_failed_login(context, (agent, bound), reason, client_address).await;
    }
    result
}

async fn issue_tokens(
    context: &Arc<Context>,
    agent: AgentId,
    requested: RequestedToken,
    credential: Credential<RefreshId>,
) -> Result<TokenPair, OperationError> {
    let prepared = PreparedTokens::new(context);
    let request = TokenRequest { agent, requested, proof: Proof::RefreshToken(credential), ids: prepared.ids() };
    let unsigned_token = request_batches::fulfill(context, (), request).await?;
    prepared.sign(context, &unsigned_token)
}
