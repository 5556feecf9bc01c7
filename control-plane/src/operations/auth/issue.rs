//! Issues the tokens of logins and refreshes that one transaction fulfills.
//!
//! The transaction locks the agents, reads what the decisions and the claims depend on, decides each request, and writes what all
//! accepted requests need. A refused request does not affect the others.

use super::{
    revoke::end_sessions,
    signed_text::SignedText,
    tokens::{RequestedToken, TokenAudience, TokenIds, UnsignedToken, build_claims},
};
use crate::{
    domain::{
        agent::Agent,
        change::FeedPosition,
        credential::Credential,
        quota::{AUDIENCES_PER_AGENT, ExceededQuota},
        session::{RefreshToken, Session},
        webhook::event::{AuthenticatedEvent, Event, EventData},
    },
    keyring::{KeyringError, TokenSigner},
    operations::{
        Context, NotFound, OperationError,
        request_batches::{Attempt, BatchError, BatchedRequest, RequestQueues, RequestResult},
    },
    store::{
        StoreError, WriteTransaction, agents, assignments, feed, known_agents,
        logins::{self, IssueBasis, IssueQuery},
        roles::{self, HeldRole},
        services, sessions, token_audiences, unused_agents,
    },
};
use countersign_identity::{AgentId, EventId, Reason, RefreshId, Scope, ServiceId, SessionId, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};
use tracing::Span;

/// Maximum number of sessions over the quota that one login ends. If the quota was lowered, the next logins end the others.
const MAX_ENDED_PER_LOGIN: u32 = 10;

/// A request for tokens whose sender has proven to be the agent.
pub(in crate::operations) struct TokenRequest {
    /// The agent.
    pub(super) agent: AgentId,
    /// What the request asks of its access token.
    pub(super) requested: RequestedToken,
    /// What the agent has proven itself with.
    pub(super) proof: Proof,
    /// The ids of the new tokens.
    pub(super) ids: TokenIds,
}

/// What an agent has proven itself with.
pub(super) enum Proof {
    /// A signed challenge or assertion, which begins a session.
    Signature(NewSession),
    /// A refresh token, whose session continues.
    RefreshToken(Credential<RefreshId>),
}

/// A session that a login begins.
pub(super) struct NewSession {
    /// What the agent has signed.
    pub signed: SignedText,
    /// The id of the session.
    pub id: SessionId,
    /// The id of the event about the login.
    pub event: EventId,
    /// IP address of the client.
    pub client_address: Option<IpAddr>,
}

impl BatchedRequest for TokenRequest {
    type Key = ();
    type Output = UnsignedToken;

    fn queues(context: &Context) -> &RequestQueues<Self> {
        &context.token_requests
    }

    fn span((): ()) -> Span {
        tracing::info_span!(parent: None, "tokens")
    }

    fn exclusive_agent(&self) -> Option<AgentId> {
        Some(self.agent)
    }

    async fn fulfill(
        context: &Context,
        (): (),
        requests: &[Self],
        attempt: Attempt,
    ) -> Result<Vec<Option<RequestResult<Self>>>, BatchError> {
        let work = async |mut tx: WriteTransaction| {
            let current = Current::lock_and_read(&mut tx, requests, attempt).await?;
            let mut decisions = current.decide(&mut tx, context, requests, attempt).await?;
            let sources = ClaimSources::read(&mut tx, context, current.position, &mut decisions).await?;
            let reused: Vec<_> = requests
                .iter()
                .zip(&decisions)
                .filter_map(|(request, decision)| current.reused_session(request, decision.as_ref()?))
                .collect();
            let grants: Vec<_> = decisions.iter().flatten().flatten().collect();
            if reused.is_empty() && grants.is_empty() {
                let refusal = |decision: Option<Decision<'_>>| decision.and_then(Result::err);
                return Err(BatchError::Refused(decisions.into_iter().map(refusal).collect()));
            }
            write(&mut tx, context, &grants, &reused).await?;
            let result = |decision: Decision<'_>| decision.and_then(|grant| sources.token(context, &grant));
            let results = decisions.into_iter().map(|decision| decision.map(result)).collect();
            Ok(tx.commit(results).await?)
        };
        context.store.write_until(attempt.deadline, "issue_tokens", work).await
    }
}

