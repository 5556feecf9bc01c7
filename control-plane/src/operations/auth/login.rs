//! Login: issues one token pair for a signed challenge or a client assertion.

use super::{
    failed_logins::{emit_failed_login, login_failure_reason},
    issue::{Grant, check_audiences, find_signer, list_unbound_roles, lock_and_read, read_basis, read_unbound_roles},
    revoke::end_sessions,
    signed_text::SignedText,
    tokens::{RequestedToken, TokenAudience},
};
use crate::{
    domain::{
        agent::require_active,
        challenge::Challenge,
        client_assertion::{ClientAssertion, InvalidAssertion},
        session::{RefreshHashes, RefreshToken, Session},
        unbound_roles::RoleAtService,
        webhook::event::{AuthenticatedEvent, Event, EventData},
    },
    operations::{Context, NotFound, OperationError, TokenPair, memory::BurstKey},
    store::{
        Conn, WriteTransaction,
        logins::{self, IssueRecord, LoginAgent, LoginBasis, LoginQuery},
        sessions, unused_agents,
    },
};
use countersign_identity::{
    AgentId, Claims, EventId, Reason, ServiceId, SessionId, TokenId, evaluation::LEEWAY, public_key::EcdsaSignature,
};
use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

/// How many sessions over the quota one login ends at most. The next logins end the others.
const MAX_ENDED_PER_LOGIN: u32 = 100;

#[derive(Debug)]
pub struct LoginRequest {
    /// The id of the challenge.
    pub challenge: String,
    /// Signature over the nonce, in hex.
    pub signature: String,
    /// The service that the token is requested for, if any.
    pub service: Option<ServiceId>,
    pub client_address: Option<IpAddr>,
}

/// A login whose signature is valid.
#[derive(Debug)]
pub struct VerifiedLogin {
    agent: AgentId,
    signed: SignedText,
    requested: RequestedToken,
    /// The basis of the login: what we read to verify the signature, with the agent's roles at `basis_service`.
    basis: Box<LoginBasis>,
    basis_service: Option<ServiceId>,
    client_address: Option<IpAddr>,
}

impl VerifiedLogin {
    /// The agent that has signed.
    pub const fn agent(&self) -> AgentId {
        self.agent
    }

    /// Sets what the login requests of its access token.
    #[must_use]
    pub fn requesting(self, requested: RequestedToken) -> Self {
        Self { requested, ..self }
    }
}

/// Verifies the signed challenge. A failed attempt does not use up the challenge.
pub async fn verify_login(context: &Arc<Context>, login: &LoginRequest) -> Result<VerifiedLogin, OperationError> {
    // An invalid challenge id contains no agent, so no failed-login event is emitted.
    let (challenge, nonce) = context.challenge_keys.decode_id(&login.challenge).ok_or(Reason::ChallengeInvalid)?;
    let burst = BurstKey { agent: challenge.agent, service: challenge.service.or(login.service) };
    let verified = async {
        if context.now() >= challenge.expires_at {
            return Err(Reason::ChallengeExpired.into());
        }
        let service = requested_service(&challenge, login.service)?;
        Ok((verify_signature(context, &challenge, &nonce, service, &login.signature).await?, service))
    };
    match verified.await {
        Ok((basis, service)) => Ok(VerifiedLogin {
            agent: challenge.agent,
            basis: Box::new(basis),
            basis_service: service,
            signed: SignedText::Challenge(challenge),
            requested: RequestedToken { service, ..RequestedToken::default() },
            client_address: login.client_address,
        }),
        Err(error) => {
            report_failure(context, burst, &error, login.client_address).await;
            Err(error)
        }
    }
}

/// Parses a client assertion (RFC 7523), and checks whatever needs no database.
pub fn parse_assertion(context: &Context, assertion: &str) -> Result<ClientAssertion, OperationError> {
    let assertion = ClientAssertion::parse(assertion, &context.assertion_audiences(), context.now())
        .map_err(OperationError::InvalidAssertion)?;
    // The session records that the assertion was used, so the session must outlive the assertion.
    if assertion.expires_at > context.now().saturating_add(context.config.session_lifetime) {
        let error = InvalidAssertion::new("`exp` must not be after the end of the session");
        return Err(OperationError::InvalidAssertion(error));
    }
    Ok(assertion)
}

