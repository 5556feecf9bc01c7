//! Tests that the largest possible identity passes Envoy unchanged, and that a larger one cannot be created.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{
    Agent, Environment, HttpResponse, control_plane::text, eventually, verifiers::percent_decoded,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A character of four bytes in UTF-8, each of which is percent-encoded as three characters.
const FOUR_BYTE_CHARACTER: &str = "🤖";

/// How many bytes a list takes in an identity header.
fn header_len(items: &[String]) -> usize {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && !b"%,".contains(&byte);
    let bytes = items.iter().flat_map(|item| item.bytes());
    bytes.map(|byte| if is_plain(byte) { 1 } else { 3 }).sum::<usize>() + items.len() - 1
}

/// The longest role names: at most 64 characters each, and 2048 bytes in a header.
fn role_names() -> Vec<String> {
    let mut names: Vec<_> =
        ('\u{1f600}'..'\u{1f602}').map(|first| format!("{first}{}", FOUR_BYTE_CHARACTER.repeat(63))).collect();
    let free_bytes = 2048 - header_len(&names) - 1;
    names.push(FOUR_BYTE_CHARACTER.repeat(free_bytes / 12) + &"x".repeat(free_bytes % 12));
    assert!(names.last().unwrap().chars().count() <= 64);
    assert_eq!(header_len(&names), 2048);
    names
}

/// The longest permissions: at most 128 characters each, and 4096 bytes in a header.
fn permissions() -> Vec<String> {
    let mut permissions: Vec<_> = (0..10).map(|number| format!("{number:02}{}", "%".repeat(126))).collect();
    let free_bytes = 4096 - header_len(&permissions) - 1;
    permissions.push("%".repeat(free_bytes / 3) + &"~".repeat(free_bytes % 3));
    assert!(permissions.last().unwrap().len() <= 128);
    assert_eq!(header_len(&permissions), 4096);
    permissions
}

/// How many bytes all identity headers take in a request.
fn identity_header_bytes(received_headers: &Value) -> usize {
    let headers = received_headers.as_object().unwrap().iter().filter(|(name, _)| name.starts_with("x-agent-"));
    headers.map(|(name, values)| name.len() + ": ".len() + values[0].as_str().unwrap().len() + "\r\n".len()).sum()
}

fn decode_items(header: &Value) -> BTreeSet<String> {
    header[0].as_str().unwrap().split(',').map(percent_decoded).collect()
}

#[tokio::test]
async fn largest_identity_reaches_the_service_and_a_larger_one_returns_409() {
    let environment = Environment::start().await;
    let control = &environment.control;
    let name = FOUR_BYTE_CHARACTER.repeat(128);
    let agent = Agent::register(control, &name).await;
    let (names, permissions) = (role_names(), permissions());
    let assignments = control.path(&format!("/agents/{}/roles", agent.id));
    let all_permissions: Vec<_> = permissions.iter().map(String::as_str).collect();
    for name in &names {
        let role = control.create_role(name, &all_permissions).await;
        control.assign(&agent.id, &role).await;
    }

    let extra_role = control.create_role("x", &[]).await;
    let response = control.api.send_as(control.key(), "POST", &assignments, json!({ "roleId": extra_role })).await;
    assert_eq!((response.status, response.text("/error/code")), (409, "CONFLICT"), "{}", response.body);
    let extra_permission = json!({ "name": "more", "permissions": ["x"] });
    let response = control.api.send_as(control.key(), "POST", &control.path("/roles"), extra_permission.clone()).await;
    assert_eq!((response.status, response.text("/error/code")), (409, "CONFLICT"), "{}", response.body);
    let long_permission = json!({ "permissions": ["x".repeat(129)] });
    let path = control.path(&format!("/roles/{extra_role}"));
    let response = control.api.send_as(control.key(), "PATCH", &path, long_permission).await;
    assert_eq!((response.status, response.text("/error/code")), (400, "VALIDATION_ERROR"), "{}", response.body);

    let token = agent.token().await;
    let verified = control.verify(&token).await.expect(200);
    let listed = |name: &str| -> BTreeSet<_> { verified["agent"][name].as_array().unwrap().iter().map(text).collect() };
    let (roles, permitted): (BTreeSet<_>, BTreeSet<_>) =
        (names.into_iter().collect(), permissions.into_iter().collect());
    assert_eq!((listed("roles"), listed("permissions")), (roles.clone(), permitted.clone()));

    let http2_client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    for client in [&environment.envoy.listener.client, &http2_client] {
        for header in ["authorization", "x-agent-token"] {
            let request = client.get(&environment.envoy.listener.url).header(header, format!("Bearer {token}"));
            // On a busy machine, Envoy's timeout may pass before the sidecar responds, so try again.
            let checked = async || {
                Some(HttpResponse::send(request.try_clone().unwrap()).await).filter(|response| response.status != 503)
            };
            let received_headers =
                eventually("the sidecar responds in time", checked, || environment.sidecar.log()).await.expect(200);
            assert_eq!(
                (
                    decode_items(&received_headers["x-agent-roles"]),
                    decode_items(&received_headers["x-agent-permissions"])
                ),
                (roles.clone(), permitted.clone())
            );
            assert_eq!(decode_items(&received_headers["x-agent-name"]), BTreeSet::from([name.clone()]));
            let bytes = identity_header_bytes(&received_headers);
            assert!((7 * 1024..8 * 1024).contains(&bytes), "the documentation promises less than 8 KiB: {bytes}");
        }
    }
}