/// What the decisions depend on.
struct Current {
    agents: BTreeMap<AgentId, Agent>,
    position: FeedPosition,
    /// The refresh tokens whose secret is correct, and their sessions.
    refresh_tokens: BTreeMap<RefreshId, (RefreshToken, Session)>,
    live_services: BTreeSet<ServiceId>,
}

/// The grant, or the reason of the refusal.
type Decision<'a> = Result<Grant<'a>, OperationError>;

/// A request that passed all checks before its audience is known.
struct Candidate<'a> {
    request: &'a TokenRequest,
    agent: &'a Agent,
    /// The session of a refresh.
    session: Option<&'a Session>,
}

/// A request that is accepted.
struct Grant<'a> {
    request: &'a TokenRequest,
    agent: &'a Agent,
    session: Session,
    audience: TokenAudience,
    /// The permissions beyond which the access token grants nothing. A refresh can narrow those of its session, for one token.
    scope: Option<Scope>,
    /// Whether the login begins one session more than the quota.
    exceeds_sessions: bool,
}

impl Current {
    /// Locks the agents until the transaction ends, and reads.
    async fn lock_and_read(
        tx: &mut WriteTransaction,
        requests: &[TokenRequest],
        attempt: Attempt,
    ) -> Result<Self, StoreError> {
        let conn = tx.conn();
        let agents: Vec<_> = requests.iter().map(|request| request.agent).collect();
        // The locks come before the revision, and the revision before everything else. A change of an agent either sees the audience
        // of the new token, or has a revision that is not above that of the token, because both transactions lock the agent first.
        let agents = agents::lock_and_list(conn, &agents, attempt.is_alone).await?;
        let position = feed::position(conn).await?;
        let credentials: Vec<_> = requests.iter().filter_map(TokenRequest::refresh_token).collect();
        let refresh_tokens = sessions::find_tokens_by_credential(conn, &credentials).await?;
        let bound = refresh_tokens.iter().filter_map(|(_, session)| session.service);
        let services: BTreeSet<_> =
            requests.iter().filter_map(|request| request.requested.service).chain(bound).collect();
        let live_services = services::list_live(conn, services).await?;
        Ok(Self {
            agents: agents.into_iter().map(|agent| (agent.id, agent)).collect(),
            position,
            refresh_tokens: refresh_tokens.into_iter().map(|found| (found.0.id, found)).collect(),
            live_services,
        })
    }

