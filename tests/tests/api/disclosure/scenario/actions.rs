//! Logins, feedback, a suspension and a deletion.

use super::{Agents, DELETED_AGENT, Humans, Services, Tokens, address, client_at};
use countersign_tests::{Agent, ControlPlane, Tenant, control_plane::text, http::items};
use serde_json::json;

/// Logs in from this address and returns the access token.
pub async fn log_in(control: &ControlPlane, from: u8, agent: &Agent, service: Option<&str>) -> String {
    text(&agent.log_in(&client_at(control, from), service).await.expect(200)["accessToken"])
}

/// Gives feedback and returns the new trust score.
pub async fn rate(control: &ControlPlane, service: &Tenant, agent: &Agent, score: f64, reason: &str) -> f64 {
    let body = json!({ "agentId": agent.id, "score": score, "reason": reason, "metadata": { "about": reason } });
    let response = control.api.send_as(&service.key, "POST", "/trust/feedback", body).await.expect(200);
    response["newTrustScore"].as_f64().unwrap()
}

/// The id of the feedback of a service about an agent, as another service reads it.
pub async fn feedback_of(control: &ControlPlane, reader: &Tenant, service: &str, agent: &Agent) -> String {
    let path = format!("/trust/agents/{}/history", agent.id);
    let history = control.api.get_as(&reader.key, &path).await.expect(200);
    text(&items(&history).iter().find(|record| record["serviceId"] == service).unwrap()["id"])
}

/// Deletes an agent that the service has used.
pub async fn delete_agent(control: &ControlPlane, humans: &Humans, services: &Services, agent: &Agent) {
    log_in(control, address::LOGIN, agent, Some(&services.home.service)).await;
    let record = services.home.get(&format!("/agents/{}", agent.id)).await.expect(200);
    assert_eq!(record["name"], DELETED_AGENT);
    let path = format!("/agents/{}", agent.id);
    control.api.delete_as(&humans.agent_owner, &path).await.expect(200);
    let refused = agent.challenge(&control.api, None).await;
    assert_eq!(refused.error().1, "AGENT_NOT_FOUND");
}

/// What happens after the feedback: logins of the agents, a suspension, the revocation of a token, and failed logins.
pub async fn log_in_and_fail(control: &ControlPlane, humans: &Humans, services: &Services, agents: &Agents) -> Tokens {
    let (home, other) = (Some(services.home.service.as_str()), Some(services.other.service.as_str()));
    let revoked = log_in(control, address::LOGIN, &agents.regular, home).await;
    control.revoke_token(&revoked).await;
    let suspended = log_in(control, address::LOGIN, &agents.suspended, home).await;
    let of_suspended = agents.suspended.challenge(&control.api, home).await.expect(200);
    let path = format!("/agents/{}/status", agents.suspended.id);
    let body = json!({ "status": "suspended" });
    control.api.send_as(&humans.agent_owner, "PUT", &path, body).await.expect(200);
    control.api.post("/auth/authenticate", agents.suspended.answer(&of_suspended)).await.expect(403);
    for (from, service) in
        [(address::FAILED_LOGIN, &services.home.service), (address::FAILED_LOGIN_AT_UNKNOWN, &services.unknown.service)]
    {
        let client = client_at(control, from);
        let challenge = agents.regular.challenge(&client, Some(service)).await.expect(200);
        let signature = agents.regular.key.sign("another nonce");
        let login = json!({ "challengeId": challenge["challengeId"], "signature": signature });
        client.post("/auth/authenticate", login).await.expect(400);
    }
    Tokens {
        revoked,
        suspended,
        home: log_in(control, address::LOGIN, &agents.regular, home).await,
        elsewhere: log_in(control, address::OTHER_LOGIN, &agents.elsewhere, other).await,
        unbound: log_in(control, address::UNBOUND_LOGIN, &agents.unbound, None).await,
        // The last login of the regular agent is for another service.
        other: log_in(control, address::OTHER_LOGIN, &agents.regular, other).await,
    }
}
