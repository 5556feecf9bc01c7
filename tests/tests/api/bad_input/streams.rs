//! The sync port: which credentials may follow, and which messages are accepted.

use super::{
    credentials::{Credentials, KINDS, Kind},
    fixture::{Fixture, assert_none},
};
use countersign_proto::v1::{
    FollowRequest, Hello, Ping, follow_request::Message as ClientMessage, follow_response::Message as ServerMessage,
    sync_client::SyncClient,
};
use countersign_tests::ControlPlane;
use tokio_stream::StreamExt;
use tonic::{
    Code, Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

async fn channel(control: &ControlPlane) -> Channel {
    let authority = Certificate::from_pem(control.authority());
    let endpoint = Endpoint::from_shared(control.env["SYNC_URL"].clone()).unwrap();
    let endpoint = endpoint.tls_config(ClientTlsConfig::new().ca_certificate(authority)).unwrap();
    endpoint.connect().await.expect("the sync port answers")
}

/// Sends messages with these `authorization` values; returns the first message of the server.
async fn follow(
    control: &ControlPlane,
    authorizations: &[Vec<u8>],
    messages: Vec<Option<ClientMessage>>,
) -> Result<Option<ServerMessage>, Status> {
    let messages = messages.into_iter().map(|message| FollowRequest { message });
    // Keep the request stream open: its end would end the response stream too.
    let mut request = Request::new(tokio_stream::iter(messages).chain(tokio_stream::pending()));
    for value in authorizations {
        let value = MetadataValue::<Ascii>::try_from(value.as_slice()).unwrap();
        request.metadata_mut().append("authorization", value);
    }
    let mut response = SyncClient::new(channel(control).await).follow(request).await?.into_inner();
    Ok(response.message().await?.and_then(|response| response.message))
}

fn hello() -> Vec<Option<ClientMessage>> {
    vec![Some(ClientMessage::Hello(Hello { revision: 0 }))]
}

/// The service id of the first page of a snapshot.
fn service(response: Result<Option<ServerMessage>, Status>) -> Result<String, (Code, String)> {
    match response {
        Ok(Some(ServerMessage::Snapshot(page))) => Ok(page.info.unwrap().service_id),
        Ok(other) => Ok(format!("{other:?}")),
        Err(status) => Err((status.code(), status.message().to_owned())),
    }
}

#[tokio::test]
async fn sync_requires_a_service_key_and_sends_only_its_service() {
    let fixture = Fixture::new().await;
    let credentials = Credentials::of(&fixture).await;
    let mut faults = Vec::new();
    for kind in KINDS {
        let authorizations =
            if kind == Kind::Nothing { vec![] } else { vec![[b"Bearer ", credentials.get(kind)].concat()] };
        let response = service(follow(&fixture.control, &authorizations, hello()).await);
        let refused = |reason: &str| Err((Code::Unauthenticated, reason.to_owned()));
        let right = match kind {
            Kind::FullKey | Kind::SyncKey => response.as_deref() == Ok(fixture.control.service()),
            Kind::OtherServiceKey => response
                .as_ref()
                .is_ok_and(|response| response.starts_with("svc_") && response != fixture.control.service()),
            Kind::Nothing | Kind::RawBytes => response == refused("service_key_missing"),
            _ => response == refused("service_key_invalid"),
        };
        faults.extend((!right).then(|| format!("{kind:?}: {response:?}")));
    }
    assert_none(&faults);
}

#[tokio::test]
async fn sync_refuses_anything_but_exactly_one_key() {
    let fixture = Fixture::new().await;
    let key = fixture.control.key();
    let v = |text: &str| text.replace("{}", key).into_bytes();
    let mut faults = Vec::new();
    for values in [
        vec![v("")],
        vec![v("{}")],
        vec![v("Bearer")],
        vec![v("Bearer ")],
        vec![v("Basic {}")],
        vec![v("Bearer {} {}")],
        vec![v("Bearer {},Bearer {}")],
        vec![v("Bearer {}"), v("Bearer {}")],
        vec![v("Bearer {}"), v("Bearer nonsense")],
        vec![v("Bearer nonsense"), v("Bearer {}")],
        vec![[&v("Bearer {}")[..], b"\xff"].concat()],
        vec![v("Bearer {}").to_ascii_uppercase()],
        vec![v(&format!("Bearer {{}}{}", "0".repeat(8_000)))],
    ] {
        let response = service(follow(&fixture.control, &values, hello()).await);
        let right = matches!(&response, Err((Code::Unauthenticated, _)));
        let shown: Vec<_> = values.iter().map(|value| String::from_utf8_lossy(value).replace(key, "{}")).collect();
        faults.extend((!right).then(|| format!("{shown:.60?}: {response:?}")));
    }
    assert_none(&faults);
}

#[tokio::test]
async fn invalid_sync_messages_are_refused_and_unknown_revisions_get_a_snapshot() {
    let fixture = Fixture::new().await;
    let bearer = [format!("Bearer {}", fixture.control.key()).into_bytes()];
    let from = |revision| vec![Some(ClientMessage::Hello(Hello { revision }))];
    for revision in [-1, i64::MIN, i64::MAX, 1] {
        let response = service(follow(&fixture.control, &bearer, from(revision)).await);
        assert_eq!(response.as_deref(), Ok(fixture.control.service()), "from {revision}");
    }
    for (name, messages) in
        [("an empty message", vec![None]), ("a ping before hello", vec![Some(ClientMessage::Ping(Ping { number: 1 }))])]
    {
        let response = follow(&fixture.control, &bearer, messages).await;
        assert_eq!(response.map_err(|status| status.code()).unwrap_err(), Code::InvalidArgument, "{name}");
    }
}