    /// Decides each request; `None` if another transaction has locked its agent.
    async fn decide<'a>(
        &'a self,
        tx: &mut WriteTransaction,
        context: &Context,
        requests: &'a [TokenRequest],
        attempt: Attempt,
    ) -> Result<Vec<Option<Decision<'a>>>, StoreError> {
        let now = tx.now();
        let may_be_locked = |request: &TokenRequest| !attempt.is_alone && !self.agents.contains_key(&request.agent);
        let check = |request| (!may_be_locked(request)).then(|| self.check(request, now));
        let candidates: Vec<_> = requests.iter().map(check).collect();
        let checked = || candidates.iter().flatten().flatten();
        let without_service = checked().filter(|candidate| candidate.bound_service().is_none());
        let last: Vec<_> =
            without_service.map(|candidate| (candidate.agent.id, candidate.agent.last_service)).collect();
        let defaults = assignments::find_default_services(tx.conn(), &last, now).await?;
        let queries: Vec<_> = checked().map(|candidate| candidate.query(candidate.audience(&defaults))).collect();
        let limits = (AUDIENCES_PER_AGENT, context.config.quotas.sessions_per_agent);
        let facts = logins::read_for_issue(tx.conn(), &queries, now, limits).await?;
        let grant = |candidate: Result<Candidate<'a>, OperationError>| {
            let candidate = candidate?;
            let basis = facts.get(&candidate.agent.id).ok_or(StoreError::UnexpectedRowCount("read_for_issue"))?;
            let audience = candidate.audience(&defaults);
            candidate.grant(context, (self.position, now), audience, basis)
        };
        Ok(candidates.into_iter().map(|candidate| candidate.map(grant)).collect())
    }

    fn check<'a>(&'a self, request: &'a TokenRequest, now: Timestamp) -> Result<Candidate<'a>, OperationError> {
        let agent = self.agents.get(&request.agent);
        let is_live = |service: Option<ServiceId>| service.is_none_or(|service| self.live_services.contains(&service));
        // The service may have been deleted since the request was verified.
        let named = is_live(request.requested.service).then_some(()).ok_or(OperationError::NotFound(NotFound::Service));
        match &request.proof {
            Proof::Signature(new) => {
                let reasons = new.signed.reasons();
                if new.signed.restore_revision() != self.position.cutoff {
                    return Err(reasons.expired.into());
                }
                let agent = agent.ok_or(reasons.invalid)?;
                agent.require_active()?;
                named?;
                Ok(Candidate { request, agent, session: None })
            }
            Proof::RefreshToken(credential) => {
                let agent = agent.ok_or(Reason::RefreshInvalid)?;
                let (token, session) = self.refresh_tokens.get(&credential.id()).ok_or(Reason::RefreshInvalid)?;
                agent.require_active()?;
                if !is_live(session.service) {
                    return Err(Reason::RefreshRevoked.into());
                }
                session.check_refresh(token, agent.cutoff.max(self.position.cutoff), now)?;
                // A wrong service must not hide that the token was used before.
                named?;
                Ok(Candidate { request, agent, session: Some(session) })
            }
        }
    }

    /// The session of a refused refresh, if its token was used before: the token was copied, and the server cannot distinguish the
    /// thief from the agent, so the session must end.
    fn reused_session<T>(&self, request: &TokenRequest, decision: &Result<T, OperationError>) -> Option<SessionId> {
        let Err(OperationError::Refused(refusal)) = decision else { return None };
        let credential = request.refresh_token().filter(|_| refusal.reason == Reason::RefreshReused)?;
        self.refresh_tokens.get(&credential.id()).map(|(_, session)| session.id)
    }
}

impl TokenRequest {
    fn refresh_token(&self) -> Option<&Credential<RefreshId>> {
        match &self.proof {
            Proof::Signature(_) => None,
            Proof::RefreshToken(credential) => Some(credential),
        }
    }

    fn new_session(&self) -> Option<&NewSession> {
        match &self.proof {
            Proof::Signature(new) => Some(new),
            Proof::RefreshToken(_) => None,
        }
    }
}

impl Candidate<'_> {
    /// The service that the request names, or that the session is bound to.
    fn bound_service(&self) -> Option<ServiceId> {
        self.request.requested.service.or(self.session.and_then(|session| session.service))
    }

    fn audience(&self, defaults: &BTreeMap<AgentId, ServiceId>) -> TokenAudience {
        if let Some(named) = self.request.requested.service {
            return TokenAudience::Named(named);
        }
        // The session is bound to its service because the agent named it, or because it was the default service.
        let default = self.bound_service().or_else(|| defaults.get(&self.agent.id).copied());
        default.map_or(TokenAudience::Unbound, TokenAudience::Default)
    }

    fn query(&self, audience: TokenAudience) -> IssueQuery {
        let challenge = self.request.new_session().map(|new| new.signed.single_use_id());
        IssueQuery { agent: self.agent.id, audience: audience.service(), challenge }
    }
}

