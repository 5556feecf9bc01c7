//! Refresh token rotation: every refresh replaces the refresh token.

use super::{
    failed_logins::emit_failed_login,
    issue::{Grant, check_audiences, find_signer, list_unbound_roles, lock_and_read, read_basis, read_unbound_roles},
    revoke::end_sessions,
    tokens::{RequestedToken, TokenAudience},
};
use crate::{
    domain::{
        agent::require_active,
        quota::{AUDIENCES_PER_SESSION, ExceededQuota},
        session::{RefreshToken, Session},
        unbound_roles::RoleAtService,
        webhook::event::LoginFailureReason,
    },
    operations::{Context, NotFound, OperationError, TokenPair, memory::BurstKey},
    store::{
        Conn, Store, StoreError, WriteTransaction,
        logins::{self, IssueRecord, LoginAgent, LoginBasis, LoginQuery},
        sessions,
    },
};
use countersign_identity::{AgentId, Claims, Reason, Revision, TokenId};
use std::{net::IpAddr, sync::Arc};
use tokio::sync::oneshot;
use tracing::Instrument as _;

/// A refresh token, and the session to which it belongs. The token may already be refused: see `refusal`.
pub struct PresentedRefreshToken {
    token: RefreshToken,
    session: Session,
    client_address: Option<IpAddr>,
    /// Why the refresh token was refused when we read its session. `None`: it was usable.
    refusal: Option<Reason>,
}

impl PresentedRefreshToken {
    /// The agent of the session, if the refresh token was usable when we read the session. A used token, or a token of an ended session,
    /// may be a copy, so it proves nothing about its sender.
    pub fn proven_agent(&self) -> Option<AgentId> {
        self.refusal.is_none().then_some(self.session.agent)
    }
}

/// Verifies that a refresh token belongs to a session. Changes nothing.
pub async fn verify_refresh(
    context: &Context,
    token: &str,
    client_address: Option<IpAddr>,
) -> Result<PresentedRefreshToken, OperationError> {
    let token = RefreshToken::parse(token).ok_or(Reason::RefreshInvalid)?;
    let session = context.store.read_one(async |conn: &mut Conn| sessions::find(conn, token.session()).await).await?;
    let session = session.filter(|session| session.issued(&token)).ok_or(Reason::RefreshInvalid)?;
    // We pass no cutoff. Only the refresh itself reads whether a suspension or revocation of the agent has ended the session.
    let refusal = session.check_refresh(&token, Revision::default(), context.now()).err();
    Ok(PresentedRefreshToken { token, session, client_address, refusal })
}

/// Refreshes a session. A refresh token that was used before ends the session: somebody has a copy, and we cannot tell the thief from
/// the agent. A client that disconnects before we write can use its token again. But a client that presents a used token cannot
/// prevent the end of the session, or the event about it, by disconnecting: we then go on in a task of our own.
pub async fn refresh_session(
    context: &Arc<Context>,
    refresh: PresentedRefreshToken,
    requested: RequestedToken,
) -> Result<TokenPair, OperationError> {
    if refresh.refusal != Some(Reason::RefreshReused) {
        return refresh_and_report_reuse(context, refresh, requested).await;
    }
    let deadline = context.store.deadline();
    let (reply, replied) = oneshot::channel();
    let context = Arc::clone(context);
    let report = async move {
        let _client_has_disconnected = reply.send(refresh_and_report_reuse(&context, refresh, requested).await);
    };
    drop(tokio::spawn(report.in_current_span()));
    Store::receive(replied, deadline).await?
}

async fn refresh_and_report_reuse(
    context: &Arc<Context>,
    refresh: PresentedRefreshToken,
    requested: RequestedToken,
) -> Result<TokenPair, OperationError> {
    let PresentedRefreshToken { token, session, client_address, refusal } = refresh;
    let (agent, service) = (session.agent, session.service);
    let result = match refusal {
        // The session has ended or expired, so there is nothing to write: copies of old tokens cannot occupy the database's writer.
        Some(reason) if session.ended_at.is_some() || reason == Reason::RefreshExpired => Err(reason.into()),
        // The token was usable when we read the session, or it was used before. If it was used, `replace_tokens` ends the session.
        _ => replace_tokens(context, token, session, requested).await,
    };
    if result.as_ref().is_err_and(is_reuse) {
        let reason = LoginFailureReason::Refused(Reason::RefreshReused);
        emit_failed_login(context, BurstKey { agent, service }, reason, client_address).await;
    }
    result
}

fn is_reuse(error: &OperationError) -> bool {
    matches!(error, OperationError::Refused(refusal) if refusal.reason == Reason::RefreshReused)
}

/// Issues the next tokens of a session.
async fn replace_tokens(
    context: &Context,
    used: RefreshToken,
    session: Session,
    requested: RequestedToken,
) -> Result<TokenPair, OperationError> {
    let signer = find_signer(context).await?;
    let next = used.next(context.new_secret());
    let replacement = Replacement { used, next, session, requested, token_id: context.new_id(TokenId::from_bits) };
    let claims = match replacement.refresh_if_unchanged(context).await? {
        Some(claims) => claims,
        None => replacement.refresh(context).await?,
    };
    TokenPair::sign(context, &signer, &claims, &replacement.next)
}

