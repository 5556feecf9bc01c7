//! OAuth clients through Envoy: how they find the control plane, and that scopes narrow what they may do.

use countersign_tests::{
    Agent, Environment, HttpResponse,
    control_plane::text,
    eventually,
    oauth::{issuer, log_in, refresh},
};
use serde_json::{Value, json};

/// Sets the resource URIs of the service, in which `{}` stands for the address of Envoy, and waits until the sidecar has them.
async fn set_resources(environment: &Environment, paths: &[&str]) -> Vec<String> {
    let (control, listener) = (&environment.control, &environment.envoy.listener);
    let host = listener.url.clone();
    let uris: Vec<_> = paths.iter().map(|path| format!("{host}{path}")).collect();
    let path = format!("/services/{}", control.service());
    control.api.send_as(control.human(), "PATCH", &path, json!({ "resourceUris": uris })).await.expect(200);
    let challenged = async || Some(challenge(&listener.get("/mcp").await)).filter(|challenge| challenge != "Bearer");
    eventually("the sidecar has the resource URIs", challenged, || environment.sidecar.log()).await;
    uris
}

fn challenge(response: &HttpResponse) -> String {
    response.header("www-authenticate").to_owned()
}

#[tokio::test]
async fn clients_find_the_control_plane_from_the_url_of_a_service() {
    let mut environment = Environment::start().await;
    let listener = environment.envoy.listener.clone();
    let well_known = "/.well-known/oauth-protected-resource";
    assert_eq!(listener.get(well_known).await.status, 401, "without resource URIs, it is a request like others");
    let uris = set_resources(&environment, &["", "/mcp"]).await;
    let host = &uris[0];
    let refused = listener.get("/mcp").await;
    assert_eq!(challenge(&refused), format!(r#"Bearer resource_metadata="{host}{well_known}/mcp""#));
    let below = listener.get_as("nonsense", "/other").await;
    let expected =
        format!(r#"Bearer resource_metadata="{host}{well_known}", error="invalid_token", error_description="#);
    assert!(challenge(&below).starts_with(&expected), "{below:?}");
    let issuer = issuer(&environment.control).await;
    for (path, resource) in [("", host.clone()), ("/mcp", format!("{host}/mcp")), ("/mcp?a=b", format!("{host}/mcp"))] {
        let response = listener.get(&format!("{well_known}{path}")).await;
        assert_eq!(response.header("content-type"), "application/json");
        let document = json!({
            "resource": resource, "authorization_servers": [issuer], "bearer_methods_supported": ["header"],
        });
        assert_eq!(response.expect(200), document, "{path}");
    }
    let head = HttpResponse::send(listener.request("HEAD", well_known)).await;
    assert_eq!((head.status, head.body), (200, json!("")));
    for (method, path) in [("POST", "/mcp"), ("GET", "/unknown")] {
        let response = HttpResponse::send(listener.request(method, &format!("{well_known}{path}"))).await;
        assert_eq!(response.status, 401, "{method} {path}");
    }
    assert_eq!(environment.upstream.received(), 0, "the service has received nothing");

    environment.sidecar.restart();
    environment.sidecar.wait_until_ready().await;
    let same = async || (challenge(&listener.get("/mcp").await) == challenge(&refused)).then_some(());
    eventually("the sidecar has the resource URIs again", same, || environment.sidecar.log()).await;
}

#[tokio::test]
async fn a_narrowed_token_stays_narrow_at_the_sidecar() {
    let environment = Environment::start().await;
    set_resources(&environment, &[""]).await;
    let (control, resource) = (&environment.control, environment.envoy.listener.url.clone());
    let (agent, _) = Agent::with_role(control, "reader", &["read", "list"]).await;
    let login =
        async |scope: &str| log_in(control, &agent, &[("resource", &resource), ("scope", scope)]).await.expect(200);
    let (narrow, wide) = (login("read").await, login("").await);
    let permissions = async |tokens: &Value| {
        environment.call("/", &text(&tokens["access_token"])).await.expect(200)["x-agent-permissions"].clone()
    };
    assert_eq!(permissions(&narrow).await, json!(["read"]));
    assert_eq!(permissions(&wide).await, json!(["list,read"]));
    // The example configuration requires the permission `admin` below /admin.
    control.assign(&agent.id, &control.create_role("administrator", &["admin"]).await).await;
    let has_admin = async || (permissions(&wide).await == json!(["admin,list,read"])).then_some(());
    eventually("the sidecar has the new role", has_admin, || environment.sidecar.log()).await;
    assert_eq!(permissions(&narrow).await, json!(["read"]));
    let next = refresh(control, &text(&narrow["refresh_token"]), &[]).await.expect(200);
    assert_eq!(permissions(&next).await, json!(["read"]));
    let refused = environment.call("/admin", &text(&narrow["access_token"])).await;
    assert_eq!(refused.error(), (403, "INSUFFICIENT_PERMISSIONS", "token_scope_insufficient"));
    assert!(challenge(&refused).contains(r#"error="insufficient_scope", scope="admin""#), "{refused:?}");
    environment.call("/admin", &text(&login("admin").await["access_token"])).await.expect(200);
}
