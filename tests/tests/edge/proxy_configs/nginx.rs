//! The real nginx with the printed configuration.

use countersign_tests::{Agent, ControlPlane, Nginx, RawRequest, Shell, Upstream};
use serde_json::{Value, json};
use std::path::Path;

/// Starts nginx in front of an upstream.
async fn start_nginx(control: &ControlPlane, upstream: &Upstream) -> Nginx {
    let site = |listen: &str, folder: &Path| {
        let (key, site) = (folder.join("key"), folder.join("site.conf"));
        let service = format!("127.0.0.1:{}", upstream.port);
        let shell = Shell::with_env(control, &["URL", "CA", "SERVICE_ID"]);
        let options = ["--listen", listen, "--upstream", &service, "--key-file", key.to_str().unwrap()];
        let config = shell.stdout(&[["envoy", "config", "--target", "nginx"].as_slice(), &options].concat());
        std::fs::write(&site, config).unwrap();
        std::fs::write(&key, format!("proxy_set_header Authorization \"Bearer {}\";\n", control.key())).unwrap();
        format!("include {};", site.display())
    };
    Nginx::start(site).await
}

fn forged(path: &str) -> RawRequest {
    let names =
        ["x-agent-roles", "X-Agent-Id", "x_agent_roles", "x-agent.roles", "x-agent-reason", "x-agent-permissions"];
    names.into_iter().fold(RawRequest::get(path), |request, name| request.with(name, "forged"))
}

#[tokio::test]
async fn nginx_asks_verify_and_passes_the_identity() {
    let control = ControlPlane::start().await;
    let upstream = Upstream::start().await;
    let nginx = start_nginx(&control, &upstream).await;
    let agent = Agent::register(&control, "Größe, 100%").await;
    let role = control.create_role("reader", &["read", "list"]).await;
    let roleless = forged("/").bearer(&agent.token().await).send(&nginx.listener).await;
    assert_eq!((roleless.status, roleless.header("x-agent-reason")), (403, "no_role"));
    control.assign(&agent.id, &role).await;
    let token = agent.token().await;

    for request in [forged("/a?b=c").bearer(&token), forged("/a?b=c").with("x-agent-token", format!("Bearer {token}"))]
    {
        let response = request.send(&nginx.listener).await;
        assert_eq!(response.header("x-upstream-path"), "/a?b=c");
        let received = response.expect(200);
        let identity: Vec<(&String, &Value)> =
            received.as_object().unwrap().iter().filter(|(name, _)| name.contains("agent")).collect();
        let token_id = &received["x-agent-token-id"][0];
        assert!(token_id.as_str().unwrap().starts_with("tok_"));
        let expected = json!({
            "x-agent-id": [agent.id], "x-agent-name": ["Gr%C3%B6%C3%9Fe%2C 100%25"], "x-agent-permissions": ["list,read"],
            "x-agent-roles": ["reader"], "x-agent-service": [control.service()], "x-agent-token-id": [token_id],
            "x-agent-trust-score": ["50"],
        });
        assert_eq!(identity, expected.as_object().unwrap().iter().collect::<Vec<_>>());
        assert!(received.get("authorization").is_none(), "the service receives no token");
    }
    let health = forged("/health").send(&nginx.listener).await.expect(200);
    assert!(health.as_object().unwrap().keys().all(|name| !name.contains("agent")), "{health}");
    assert_eq!(RawRequest::get("/_countersign/verify").bearer(&token).send(&nginx.listener).await.status, 404);
    let unasked = control.verify(&token).await;
    assert!(unasked.headers.keys().all(|name| !name.as_str().starts_with("x-agent-")), "headers only on request");
}

#[tokio::test]
async fn nginx_refuses_as_verify_does_and_fails_closed() {
    let mut control = ControlPlane::start_process().await;
    let upstream = Upstream::start().await;
    let nginx = start_nginx(&control, &upstream).await;
    let received_before = upstream.received();
    let (agent, _) = Agent::with_role(&control, "reader", &["read"]).await;
    let token = agent.token().await;
    for (request, expected) in [(forged("/"), "token_missing"), (forged("/").bearer("root"), "token_malformed")] {
        let response = request.send(&nginx.listener).await;
        assert_eq!((response.status, response.header("x-agent-reason")), (401, expected), "{response:?}");
        assert!(response.header("www-authenticate").starts_with("Bearer"), "{response:?}");
    }
    assert_eq!(upstream.received(), received_before);
    forged("/").bearer(&token).send(&nginx.listener).await.expect(200);
    control.set_status(&agent.id, "suspended").await.expect(200);
    let suspended = forged("/").bearer(&token).send(&nginx.listener).await;
    assert_eq!((suspended.status, suspended.header("x-agent-reason")), (403, "agent_suspended"));
    control.kill();
    let unavailable = forged("/").bearer(&token).send(&nginx.listener).await;
    assert_eq!((unavailable.status, unavailable.header("retry-after")), (503, "1"), "{unavailable:?}");
    assert_eq!(upstream.received(), received_before + 1);
}
