//! Logins, feedback, a suspension and a deletion.

use super::{Agents, DELETED_AGENT, Humans, OwnedAgent, Service, Services, Tokens, address, client_at};
use countersign_tests::{ControlPlane, HttpClient, HttpResponse, control_plane::text};
use serde_json::{Value, json};

async fn challenge(client: &HttpClient, agent: &OwnedAgent, service: Option<&str>) -> Value {
    let body = service
        .map_or_else(|| json!({ "agentId": agent.id }), |service| json!({ "agentId": agent.id, "serviceId": service }));
    client.post("/auth/challenge", body).await.expect(200)
}

async fn authenticate(client: &HttpClient, challenge: &Value, signature: &str) -> HttpResponse {
    let body = json!({ "challengeId": challenge["challengeId"], "signature": signature });
    client.post("/auth/authenticate", body).await
}

/// Logs in from this address and returns the access token.
pub async fn log_in(control: &ControlPlane, from: u8, agent: &OwnedAgent, service: Option<&str>) -> String {
    let client = client_at(control, from);
    let challenge = challenge(&client, agent, service).await;
    let signature = agent.key.sign(&text(&challenge["nonce"]));
    text(&authenticate(&client, &challenge, &signature).await.expect(200)["accessToken"])
}

/// Gives feedback and returns the new trust score.
pub async fn rate(control: &ControlPlane, service: &Service, agent: &OwnedAgent, score: f64, reason: &str) -> f64 {
    let body = json!({ "agentId": agent.id, "score": score, "reason": reason, "metadata": { "about": reason } });
    let response = control.api.send_as(&service.key, "POST", "/trust/feedback", body).await.expect(200);
    response["newTrustScore"].as_f64().unwrap()
}

/// The id of the feedback of a service about an agent, as another service reads it.
pub async fn feedback_of(control: &ControlPlane, reader: &Service, service: &str, agent: &OwnedAgent) -> String {
    let path = format!("/trust/agents/{}/history", agent.id);
    let history = control.api.get_as(&reader.key, &path).await.expect(200);
    let mut records = history["data"].as_array().unwrap().iter();
    text(&records.find(|record| record["serviceId"] == service).unwrap()["id"])
}

/// Deletes an agent that the service has used.
pub async fn delete_agent(control: &ControlPlane, humans: &Humans, services: &Services, agent: &OwnedAgent) {
    log_in(control, address::LOGIN, agent, Some(&services.home.id)).await;
    let path = format!("/services/{}/agents/{}", services.home.id, agent.id);
    let record = control.api.get_as(&services.home.key, &path).await.expect(200);
    assert_eq!(record["name"], DELETED_AGENT);
    let path = format!("/agents/{}", agent.id);
    HttpResponse::send(control.api.request("DELETE", &path).bearer_auth(&humans.agent_owner)).await.expect(200);
    let refused = control.api.post("/auth/challenge", json!({ "agentId": agent.id })).await;
    assert_eq!(refused.error().1, "AGENT_NOT_FOUND");
}

/// The logins of the agents after the feedback, a suspension, a revoked token, and failed logins.
pub async fn log_in_and_fail(control: &ControlPlane, humans: &Humans, services: &Services, agents: &Agents) -> Tokens {
    let (home, other) = (Some(services.home.id.as_str()), Some(services.other.id.as_str()));
    let revoked = log_in(control, address::LOGIN, &agents.regular, home).await;
    control.revoke_token(&revoked).await;
    let suspended = log_in(control, address::LOGIN, &agents.suspended, home).await;
    let of_suspended = challenge(&control.api, &agents.suspended, home).await;
    let path = format!("/agents/{}/status", agents.suspended.id);
    let body = json!({ "status": "suspended" });
    control.api.send_as(&humans.agent_owner, "PUT", &path, body).await.expect(200);
    let signature = agents.suspended.key.sign(&text(&of_suspended["nonce"]));
    authenticate(&control.api, &of_suspended, &signature).await.expect(403);
    for (from, service) in
        [(address::FAILED_LOGIN, &services.home.id), (address::FAILED_LOGIN_AT_UNKNOWN, &services.unknown.id)]
    {
        let client = client_at(control, from);
        let challenge = challenge(&client, &agents.regular, Some(service)).await;
        authenticate(&client, &challenge, &agents.regular.key.sign("another nonce")).await.expect(400);
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
