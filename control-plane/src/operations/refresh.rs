//! Continue a login: every use of a refresh token replaces it.

use super::{
    Context, Denied, Missing, TokenPair,
    issue_token::{Fresh, Issued, issue, resolve_service},
    revoke_token::end_session,
    tell_failed_login::emit_failed_login,
};
use crate::{
    domain::{credential::Credential, session::RefreshToken, webhook::event::LoginFailureReason},
    store::{Committed, Conn, Write, agents, feed, services, sessions},
};
use countersign_identity::{AgentId, Reason, RefreshId, ServiceId};
use std::net::IpAddr;

/// Whose login it was, and where.
type Holder = (AgentId, Option<ServiceId>);

/// Refreshes. A wrong secret changes nothing; a used token presented again ends its login.
pub async fn refresh(
    context: &Context,
    token: &str,
    service: Option<ServiceId>,
    from: Option<IpAddr>,
) -> Result<TokenPair, Denied> {
    let presented = &Credential::<RefreshId>::parse(token).ok_or(Reason::RefreshInvalid)?;
    let mut read = context.store.read().await?;
    find_presented(read.conn(), presented).await?;
    if let Some(service) = service {
        services::find(read.conn(), service).await?.ok_or(Denied::Missing(Missing::Service))?;
    }
    drop(read);

    let fresh = Fresh::of(context);
    let fresh_ref = &fresh;
    let work = async |mut tx: Write| {
        let position = feed::position(tx.conn()).await?;
        let rev = position.revision;
        let token = find_presented(tx.conn(), presented).await?;
        let now = tx.now();
        let session = sessions::find(tx.conn(), token.session).await?.ok_or(Reason::RefreshInvalid)?;
        let agent = agents::find(tx.conn(), session.agent).await?.ok_or(Reason::RefreshInvalid)?;
        agent.require_active()?;
        match session.may_continue(&token, agent.cutoff.max(position.cutoff), now) {
            Ok(()) if sessions::use_token(tx.conn(), token.id, now).await? => {}
            Ok(()) | Err(Reason::RefreshReused) => return end_login(tx, &token, (agent.id, session.service)).await,
            Err(reason) => return Err(reason.into()),
        }
        let service = match service.or(session.service) {
            Some(service) => Some(service),
            None => resolve_service(tx.conn(), &agent, now).await?,
        };
        let issued = issue(&mut tx, context, fresh_ref, rev, (&agent, &session, service)).await?;
        Ok(tx.commit(Ok(issued)).await?)
    };
    match context.store.write("refresh", work).await? {
        Ok(issued) => fresh.sign(context, &issued),
        Err(who) => {
            let reason = Reason::RefreshReused;
            emit_failed_login(context, who, LoginFailureReason::Refused(reason), from).await;
            Err(reason.into())
        }
    }
}

async fn find_presented(conn: &mut Conn, presented: &Credential<RefreshId>) -> Result<RefreshToken, Denied> {
    Ok(sessions::find_presented(conn, presented).await?.ok_or(Reason::RefreshInvalid)?)
}

/// Two holders of one refresh token: one of them stole it, so neither goes on.
async fn end_login(
    mut tx: Write,
    token: &RefreshToken,
    who: Holder,
) -> Result<Committed<Result<Issued, Holder>>, Denied> {
    end_session(&mut tx, token.session).await?;
    Ok(tx.commit(Err(who)).await?)
}
