//! Tests of a sidecar with a copy on disk and several addresses of the control plane.

use super::*;
use tempfile::TempDir;

/// A control plane at one address.
struct Address {
    port: u16,
    state: Arc<SharedState>,
    streams: mpsc::Receiver<OpenStream>,
}

impl Address {
    async fn start() -> Self {
        let (port, state, streams) = start_control_plane().await;
        Self { port, state, streams }
    }

    /// Ends the stream, and refuses the API key from now on.
    async fn refuse_key(&self, stream: &OpenStream) {
        self.state.refuse_streams.store(true, Ordering::SeqCst);
        stream.responses.send(Err(Status::unavailable("restart"))).await.unwrap();
    }
}

/// Two addresses of the control plane, and a sidecar that knows both and has a directory for copies.
struct Fixture {
    addresses: [Address; 2],
    copies: TempDir,
    sidecar: RunningSidecar,
}

impl Fixture {
    async fn new() -> Self {
        let addresses = [Address::start().await, Address::start().await];
        let copies = tempfile::tempdir().unwrap();
        let sidecar = start(&addresses, &copies).await;
        Self { addresses, copies, sidecar }
    }

    /// A fixture whose sidecar decides with a copy, because no address sends data.
    async fn from_copy() -> Self {
        let mut fixture = Self::new().await;
        next_stream(&mut fixture.addresses[0].streams).await.send(snapshot()).await;
        fixture.wait_until_written().await;
        for address in &fixture.addresses {
            address.state.withhold_pongs.store(true, Ordering::SeqCst);
        }
        let Self { addresses, copies, sidecar } = fixture;
        sidecar.stop().await;
        let sidecar = start(&addresses, &copies).await;
        sidecar.wait_for_reason(&fixtures::claims(), None).await;
        Self { addresses, copies, sidecar }
    }

    fn copy(&self) -> Option<PathBuf> {
        copy_in(self.copies.path())
    }

    async fn wait_until_written(&self) {
        wait_until("the copy is written", async || self.copy().is_some()).await;
    }

    async fn wait_until_removed(&self) {
        wait_until("the copy is removed", async || self.copy().is_none()).await;
    }
}

async fn start(addresses: &[Address; 2], copies: &TempDir) -> RunningSidecar {
    let urls = addresses.each_ref().map(|address| format!("http://127.0.0.1:{}", address.port)).join(",");
    let settings = [("copy.directory", copies.path().to_str().unwrap())];
    RunningSidecar::start(&urls, &settings, every_second).await
}

/// The next stream that resumes from the copy. Earlier ones were opened before the copy was used.
async fn next_resumed(address: &mut Address) -> OpenStream {
    loop {
        let stream = next_stream(&mut address.streams).await;
        if stream.hello.revision > 0 {
            assert_eq!(stream.hello.revision, TOKEN_REVISION);
            return stream;
        }
    }
}

#[tokio::test]
async fn restored_view_is_not_replaced_by_older_or_other_data_of_any_address() {
    let mut fixture = Fixture::from_copy().await;
    let older = v1::SnapshotPage { revision: TOKEN_REVISION - 1, keys: Some(v1::Keys::default()), ..snapshot_page() };
    let mut other =
        v1::SnapshotPage { revision: TOKEN_REVISION + 1, keys: Some(v1::Keys::default()), ..snapshot_page() };
    other.info.as_mut().unwrap().agent_hash_key = vec![8; 32];
    for page in [older, other] {
        for address in &mut fixture.addresses {
            let stream = next_resumed(address).await;
            stream.send(Message::Snapshot(page.clone())).await;
            timeout(TEST_TIMEOUT, stream.responses.closed()).await.unwrap();
            assert_eq!(fixture.sidecar.denial_reason(&fixtures::claims()).await, None);
        }
    }
    let stream = next_resumed(&mut fixture.addresses[0]).await;
    let session = Subject::SessionId(SESSION_ID.to_string());
    stream.send(revocation(TOKEN_REVISION + 1, session)).await;
    fixture.sidecar.wait_for_reason(&fixtures::claims(), Some("token_revoked")).await;
    fixture.sidecar.stop().await;
}

#[tokio::test]
async fn copy_is_withdrawn_only_when_every_address_refuses_the_key() {
    let mut fixture = Fixture::from_copy().await;
    let stream = next_resumed(&mut fixture.addresses[0]).await;
    fixture.addresses[0].refuse_key(&stream).await;
    let stream = next_resumed(&mut fixture.addresses[1]).await;
    stream.responses.send(Err(Status::unavailable("restart"))).await.unwrap();
    fixture.addresses[0].state.wait_for_refusals(1).await;
    let stream = next_resumed(&mut fixture.addresses[1]).await;
    assert_eq!(fixture.sidecar.denial_reason(&fixtures::claims()).await, None, "one address may know the key");
    assert!(fixture.copy().is_some());
    fixture.addresses[1].refuse_key(&stream).await;
    fixture.sidecar.wait_for_reason(&fixtures::claims(), Some("sync_key_refused")).await;
    fixture.wait_until_removed().await;
    fixture.sidecar.stop().await;
}

#[tokio::test]
async fn copy_of_a_running_sidecar_is_removed_only_when_every_address_refuses_the_key() {
    let mut fixture = Fixture::new().await;
    let stream = next_stream(&mut fixture.addresses[0].streams).await;
    stream.send(snapshot()).await;
    fixture.wait_until_written().await;
    fixture.addresses[0].refuse_key(&stream).await;
    // The second address confirms the view and ends the stream, so the two refusals of the first address are not in a row.
    let stream = next_stream(&mut fixture.addresses[1].streams).await;
    stream.responses.send(Err(Status::unavailable("restart"))).await.unwrap();
    fixture.addresses[0].state.wait_for_refusals(1).await;
    let stream = next_stream(&mut fixture.addresses[1].streams).await;
    assert!(fixture.copy().is_some());
    fixture.addresses[1].refuse_key(&stream).await;
    fixture.wait_until_removed().await;
    fixture.sidecar.wait_for_reason(&fixtures::claims(), None).await;
    fixture.sidecar.stop().await;
}
