//! Tests of what the sidecar reports about the data with which it decides.

use super::*;
use crate::simulated_control_plane::Report;
use prost::Message as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

const LATER: i64 = TOKEN_REVISION + 1;

/// The next report; `None` after the end of the requests.
async fn next_report(stream: &mut OpenStream) -> Option<Report> {
    timeout(TEST_TIMEOUT, stream.reports.recv()).await.unwrap()
}

/// A snapshot of a control plane with this version of the protocol.
fn snapshot_of_version(protocol_version: u32) -> Message {
    let mut page = snapshot_page();
    page.info.as_mut().unwrap().protocol_version = protocol_version;
    Message::Snapshot(page)
}

#[tokio::test]
async fn sidecar_reports_each_change_and_that_it_leaves() {
    let mut fixture = Fixture::new(&[]).await;
    let v1::Hello { instance, release, previous_instance, .. } = fixture.stream.hello.clone();
    let v1::Hello { revision, protocol_version, partial_snapshot, stream_number, .. } = fixture.stream.hello;
    assert_eq!((revision, protocol_version, partial_snapshot, stream_number), (0, 1, None, 1));
    assert_eq!((instance.len(), previous_instance.len(), release.is_empty()), (16, 0, false));
    fixture.stream.send(snapshot()).await;
    assert_eq!(next_report(&mut fixture.stream).await, Some(Report::Applied(TOKEN_REVISION)));
    fixture.send_change(LATER).await;
    assert_eq!(next_report(&mut fixture.stream).await, Some(Report::Applied(LATER)));

    // The next stream resumes at the reported revision, and reports it again.
    let Fixture { mut streams, stream, state, url: _, sidecar } = fixture;
    stream.responses.send(Err(Status::unavailable("restart"))).await.unwrap();
    let mut stream = next_stream(&mut streams).await;
    assert_eq!((stream.hello.revision, &stream.hello.instance), (LATER, &instance));
    assert_eq!(stream.hello.stream_number, 2);
    state.revision.store(LATER + 1, Ordering::SeqCst);
    stream
        .send(Message::Delta(v1::Delta { info: snapshot_page().info, revision: LATER, ..v1::Delta::default() }))
        .await;
    assert_eq!(next_report(&mut stream).await, Some(Report::Applied(LATER)));
    stream.send(revocation(LATER + 1, Subject::TokenId(TokenId::from_bits(77).to_string()))).await;
    assert_eq!(next_report(&mut stream).await, Some(Report::Applied(LATER + 1)));
    sidecar.stop().await;
    assert_eq!(next_report(&mut stream).await, Some(Report::Leaving));
    assert_eq!(next_report(&mut stream).await, None);
}

/// The view of a stream is used although the next control plane speaks another version of the protocol.
#[tokio::test]
async fn control_plane_of_another_version_is_refused_and_the_view_is_kept() {
    let Fixture { mut streams, stream, state: _, url: _, sidecar } = Fixture::new(&[]).await;
    stream.send(snapshot()).await;
    sidecar.wait_for_reason(&fixtures::claims(), None).await;
    stream.responses.send(Err(Status::unavailable("restart"))).await.unwrap();
    let stream = next_stream(&mut streams).await;
    stream.send(snapshot_of_version(2)).await;
    let next = next_stream(&mut streams).await;
    assert_eq!(next.hello.revision, TOKEN_REVISION, "the sidecar has ended the stream, and resumes at its view");
    assert_eq!(sidecar.denial_reason(&fixtures::claims()).await, None);
    sidecar.stop().await;
}

#[tokio::test]
async fn sidecar_without_a_stream_ends_at_once() {
    let sidecar = RunningSidecar::start("http://127.0.0.1:1", &[], every_second).await;
    sidecar.shutdown.trigger();
    timeout(Duration::from_millis(900), sidecar.server).await.unwrap().unwrap().unwrap();
}

fn instance_of(stream: &OpenStream) -> Vec<u8> {
    stream.hello.instance.clone()
}

