//! The sync port: who may follow, and what a follower may say.

use super::{
    credentials::{KINDS, Kind, Purse},
    fixture::{Fixture, assert_none},
};
use countersign_proto::v1::{
    FollowRequest, Hello, Ping, follow_request::Message as Ask, follow_response::Message as Told,
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

/// Says this with these credentials; the first thing that is told.
async fn follow(at: &ControlPlane, authorizations: &[Vec<u8>], asks: Vec<Option<Ask>>) -> Result<Option<Told>, Status> {
    let asks = asks.into_iter().map(|message| FollowRequest { message });
    // The follower goes on listening after what it says: a stream that ended would end the answer too.
    let mut request = Request::new(tokio_stream::iter(asks).chain(tokio_stream::pending()));
    for value in authorizations {
        let value = MetadataValue::<Ascii>::try_from(value.as_slice()).unwrap();
        request.metadata_mut().append("authorization", value);
    }
    let mut told = SyncClient::new(channel(at).await).follow(request).await?.into_inner();
    Ok(told.message().await?.and_then(|told| told.message))
}

fn hello() -> Vec<Option<Ask>> {
    vec![Some(Ask::Hello(Hello { revision: 0 }))]
}

/// The service that the first page of a snapshot is about.
fn service(told: Result<Option<Told>, Status>) -> Result<String, (Code, String)> {
    match told {
        Ok(Some(Told::Snapshot(page))) => Ok(page.info.unwrap().service_id),
        Ok(other) => Ok(format!("{other:?}")),
        Err(status) => Err((status.code(), status.message().to_owned())),
    }
}

#[tokio::test]
async fn sync_requires_a_service_key_and_sends_only_its_service() {
    let fixture = Fixture::new().await;
    let purse = Purse::of(&fixture).await;
    let mut faults = Vec::new();
    for kind in KINDS {
        let credentials = if kind == Kind::Nothing { vec![] } else { vec![[b"Bearer ", purse.get(kind)].concat()] };
        let told = service(follow(&fixture.control, &credentials, hello()).await);
        let refused = |reason: &str| Err((Code::Unauthenticated, reason.to_owned()));
        let right = match kind {
            Kind::FullKey | Kind::SyncKey => told.as_deref() == Ok(fixture.control.service()),
            Kind::OthersKey => {
                told.as_ref().is_ok_and(|told| told.starts_with("svc_") && told != fixture.control.service())
            }
            Kind::Nothing | Kind::RawBytes => told == refused("service_key_missing"),
            _ => told == refused("service_key_invalid"),
        };
        faults.extend((!right).then(|| format!("{kind:?}: {told:?}")));
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
        let told = service(follow(&fixture.control, &values, hello()).await);
        let right = matches!(&told, Err((Code::Unauthenticated, _)));
        let shown: Vec<_> = values.iter().map(|value| String::from_utf8_lossy(value).replace(key, "{}")).collect();
        faults.extend((!right).then(|| format!("{shown:.60?}: {told:?}")));
    }
    assert_none(&faults);
}

#[tokio::test]
async fn invalid_sync_messages_are_refused_and_unknown_revisions_get_a_snapshot() {
    let fixture = Fixture::new().await;
    let bearer = [format!("Bearer {}", fixture.control.key()).into_bytes()];
    let from = |revision| vec![Some(Ask::Hello(Hello { revision }))];
    for revision in [-1, i64::MIN, i64::MAX, 1] {
        let told = service(follow(&fixture.control, &bearer, from(revision)).await);
        assert_eq!(told.as_deref(), Ok(fixture.control.service()), "from {revision}");
    }
    for (name, asks) in
        [("a message of nothing", vec![None]), ("a ping before hello", vec![Some(Ask::Ping(Ping { number: 1 }))])]
    {
        let told = follow(&fixture.control, &bearer, asks).await;
        assert_eq!(told.map_err(|status| status.code()).unwrap_err(), Code::InvalidArgument, "{name}");
    }
}