/// Verifies a client assertion. A failed attempt does not use the assertion up. `named` is the service id in the request. If this
/// service exists, the event about a failure contains its id.
pub async fn verify_assertion(
    context: &Arc<Context>,
    assertion: &ClientAssertion,
    named: Option<ServiceId>,
    client_address: Option<IpAddr>,
) -> Result<VerifiedLogin, OperationError> {
    let agent = assertion.agent;
    let query = LoginQuery { agent, service: named, challenge: Some(assertion.single_use_id()) };
    let basis = read_basis(context, &query).await?;
    match check_assertion(assertion, &basis) {
        Ok(signed) => {
            let (requested, basis) = (RequestedToken::default(), Box::new(basis));
            Ok(VerifiedLogin { agent, signed, requested, basis, basis_service: named, client_address })
        }
        // We emit no event for an unknown agent. Otherwise, a stranger who invents agents would cause an event for each of them.
        Err(error @ OperationError::InvalidAssertion(_)) => Err(error),
        Err(error) => {
            let service = named.filter(|_| basis.has_service);
            report_failure(context, BurstKey { agent, service }, &error, client_address).await;
            Err(error)
        }
    }
}

const UNKNOWN_AGENT: InvalidAssertion = InvalidAssertion::new("`sub` must be the id of a registered agent");

fn check_assertion(assertion: &ClientAssertion, basis: &LoginBasis) -> Result<SignedText, OperationError> {
    let agent = basis.agent.as_ref().ok_or(OperationError::InvalidAssertion(UNKNOWN_AGENT))?;
    let signature = EcdsaSignature::from_jws(assertion.signature()).map_err(|_| OperationError::InvalidSignature)?;
    if !agent.key.verifies(&[assertion.signed_text()], &signature) {
        return Err(OperationError::InvalidSignature);
    }
    // The database has lost the sessions between the backup and the restore, so we do not know whether an assertion from before the
    // restore was used. We add [`LEEWAY`], because the clocks of the agent and of the replicas may differ.
    let last_lost = basis.restored_at.map(|restored_at| restored_at.saturating_add(LEEWAY));
    if last_lost.is_some_and(|last_lost| assertion.made_after <= last_lost) {
        return Err(Reason::AssertionExpired.into());
    }
    if basis.challenge_is_used {
        return Err(Reason::AssertionUsed.into());
    }
    require_active(agent.status)?;
    let (single_use_id, restore_revision) = (assertion.single_use_id(), basis.position.cutoff);
    Ok(SignedText::Assertion { single_use_id, restore_revision })
}

/// Issues a token pair for a verified login. Uses up the challenge or the assertion.
pub async fn begin_session(context: &Arc<Context>, login: VerifiedLogin) -> Result<TokenPair, OperationError> {
    let (agent, service, client_address) = (login.agent(), login.requested.service, login.client_address);
    let begun = async {
        let signer = find_signer(context).await?;
        let new = NewSession {
            login,
            refresh: RefreshToken::new(context.new_id(SessionId::from_bits), context.new_secret()),
            token_id: context.new_id(TokenId::from_bits),
            event: context.new_id(EventId::from_bits),
        };
        let claims = match new.begin_if_unchanged(context).await? {
            Some(claims) => claims,
            None => new.begin(context).await?,
        };
        TokenPair::sign(context, &signer, &claims, &new.refresh)
    };
    match begun.await {
        Ok(pair) => Ok(pair),
        Err(error) => {
            report_failure(context, BurstKey { agent, service }, &error, client_address).await;
            Err(error)
        }
    }
}

struct NewSession {
    login: VerifiedLogin,
    refresh: RefreshToken,
    token_id: TokenId,
    event: EventId,
}

