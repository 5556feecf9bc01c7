//! Predicts the response to a request that runs without concurrent requests.

use crate::{
    model::{INITIAL_TRUST, Model, State},
    operation::{MAX_STALENESS, Request, Status},
};
use countersign_tests::HttpResponse;

/// For how many microseconds the database keeps an ended session at least: as long as a client assertion may be valid.
const SESSION_RETENTION: i64 = 330_000_000;

/// The status that the model expects, and whether the model expects a change in the change feed. Where the model cannot predict the
/// change, it takes over what the response reports, or what was found in the change feed.
pub fn expected_response(
    request: &Request,
    model: &Model,
    now: i64,
    response: &HttpResponse,
    changed: bool,
) -> Result<(u16, bool), String> {
    let state = model.now();
    let role_number = |service: usize, name: usize| state.roles.get(&(service, name));
    Ok(match *request {
        Request::CreateRole { service, name, .. } if role_number(service, name).is_some() => (409, false),
        Request::CreateRole { .. } => (201, true),
        Request::ChangeRole { service, name, .. } if role_number(service, name).is_none() => (404, false),
        Request::DeleteRole { service, name }
        | Request::Assign { service, name, .. }
        | Request::Revoke { service, name, .. }
            if role_number(service, name).is_none() =>
        {
            (404, false)
        }
        Request::ChangeRole { .. } | Request::DeleteRole { .. } | Request::Assign { .. } => (200, true),
        Request::Feedback { agent, .. } => {
            let before = state.trust.get(&agent).map_or(INITIAL_TRUST, String::as_str);
            let after = response.body["newTrustScore"].to_string();
            (200, after != before)
        }
        Request::Revoke { service, agent, name } => {
            (200, role_number(service, name).is_some_and(|role| state.grants.contains_key(&(service, agent, *role))))
        }
        Request::SetAcceptsUnbound { service, accepted } => {
            (200, state.rejecting_unbound.contains(&service) == accepted)
        }
        Request::SetStatus { agent, status } => match (state.agent_state(agent).status, status) {
            (before, after) if before == after => (200, false),
            (Status::Revoked, _) => (409, false),
            _ => (200, true),
        },
        Request::Login { agent, .. } => (status_if_active(state, agent, 200), false),
        Request::Refresh { login, .. } if is_deleted(state, login, now, response) => (401, false),
        Request::Refresh { login, first, .. } => expected_refresh_response(model, login, first),
        Request::Replay { .. } => (401, false),
        Request::RevokeToken { .. } | Request::RevokeLogin { .. } => (200, changed),
        Request::Rotate => expected_rotation_response(state, now)?,
        Request::RevokeKey { .. } => (200, response.body["revoked"] == true),
        Request::Register => unreachable!("a registration is checked when it is sent"),
    })
}

/// Whether housekeeping has deleted the session of a login, according to the response to a refresh.
fn is_deleted(state: &State, login: usize, now: i64, response: &HttpResponse) -> bool {
    let may_be_deleted = state.revoked_logins.get(&login).is_some_and(|ended_at| ended_at + SESSION_RETENTION <= now);
    may_be_deleted && response.body["error"]["details"]["reason"] == "refresh_invalid"
}

/// The status of a refresh with the first or the newest refresh token of a login, and whether the request changes the
/// change feed. A used refresh token is refused and, if the agent is active, ends the session.
fn expected_refresh_response(model: &Model, number: usize, first: bool) -> (u16, bool) {
    let (state, login) = (model.now(), &model.logins[number]);
    let is_used = first && login.refresh.len() > 1;
    let session_has_ended = state.revoked_logins.contains_key(&number);
    let is_revoked = session_has_ended || login.start_revision < state.agent_state(login.agent).cutoff;
    let is_active = status_if_active(state, login.agent, 200) == 200;
    let status = status_if_active(state, login.agent, if is_used || is_revoked { 401 } else { 200 });
    (status, is_used && is_active && !session_has_ended)
}

/// The status of a requested rotation, and whether the request schedules a rotation. The next key signs at once if it
/// was published long enough ago.
fn expected_rotation_response(state: &State, now: i64) -> Result<(u16, bool), String> {
    let scheduled = state.keys.iter().filter_map(|key| key.signs_from).find(|start| *start > now);
    let next = state.keys.iter().find(|key| key.signs_from.is_none()).ok_or("there is no next key")?;
    let is_due = next.published_at + (MAX_STALENESS + 5) * 1_000_000 <= now;
    Ok((if scheduled.is_none() && is_due { 200 } else { 202 }, scheduled.is_none()))
}

fn status_if_active(state: &State, agent: usize, otherwise: u16) -> u16 {
    if state.agent_state(agent).status == Status::Active { otherwise } else { 403 }
}