impl<'a> Candidate<'a> {
    fn grant(
        self,
        context: &Context,
        (position, now): (FeedPosition, Timestamp),
        audience: TokenAudience,
        basis: &IssueBasis,
    ) -> Result<Grant<'a>, OperationError> {
        let Candidate { request, agent, session } = self;
        if basis.challenge_is_used {
            let reasons = request.new_session().map(|new| new.signed.reasons());
            return Err(reasons.map_or(Reason::RefreshInvalid, |reasons| reasons.used).into());
        }
        if basis.other_audiences >= i64::from(AUDIENCES_PER_AGENT) {
            return Err(OperationError::QuotaExceeded(ExceededQuota::AudiencesPerAgent));
        }
        let new_session = |new: &NewSession| Session {
            id: new.id,
            agent: agent.id,
            service: audience.service(),
            scope: request.requested.scope.clone(),
            started_at: now,
            started_revision: position.revision,
            expires_at: now.saturating_add(context.config.session_lifetime),
            ended_at: None,
        };
        let new = request.new_session();
        let session = session.cloned().or_else(|| new.map(new_session)).ok_or(Reason::RefreshInvalid)?;
        let exceeds_sessions =
            new.is_some() && basis.live_sessions >= i64::from(context.config.quotas.sessions_per_agent);
        let scope = match (&session.scope, &request.requested.scope) {
            (Some(of_session), Some(requested)) => Some(of_session.intersection(requested)),
            (of_session, requested) => of_session.as_ref().or(requested.as_ref()).cloned(),
        };
        Ok(Grant { request, agent, session, audience, scope, exceeds_sessions })
    }
}

/// What the claims of all new tokens depend on, besides the grants.
struct ClaimSources {
    held: BTreeMap<AgentId, Vec<HeldRole>>,
    /// The signing key. `None` if nothing is granted.
    signer: Option<Arc<TokenSigner>>,
    position: FeedPosition,
    now: Timestamp,
}