#[tokio::test]
async fn report_waits_for_the_copy_and_the_next_process_names_the_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("copies");
    // The interval does not pass during the test, so the copy is only written when a report waits for it.
    let copy_interval: fn(Duration) -> Duration = |_| Duration::from_hours(1);
    let settings = [("copy.directory", directory.to_str().unwrap())];
    let mut first = Fixture::with_copy_interval(&settings, copy_interval).await;
    first.stream.send(snapshot()).await;
    assert_eq!(next_report(&mut first.stream).await, Some(Report::Applied(TOKEN_REVISION)));
    wait_for_copy(&directory).await;
    // The copy must be replaced before the change is reported. A directory at its place prevents that.
    let path = copy_in(&directory).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    first.send_change(LATER).await;
    assert!(timeout(Duration::from_millis(500), first.stream.reports.recv()).await.is_err());
    std::fs::remove_dir(&path).unwrap();

    // The directory is locked, so a second process has no copies: its reports do not wait, and it says when it stops deciding.
    let second = RunningSidecar::start(&first.url, &settings, copy_interval).await;
    let mut stream = next_stream(&mut first.streams).await;
    assert_ne!(instance_of(&stream), instance_of(&first.stream));
    assert_eq!(stream.hello.previous_instance, [0; 0]);
    stream.send(snapshot()).await;
    assert_eq!(next_report(&mut stream).await, Some(Report::Applied(TOKEN_REVISION)));
    second.stop().await;
    assert_eq!(next_report(&mut stream).await, Some(Report::Leaving));

    // The first process leaves a copy on disk, so it does not say that it stops deciding.
    let Fixture { mut streams, stream: mut of_first, state: _, url, sidecar } = first;
    sidecar.stop().await;
    assert!(copy_in(&directory).is_some());
    while let Some(report) = next_report(&mut of_first).await {
        assert_eq!(report, Report::Applied(LATER));
    }
    let _third = RunningSidecar::start(&url, &settings, copy_interval).await;
    let stream = next_stream(&mut streams).await;
    assert_eq!(stream.hello.previous_instance, instance_of(&of_first));
}

/// If the copy cannot be replaced, the stream still delivers changes. But the sidecar does not report them, because a later process
/// may decide with the old copy.
#[tokio::test]
async fn resumed_data_is_reported_when_the_copy_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("copies");
    let settings = [("copy.directory", directory.to_str().unwrap())];
    let mut fixture = Fixture::new(&settings).await;
    fixture.stream.send(snapshot()).await;
    assert_eq!(next_report(&mut fixture.stream).await, Some(Report::Applied(TOKEN_REVISION)));
    wait_for_copy(&directory).await;
    let path = copy_in(&directory).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    fixture.send_change(LATER).await;
    assert!(timeout(Duration::from_millis(500), fixture.stream.reports.recv()).await.is_err());
    fixture.stream.responses.send(Err(Status::unavailable("restart"))).await.unwrap();
    let mut next = next_stream(&mut fixture.streams).await;
    assert_eq!(next.hello.revision, LATER, "the stream resumes at the data in use");
    next.send(Message::Delta(v1::Delta { info: snapshot_page().info, revision: LATER, ..v1::Delta::default() })).await;
    assert!(timeout(Duration::from_millis(500), next.reports.recv()).await.is_err());
    std::fs::remove_dir(&path).unwrap();
    assert_eq!(next_report(&mut next).await, Some(Report::Applied(LATER)), "the copy is written");
}

async fn wait_for_copy(directory: &Path) {
    wait_until("the copy is written", async || copy_in(directory).is_some()).await;
}

/// Encodes requests for checks, so that a test can begin a check and send its message later.
struct CheckCodec;

impl Codec for CheckCodec {
    type Encode = CheckRequest;
    type Decode = CheckResponse;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for CheckCodec {
    type Item = CheckRequest;
    type Error = Status;

    fn encode(&mut self, item: CheckRequest, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for CheckCodec {
    type Item = CheckResponse;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<CheckResponse>, Status> {
        CheckResponse::decode(buffer).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

#[tokio::test]
async fn sidecar_leaves_after_the_last_check_is_answered() {
    let mut fixture = Fixture::new(&[]).await;
    fixture.stream.send(snapshot()).await;
    assert_eq!(next_report(&mut fixture.stream).await, Some(Report::Applied(TOKEN_REVISION)));
    let address = format!("http://{}", fixture.sidecar.check_address);
    let mut envoy = Grpc::new(Endpoint::from_shared(address).unwrap().connect().await.unwrap());
    let (sender, requests) = mpsc::channel(1);
    envoy.ready().await.unwrap();
    let path = "/envoy.service.auth.v3.Authorization/Check".parse().unwrap();
    let check = tokio::spawn(async move {
        envoy.client_streaming(Request::new(ReceiverStream::new(requests)), path, CheckCodec).await
    });
    tokio::time::sleep(Duration::from_millis(300)).await;

    // While the check is in progress, changes still take effect and are reported.
    fixture.sidecar.shutdown.trigger();
    tokio::time::sleep(Duration::from_millis(300)).await;
    fixture.send_change(LATER).await;
    assert_eq!(next_report(&mut fixture.stream).await, Some(Report::Applied(LATER)));
    let early = timeout(Duration::from_secs(1), fixture.stream.reports.recv()).await;
    assert!(early.is_err(), "{early:?} before the check is answered");
    assert!(!check.is_finished());
    sender.send(CheckRequest::default()).await.unwrap();
    drop(sender);
    let answer: CheckResponse = timeout(TEST_TIMEOUT, check).await.unwrap().unwrap().unwrap().into_inner();
    assert!(answer.http_response.is_some());
    assert_eq!(next_report(&mut fixture.stream).await, Some(Report::Leaving));
    assert_eq!(next_report(&mut fixture.stream).await, None);
    // The control plane ends the stream.
    drop(fixture.stream);
    timeout(TEST_TIMEOUT, fixture.sidecar.server).await.unwrap().unwrap().unwrap();
}