impl NewSession {
    fn query(&self) -> LoginQuery {
        let VerifiedLogin { agent, signed, requested, .. } = &self.login;
        LoginQuery { agent: *agent, service: requested.service, challenge: Some(signed.single_use_id()) }
    }

    /// Begins the session with one statement on PostgreSQL, if no webhook receives the login event and there is nothing else to
    /// write. Returns `None` if that is not possible, or if the login is refused. The caller then runs [`Self::begin`], which also
    /// finds out why.
    async fn begin_if_unchanged(&self, context: &Context) -> Result<Option<Claims>, OperationError> {
        if !context.store.has_concurrent_writers() {
            return Ok(None);
        }
        let read;
        let basis = if self.login.basis_service == self.login.requested.service {
            &self.login.basis
        } else {
            read = read_basis(context, &self.query()).await?;
            &read
        };
        let unbound_roles = read_unbound_roles(context, basis).await?;
        let issued = self.issue(context, basis, &unbound_roles);
        let Ok((agent, session, claims, record)) = issued else { return Ok(None) };
        let writes_more = !record.changes_only_the_agent() || basis.has_targets || is_first_of_public(agent);
        if writes_more || self.counts_sessions(context) {
            return Ok(None);
        }
        let challenge = self.login.signed.single_use_id();
        let write =
            async |conn: &mut Conn| logins::begin_if_unchanged(conn, agent, &record, &session, &challenge).await;
        Ok(context.store.write_if_unchanged(write).await?.then_some(claims))
    }

    /// Begins the session in a transaction, or returns why the login is refused.
    async fn begin(&self, context: &Context) -> Result<Claims, OperationError> {
        let work = async |mut tx: WriteTransaction| {
            let basis = lock_and_read(&mut tx, &self.query()).await?;
            let unbound_roles = list_unbound_roles(tx.conn(), &basis).await?;
            let (agent, session, claims, record) = self.issue(context, &basis, &unbound_roles)?;
            check_audiences(&mut tx, agent.id, &basis).await?;
            if !sessions::insert(tx.conn(), &session, &self.login.signed.single_use_id()).await? {
                return Err(self.login.signed.reasons().used.into());
            }
            logins::record_issue(tx.conn(), agent.id, &record).await?;
            if is_first_of_public(agent) {
                unused_agents::remove(tx.conn(), &[agent.id]).await?;
            }
            if self.counts_sessions(context) {
                let kept = context.config.quotas.sessions_per_agent;
                let excess =
                    sessions::list_live_beyond(tx.conn(), agent.id, basis.at, kept, MAX_ENDED_PER_LOGIN).await?;
                end_sessions(&mut tx, &excess).await?;
            }
            tx.emit(Event { id: self.event, at: basis.at, data: self.event_data(&session) });
            Ok(tx.commit(claims).await?)
        };
        context.store.write("begin_session", work).await
    }

    /// Whether this login ends the sessions over the quota, for which it has to read all sessions of the agent. So with a quota of
    /// 40 or more, only one login in `one_in` does this, and the agent may have about a twentieth too many sessions. One login may
    /// end [`MAX_ENDED_PER_LOGIN`] sessions, which is more than begin between two such logins.
    fn counts_sessions(&self, context: &Context) -> bool {
        let one_in = (context.config.quotas.sessions_per_agent / 20).clamp(1, MAX_ENDED_PER_LOGIN / 2);
        self.refresh.session().bits().is_multiple_of(u128::from(one_in))
    }

    fn event_data(&self, session: &Session) -> EventData {
        let (agent_id, service_id, ip_address) = (session.agent, session.service, self.login.client_address);
        EventData::Authenticated(AuthenticatedEvent { agent_id, service_id, ip_address })
    }