impl ClaimSources {
    /// Reads. Without a signing key, each grant becomes a refusal, but sessions still end.
    async fn read(
        tx: &mut WriteTransaction,
        context: &Context,
        position: FeedPosition,
        decisions: &mut [Option<Decision<'_>>],
    ) -> Result<Self, StoreError> {
        let now = tx.now();
        let mut sources = Self { held: BTreeMap::new(), signer: None, position, now };
        let grants: Vec<_> = decisions.iter().flatten().flatten().collect();
        if grants.is_empty() {
            return Ok(sources);
        }
        let bound: Vec<_> =
            grants.iter().filter_map(|grant| Some((grant.agent.id, grant.audience.service()?))).collect();
        sources.held = roles::list_held(tx.conn(), &bound, now).await?;
        // The signing key is read after all claims, so that a concurrent revocation of the signing key is noticed.
        match context.keyring.current_signer(tx.conn(), now).await {
            Ok(signer) => sources.signer = Some(signer),
            Err(KeyringError::Store(error)) => return Err(error),
            Err(error) => {
                let error = Arc::new(error);
                for decision in decisions.iter_mut().flatten().filter(|decision| decision.is_ok()) {
                    *decision = Err(OperationError::Keyring(Arc::clone(&error)));
                }
            }
        }
        Ok(sources)
    }

    fn token(&self, context: &Context, grant: &Grant<'_>) -> Result<UnsignedToken, OperationError> {
        let signer = self.signer.clone().ok_or(KeyringError::NoKey)?;
        let Grant { request, agent, session, audience, scope, .. } = grant;
        let held = self.held.get(&agent.id).map_or(&[][..], Vec::as_slice);
        let ids = (request.ids.token, self.position.revision);
        let scope = (held, scope.as_ref(), request.requested.states_scope);
        let times = (self.now, tokens_expire_at(context, self.now));
        Ok(UnsignedToken { claims: build_claims(context, ids, (agent, session, *audience), scope, times), signer })
    }
}

/// The expiry of access tokens that are issued now.
fn tokens_expire_at(context: &Context, now: Timestamp) -> Timestamp {
    now.saturating_add(context.config.access_token_lifetime)
}

/// Writes what the new tokens need, and the end of sessions: those whose refresh token was reused, and those over the quota.
async fn write(
    tx: &mut WriteTransaction,
    context: &Context,
    grants: &[&Grant<'_>],
    reused: &[SessionId],
) -> Result<(), StoreError> {
    let now = tx.now();
    let expires_at = tokens_expire_at(context, now);
    write_sessions(tx, grants, expires_at).await?;
    let seen: Vec<_> = grants.iter().map(|grant| (grant.agent.id, grant.last_service())).collect();
    agents::set_last_seen(tx.conn(), &seen, now).await?;
    let audiences: Vec<_> = grants.iter().map(|grant| (grant.agent.id, grant.audience.service())).collect();
    token_audiences::record(tx.conn(), &audiences, expires_at).await?;
    let is_first = |agent: &Agent| agent.registration.owner.is_none() && agent.last_seen_at.is_none();
    let used: Vec<_> = grants.iter().filter(|grant| is_first(grant.agent)).map(|grant| grant.agent.id).collect();
    unused_agents::remove(tx.conn(), &used).await?;
    let (mut named, mut default) = (Vec::new(), Vec::new());
    for grant in grants {
        match grant.audience {
            TokenAudience::Named(service) => named.push((grant.agent.id, service)),
            TokenAudience::Default(service) => default.push((grant.agent.id, service)),
            TokenAudience::Unbound => {}
        }
    }
    known_agents::record_contacts(tx.conn(), &named, now).await?;
    known_agents::extend_relations(tx.conn(), &default, now).await?;
    let kept = context.config.quotas.sessions_per_agent;
    let mut ended = reused.to_vec();
    for agent in grants.iter().filter(|grant| grant.exceeds_sessions).map(|grant| grant.agent.id) {
        ended.extend(sessions::list_live_beyond(tx.conn(), agent, now, (kept, MAX_ENDED_PER_LOGIN)).await?);
    }
    end_sessions(tx, &ended).await
}

/// Writes new sessions with their events, and the refresh tokens that replace the used ones.
async fn write_sessions(
    tx: &mut WriteTransaction,
    grants: &[&Grant<'_>],
    expires_at: Timestamp,
) -> Result<(), StoreError> {
    let now = tx.now();
    let (mut begun, mut used, mut refresh_tokens) = (Vec::new(), Vec::new(), Vec::new());
    for Grant { request, agent, session, audience, .. } in grants {
        let TokenIds { refresh, refresh_hash, .. } = &request.ids;
        match &request.proof {
            Proof::Signature(NewSession { signed, event, client_address, .. }) => {
                begun.push((session, signed.single_use_id()));
                let (agent_id, service_id, ip_address) = (agent.id, audience.service(), *client_address);
                let data = AuthenticatedEvent { agent_id, service_id, ip_address };
                tx.emit(Event { id: *event, at: now, data: EventData::Authenticated(data) });
            }
            Proof::RefreshToken(credential) => used.push(credential.id()),
        }
        let secret = refresh_hash.clone();
        let token = RefreshToken { id: *refresh, session: session.id, secret, issued_at: now, used_at: None };
        refresh_tokens.push((token, audience.service()));
    }
    sessions::insert(tx.conn(), &begun).await?;
    sessions::mark_tokens_used(tx.conn(), &used, now).await?;
    sessions::insert_tokens(tx.conn(), &refresh_tokens, expires_at).await
}

impl Grant<'_> {
    /// The service of the agent's last login, if this is a login.
    fn last_service(&self) -> Option<ServiceId> {
        self.request.new_session().and_then(|_| self.audience.last_service(self.agent.last_service))
    }
}
