//! Login: issues one token pair for a signed challenge or a client assertion.

use super::{
    failed_logins::{emit_failed_login, login_failure_reason},
    issue::{NewSession, Proof, TokenRequest},
    login_basis::read_basis,
    signed_text::SignedText,
    tokens::{PreparedTokens, RequestedToken},
};
use crate::{
    domain::{
        agent::require_active,
        challenge::Challenge,
        client_assertion::{ClientAssertion, InvalidAssertion},
    },
    operations::{Context, NotFound, OperationError, TokenPair, request_batches},
    store::logins::{LoginBasis, LoginQuery},
};
use countersign_identity::{
    AgentId, EventId, Reason, ServiceId, SessionId, evaluation::LEEWAY, public_key::EcdsaSignature,
};
use std::{net::IpAddr, sync::Arc};

/// A login request.
#[derive(Debug)]
pub struct LoginRequest {
    /// Challenge id.
    pub challenge: String,
    /// Signature over the nonce, in hex.
    pub signature: String,
    /// Service that the token is requested for, if any.
    pub service: Option<ServiceId>,
    /// IP address of the client.
    pub client_address: Option<IpAddr>,
}

/// A login with a valid signature of the agent.
#[derive(Debug)]
pub struct VerifiedLogin {
    agent: AgentId,
    signed: SignedText,
    requested: RequestedToken,
    client_address: Option<IpAddr>,
}

impl VerifiedLogin {
    /// The agent that has signed.
    pub const fn agent(&self) -> AgentId {
        self.agent
    }

    /// The login with this request for an access token.
    #[must_use]
    pub fn requesting(self, requested: RequestedToken) -> Self {
        Self { requested, ..self }
    }
}

/// Verifies the signed challenge. A failed attempt does not consume the challenge.
pub async fn verify_login(context: &Arc<Context>, login: &LoginRequest) -> Result<VerifiedLogin, OperationError> {
    // An invalid challenge id contains no agent, so no failed-login event is emitted.
    let (challenge, nonce) = context.challenge_keys.decode_id(&login.challenge).ok_or(Reason::ChallengeInvalid)?;
    let requested = challenge.service.or(login.service);
    let verified = async {
        if context.now() >= challenge.expires_at {
            return Err(Reason::ChallengeExpired.into());
        }
        let service = requested_service(&challenge, login.service)?;
        verify_signature(context, (&challenge, &nonce), service, &login.signature).await?;
        Ok(service)
    };
    match verified.await {
        Ok(service) => Ok(VerifiedLogin {
            agent: challenge.agent,
            signed: SignedText::Challenge(challenge),
            requested: RequestedToken { service, ..RequestedToken::default() },
            client_address: login.client_address,
        }),
        Err(error) => {
            report_failure(context, (challenge.agent, requested), &error, login.client_address).await;
            Err(error)
        }
    }
}

/// Parses a client assertion (RFC 7523), and checks what its text alone shows.
pub fn parse_assertion(context: &Context, assertion: &str) -> Result<ClientAssertion, OperationError> {
    let assertion = ClientAssertion::parse(assertion, &context.assertion_audiences(), context.now())
        .map_err(OperationError::InvalidAssertion)?;
    // The session remembers the assertion, so it must outlive it.
    if assertion.expires_at > context.now().saturating_add(context.config.session_lifetime) {
        let error = InvalidAssertion::new("`exp` must not be after the end of the session");
        return Err(OperationError::InvalidAssertion(error));
    }
    Ok(assertion)
}

/// Verifies a client assertion. A failed attempt does not use it up. `named` is the service that the request names by its id, which may
/// be that of no service; the event about a failure contains it if it exists.
pub async fn verify_assertion(
    context: &Arc<Context>,
    assertion: &ClientAssertion,
    named: Option<ServiceId>,
    client_address: Option<IpAddr>,
) -> Result<VerifiedLogin, OperationError> {
    let agent = assertion.agent;
    let query = LoginQuery { agent, service: named, challenge: Some(assertion.single_use_id()) };
    let basis = read_basis(context, query).await?;
    match check_assertion(assertion, &basis) {
        Ok(signed) => Ok(VerifiedLogin { agent, signed, requested: RequestedToken::default(), client_address }),
        // Nobody knows the agent, so there is nobody to tell. Otherwise, a stranger who invents agents would cause an event for each.
        Err(error @ OperationError::InvalidAssertion(_)) => Err(error),
        Err(error) => {
            let service = named.filter(|_| basis.has_service);
            report_failure(context, (agent, service), &error, client_address).await;
            Err(error)
        }
    }
}

