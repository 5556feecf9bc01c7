//! Tests which credentials and messages the sync port accepts.

use super::{
    credentials::{CREDENTIAL_KINDS, CredentialKind, Credentials},
    fixture::{Failures, Fixture},
};
use countersign_proto::v1::{
    FollowRequest, Ping, follow_request::Message as ClientMessage, follow_response::Message as ServerMessage,
    sync_client::SyncClient,
};
use countersign_tests::{
    ControlPlane,
    follower::{channel, hello},
};
use tokio_stream::StreamExt;
use tonic::{
    Code, Request, Status,
    metadata::{Ascii, MetadataValue},
};

/// Sends messages with these `authorization` values. Returns the first message of the server.
async fn follow(
    control: &ControlPlane,
    authorizations: &[Vec<u8>],
    messages: Vec<Option<ClientMessage>>,
) -> Result<Option<ServerMessage>, Status> {
    let messages = messages.into_iter().map(|message| FollowRequest { message });
    // Keep the request stream open: its end would also end the response stream.
    let mut request = Request::new(tokio_stream::iter(messages).chain(tokio_stream::pending()));
    for value in authorizations {
        let value = MetadataValue::<Ascii>::try_from(value.as_slice()).unwrap();
        request.metadata_mut().append("authorization", value);
    }
    let mut response = SyncClient::new(channel(control).await).follow(request).await?.into_inner();
    Ok(response.message().await?.and_then(|response| response.message))
}

fn hello_messages() -> Vec<Option<ClientMessage>> {
    vec![Some(ClientMessage::Hello(hello(0)))]
}

/// The service id of the first page of a snapshot.
fn snapshot_service_id(response: Result<Option<ServerMessage>, Status>) -> Result<String, (Code, String)> {
    match response {
        Ok(Some(ServerMessage::Snapshot(page))) => Ok(page.info.unwrap().service_id),
        Ok(other) => Ok(format!("{other:?}")),
        Err(status) => Err((status.code(), status.message().to_owned())),
    }
}

#[tokio::test]
async fn sync_requires_a_service_key_and_sends_only_its_service() {
    let fixture = Fixture::new().await;
    let credentials = Credentials::create(&fixture).await;
    let mut failures = Failures::default();
    for kind in CREDENTIAL_KINDS {
        let authorizations = if kind == CredentialKind::NoCredential {
            vec![]
        } else {
            vec![[b"Bearer ", credentials.get(kind)].concat()]
        };
        let response = snapshot_service_id(follow(&fixture.control, &authorizations, hello_messages()).await);
        let refused = |reason: &str| Err((Code::Unauthenticated, reason.to_owned()));
        let is_expected = match kind {
            CredentialKind::FullKey | CredentialKind::SyncKey => response.as_deref() == Ok(fixture.control.service()),
            CredentialKind::OtherServiceKey => response
                .as_ref()
                .is_ok_and(|response| response.starts_with("svc_") && response != fixture.control.service()),
            CredentialKind::NoCredential | CredentialKind::RawBytes => response == refused("service_key_missing"),
            _ => response == refused("service_key_invalid"),
        };
        failures.check(is_expected, || format!("{kind:?}: {response:?}"));
    }
    failures.assert_none();
}

#[tokio::test]
async fn sync_refuses_missing_malformed_and_repeated_keys() {
    let fixture = Fixture::new().await;
    let key = fixture.control.key();
    let value = |text: &str| text.replace("{}", key).into_bytes();
    let mut failures = Failures::default();
    let single = ["", "{}", "Bearer", "Bearer ", "Basic {}", "Bearer {} {}", "Bearer {},Bearer {}"];
    for values in single.map(|text| vec![value(text)]).into_iter().chain([
        vec![value("Bearer {}"), value("Bearer {}")],
        vec![value("Bearer {}"), value("Bearer nonsense")],
        vec![value("Bearer nonsense"), value("Bearer {}")],
        vec![[&value("Bearer {}")[..], b"\xff"].concat()],
        vec![value("Bearer {}").to_ascii_uppercase()],
        vec![value(&format!("Bearer {{}}{}", "0".repeat(8_000)))],
    ]) {
        let response = snapshot_service_id(follow(&fixture.control, &values, hello_messages()).await);
        let is_expected = matches!(&response, Err((Code::Unauthenticated, _)));
        let shown: Vec<_> = values.iter().map(|value| String::from_utf8_lossy(value).replace(key, "{}")).collect();
        failures.check(is_expected, || format!("{shown:.60?}: {response:?}"));
    }
    failures.assert_none();
}

#[tokio::test]
async fn invalid_sync_messages_are_refused_and_unknown_revisions_get_a_snapshot() {
    let fixture = Fixture::new().await;
    let bearer = [format!("Bearer {}", fixture.control.key()).into_bytes()];
    let hello_from = |revision| vec![Some(ClientMessage::Hello(hello(revision)))];
    for revision in [-1, i64::MIN, i64::MAX, 1] {
        let response = snapshot_service_id(follow(&fixture.control, &bearer, hello_from(revision)).await);
        assert_eq!(response.as_deref(), Ok(fixture.control.service()), "from {revision}");
    }
    for (name, messages) in
        [("an empty message", vec![None]), ("a ping before hello", vec![Some(ClientMessage::Ping(Ping { number: 1 }))])]
    {
        let response = follow(&fixture.control, &bearer, messages).await;
        assert_eq!(response.map_err(|status| status.code()).unwrap_err(), Code::InvalidArgument, "{name}");
    }
}