    /// Checks the login. Returns the agent, the new session, the claims of its first token, and what to record about the token.
    fn issue<'a>(
        &self,
        context: &Context,
        basis: &'a LoginBasis,
        unbound_roles: &[RoleAtService],
    ) -> Result<(&'a LoginAgent, Session, Claims, IssueRecord), OperationError> {
        let VerifiedLogin { signed, requested, .. } = &self.login;
        let agent = check_login(signed, requested.service, basis)?;
        let audience = TokenAudience::of(basis, requested.service.is_some());
        let session = Session {
            id: self.refresh.session(),
            agent: agent.id,
            service: basis.audience,
            scope: requested.scope.clone(),
            started_at: basis.at,
            started_revision: basis.position.revision,
            expires_at: basis.at.saturating_add(context.config.session_lifetime),
            ended_at: None,
            audiences: BTreeSet::from([basis.audience]),
            refresh: RefreshHashes::of(&self.refresh),
        };
        let grant = Grant {
            agent,
            session: &session,
            audience,
            scope: session.scope.as_ref(),
            always_has_scope_claim: requested.always_has_scope_claim,
            basis,
            unbound_roles,
            last_service: audience.last_service(agent.last_service),
        };
        let (claims, record) = grant.issue(context, self.token_id);
        Ok((agent, session, claims, record))
    }
}

/// Whether this is the first login of an agent without an owner. Housekeeping deletes such an agent if it never logs in.
const fn is_first_of_public(agent: &LoginAgent) -> bool {
    !agent.has_owner && agent.last_seen_at.is_none()
}

/// Checks what may have changed since the signature was verified.
fn check_login<'a>(
    signed: &SignedText,
    service: Option<ServiceId>,
    basis: &'a LoginBasis,
) -> Result<&'a LoginAgent, OperationError> {
    let reasons = signed.reasons();
    if signed.restore_revision() != basis.position.cutoff {
        return Err(reasons.expired.into());
    }
    let agent = basis.agent.as_ref().ok_or(reasons.invalid)?;
    require_active(agent.status)?;
    if service.is_some() && !basis.has_service {
        return Err(OperationError::NotFound(NotFound::Service));
    }
    if basis.challenge_is_used { Err(reasons.used.into()) } else { Ok(agent) }
}

/// Emits an event for a failed login, unless the agent is not to blame for the failure.
async fn report_failure(context: &Arc<Context>, key: BurstKey, error: &OperationError, client_address: Option<IpAddr>) {
    if let Some(failure) = login_failure_reason(error) {
        emit_failed_login(context, key, failure, client_address).await;
    }
}

/// The service in the challenge or in the login request. If both name a service, it must be the same one.
fn requested_service(challenge: &Challenge, login: Option<ServiceId>) -> Result<Option<ServiceId>, OperationError> {
    match (challenge.service, login) {
        (Some(challenge), Some(login)) if challenge != login => Err(OperationError::Invalid {
            field: "serviceId",
            message: "must be the service that the challenge was requested for",
        }),
        (challenge, login) => Ok(challenge.or(login)),
    }
}

/// Verifies the signature. We do this before the transaction of the login, so that requests with a wrong signature do not occupy
/// SQLite's only writer.
async fn verify_signature(
    context: &Context,
    challenge: &Challenge,
    nonce: &[u8; 32],
    service: Option<ServiceId>,
    signature: &str,
) -> Result<LoginBasis, OperationError> {
    let query = LoginQuery { agent: challenge.agent, service, challenge: Some(challenge.random_id_hex()) };
    let basis = read_basis(context, &query).await?;
    if basis.challenge_is_used {
        return Err(Reason::ChallengeUsed.into());
    }
    // We issue challenges only to existing agents. So the agent was deleted, or the database was restored from an older backup.
    let agent = basis.agent.as_ref().ok_or(Reason::ChallengeInvalid)?;
    // We check the service before the signature, so that no event contains a service that does not exist.
    if service.is_some() && !basis.has_service {
        return Err(OperationError::NotFound(NotFound::Service));
    }
    let signature = EcdsaSignature::from_hex(signature).map_err(|_| OperationError::InvalidSignature)?;
    // The agent signs the nonce as hex text. We also accept a signature over the 32 bytes that the text encodes.
    if !agent.key.verifies(&[hex::encode(nonce).as_bytes(), nonce], &signature) {
        return Err(OperationError::InvalidSignature);
    }
    require_active(agent.status)?;
    Ok(basis)
}