const UNKNOWN_AGENT: InvalidAssertion = InvalidAssertion::new("`sub` must be the id of a registered agent");

fn check_assertion(assertion: &ClientAssertion, basis: &LoginBasis) -> Result<SignedText, OperationError> {
    let (status, key) = basis.status.zip(basis.public_key()?).ok_or(OperationError::InvalidAssertion(UNKNOWN_AGENT))?;
    let signature = EcdsaSignature::from_jws(assertion.signature()).map_err(|_| OperationError::InvalidSignature)?;
    if !key.verifies(&[assertion.signed_text()], &signature) {
        return Err(OperationError::InvalidSignature);
    }
    // Between the backup and the restore, it may have been used for a session that the database has lost. The clocks of the agent and of
    // the replicas may differ.
    let last_lost = basis.restored_at.map(|restored_at| restored_at.saturating_add(LEEWAY));
    if last_lost.is_some_and(|last_lost| assertion.made_after <= last_lost) {
        return Err(Reason::AssertionExpired.into());
    }
    if basis.challenge_is_used {
        return Err(Reason::AssertionUsed.into());
    }
    require_active(status)?;
    let (single_use_id, restore_revision) = (assertion.single_use_id(), basis.restore_revision);
    Ok(SignedText::Assertion { single_use_id, restore_revision })
}

/// Issues a token pair for a verified login. Consumes the challenge or the assertion.
pub async fn begin_session(context: &Arc<Context>, login: VerifiedLogin) -> Result<TokenPair, OperationError> {
    let VerifiedLogin { agent, signed, requested, client_address } = login;
    let service = requested.service;
    let prepared = PreparedTokens::new(context);
    let (id, event) = (context.new_id(SessionId::from_bits), context.new_id(EventId::from_bits));
    let proof = Proof::Signature(NewSession { signed, id, event, client_address });
    let request = TokenRequest { agent, requested, proof, ids: prepared.ids() };
    match request_batches::fulfill(context, (), request).await {
        Ok(unsigned_token) => prepared.sign(context, &unsigned_token),
        Err(error) => {
            report_failure(context, (agent, service), &error, client_address).await;
            Err(error)
        }
    }
}

/// Emits an event for a failed login, unless the failure is not that of the agent.
async fn report_failure(
    context: &Arc<Context>,
    subject: (AgentId, Option<ServiceId>),
    error: &OperationError,
    client_address: Option<IpAddr>,
) {
    if let Some(failure) = login_failure_reason(error) {
        emit_failed_login(context, subject, failure, client_address).await;
    }
}

/// The service that the challenge or the login request contains. If the challenge and the login request both contain a service,
/// it must be the same service.
fn requested_service(challenge: &Challenge, login: Option<ServiceId>) -> Result<Option<ServiceId>, OperationError> {
    match (challenge.service, login) {
        (Some(challenge), Some(login)) if challenge != login => Err(OperationError::Invalid {
            field: "serviceId",
            message: "must be the service that the challenge was requested for",
        }),
        (challenge, login) => Ok(challenge.or(login)),
    }
}

/// Verifies the signature before the transaction of the login, so that a request with a wrong signature does not occupy the only
/// writer of SQLite.
async fn verify_signature(
    context: &Arc<Context>,
    (challenge, nonce): (&Challenge, &[u8; 32]),
    service: Option<ServiceId>,
    signature: &str,
) -> Result<(), OperationError> {
    let query = LoginQuery { agent: challenge.agent, service, challenge: Some(challenge.random_id_hex()) };
    let basis = read_basis(context, query).await?;
    if basis.challenge_is_used {
        return Err(Reason::ChallengeUsed.into());
    }
    // If the agent in a challenge is unknown, the challenge was issued before the database was restored from a backup.
    let (status, key) = basis.status.zip(basis.public_key()?).ok_or(Reason::ChallengeInvalid)?;
    // The service is checked before the signature, so that no event contains a service that does not exist.
    if service.is_some() && !basis.has_service {
        return Err(OperationError::NotFound(NotFound::Service));
    }
    let signature = EcdsaSignature::from_hex(signature).map_err(|_| OperationError::InvalidSignature)?;
    // The agent signs the UTF-8 bytes of the hex nonce. A signature over the 32 decoded bytes of the nonce is accepted as
    // well.
    if !key.verifies(&[hex::encode(nonce).as_bytes(), nonce], &signature) {
        return Err(OperationError::InvalidSignature);
    }
    Ok(require_active(status)?)
}