struct Replacement {
    used: RefreshToken,
    next: RefreshToken,
    /// The session as we read it. Its agent and its service never change; everything else may have changed since.
    session: Session,
    requested: RequestedToken,
    token_id: TokenId,
}

impl Replacement {
    /// Selects the `LoginBasis`: whatever a login or refresh depends on, as of one revision.
    fn query(&self) -> LoginQuery {
        let service = self.requested.service.or(self.session.service);
        LoginQuery { agent: self.session.agent, service, challenge: None }
    }

    /// Refreshes the session with one statement on PostgreSQL, if there is nothing else to write. Returns `None` if that is not possible,
    /// or if the refresh is refused. The caller then runs [`Self::refresh`], which also finds out why.
    async fn refresh_if_unchanged(&self, context: &Context) -> Result<Option<Claims>, OperationError> {
        if !context.store.has_concurrent_writers() {
            return Ok(None);
        }
        let basis = read_basis(context, &self.query()).await?;
        let unbound_roles = read_unbound_roles(context, &basis).await?;
        let issued = self.issue(context, self.session.clone(), &basis, &unbound_roles);
        let Ok((agent, session, claims, record)) = issued else { return Ok(None) };
        if !record.changes_only_the_agent() {
            return Ok(None);
        }
        let write = async |conn: &mut Conn| {
            logins::refresh_if_unchanged(conn, agent, &record, &session, &self.used, &self.next).await
        };
        Ok(context.store.write_if_unchanged(write).await?.then_some(claims))
    }

    /// Refreshes the session in a transaction, or returns why that is refused. Ends the session if the refresh token was used before.
    async fn refresh(&self, context: &Context) -> Result<Claims, OperationError> {
        let work = async |mut tx: WriteTransaction| {
            let basis = lock_and_read(&mut tx, &self.query()).await?;
            let unbound_roles = list_unbound_roles(tx.conn(), &basis).await?;
            let session = sessions::find(tx.conn(), self.session.id).await?.ok_or(Reason::RefreshInvalid)?;
            let (agent, session, claims, record) = match self.issue(context, session, &basis, &unbound_roles) {
                Err(reused) if is_reuse(&reused) => {
                    end_sessions(&mut tx, &[self.session.id]).await?;
                    // The transaction commits the end of the session. Its result is the refusal.
                    return Ok(tx.commit(Err(reused)).await?);
                }
                issued => issued?,
            };
            check_audiences(&mut tx, agent.id, &basis).await?;
            if !sessions::replace_refresh_token(tx.conn(), &self.used, &self.next, &session.audiences).await? {
                return Err(StoreError::UnexpectedRowCount("replace_refresh_token").into());
            }
            logins::record_issue(tx.conn(), agent.id, &record).await?;
            Ok::<_, OperationError>(tx.commit(Ok(claims)).await?)
        };
        context.store.write("refresh_session", work).await?
    }

    /// Checks the refresh. Returns the agent, the changed session, the claims of the next token, and what to record about the token.
    fn issue<'a>(
        &self,
        context: &Context,
        mut session: Session,
        basis: &'a LoginBasis,
        unbound_roles: &[RoleAtService],
    ) -> Result<(&'a LoginAgent, Session, Claims, IssueRecord), OperationError> {
        let agent = basis.agent.as_ref().ok_or(Reason::RefreshInvalid)?;
        // Reuse is checked first, because it must end the session. The status is checked before the other reasons: a suspension
        // also raises the cutoff, below which sessions are invalid, and the client should learn of the suspension.
        let checked = session.check_refresh(&self.used, agent.cutoff.max(basis.position.cutoff), basis.at);
        if checked == Err(Reason::RefreshReused) {
            return Err(Reason::RefreshReused.into());
        }
        require_active(agent.status)?;
        let names_service = self.requested.service.is_some();
        if !names_service && session.service.is_some() && !basis.has_service {
            // The service that the session is bound to was deleted.
            return Err(Reason::RefreshRevoked.into());
        }
        checked?;
        if names_service && !basis.has_service {
            return Err(OperationError::NotFound(NotFound::Service));
        }
        session.audiences.insert(basis.audience);
        if session.audiences.len() > AUDIENCES_PER_SESSION {
            return Err(OperationError::QuotaExceeded(ExceededQuota::AudiencesPerSession));
        }
        let scope = match (&session.scope, &self.requested.scope) {
            (Some(of_session), Some(requested)) => Some(of_session.intersection(requested)),
            (of_session, requested) => of_session.as_ref().or(requested.as_ref()).cloned(),
        };
        let grant = Grant {
            agent,
            session: &session,
            audience: TokenAudience::of(basis, names_service),
            scope: scope.as_ref(),
            always_has_scope_claim: self.requested.always_has_scope_claim,
            basis,
            unbound_roles,
            last_service: agent.last_service,
        };
        let (claims, record) = grant.issue(context, self.token_id);
        Ok((agent, session, claims, record))
    }
}
