//! Tests of a sidecar whose view differs from the data of the control plane.

use super::*;
use crate::{
    reports::{RunningSidecar, next_stream},
    simulated_control_plane::OpenStream,
};
use countersign_identity::{ChecksumScope, ChecksumSettings, Revision, ViewChecksum};

/// The checksum of [`snapshot`].
fn view_check(revision: i64) -> v1::ViewCheck {
    let scope = ChecksumScope { floor: Revision::new(1), time: Timestamp::from_micros(0), without_roles: [].into() };
    let key = AgentHashKey::from_bytes(&AGENT_HASH_KEY).unwrap();
    let settings = ChecksumSettings {
        service: SERVICE_ID,
        issuer: fixtures::ISSUER,
        accepts_unbound: true,
        max_staleness_seconds: 60,
        agent_hash_key: &key,
    };
    let role = fixtures::reader_role();
    let mut checksum = ViewChecksum::new(&scope, settings, [&role].into_iter());
    checksum.add_key(&TestIssuer::new(1).public_point());
    v1::ViewCheck {
        revision,
        floor: 1,
        time_micros: 0,
        agents_without_roles: vec![],
        checksum: checksum.to_bytes().to_vec(),
    }
}

async fn send_check(stream: &OpenStream, check: v1::ViewCheck) {
    stream.send(Message::ViewCheck(check)).await;
}

async fn wait_for_count(admin: SocketAddr, result: &str, expected: u32) {
    let line = format!("countersign_authz_view_checks_total{{result=\"{result}\"}} {expected}\n");
    let wait = async {
        while !metrics(admin).await.contains(&line) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TEST_TIMEOUT, wait).await.unwrap_or_else(|_| panic!("timed out waiting for {line}"));
}

async fn metrics(admin: SocketAddr) -> String {
    let mut connection = TcpStream::connect(admin).await.unwrap();
    connection.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    connection.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn view_that_differs_is_replaced_and_used_until_then() {
    let (port, state, mut streams) = start_control_plane(None).await;
    let sidecar = RunningSidecar::start(&format!("http://127.0.0.1:{port}"), &[]).await;
    let (admin, mut envoy) = (
        sidecar.admin_address,
        AuthorizationClient::connect(format!("http://{}", sidecar.check_address)).await.unwrap(),
    );
    let stream = next_stream(&mut streams).await;
    send_check(&stream, view_check(0)).await;
    stream.send(snapshot()).await;
    wait_for_reason(&mut envoy, &fixtures::claims(), None).await;
    wait_for_count(admin, "skipped", 1).await;
    send_check(&stream, view_check(TOKEN_REVISION)).await;
    wait_for_count(admin, "ok", 1).await;
    // Checksums that cannot be compared: of other data, and with a lower floor.
    send_check(&stream, view_check(TOKEN_REVISION - 1)).await;
    send_check(&stream, v1::ViewCheck { floor: 0, ..view_check(TOKEN_REVISION) }).await;
    wait_for_count(admin, "skipped", 3).await;

    // The view has a revocation that the control plane does not have.
    state.revision.store(TOKEN_REVISION + 1, Ordering::SeqCst);
    state.withhold_pongs.store(true, Ordering::SeqCst);
    let other_token = v1::revocation::Subject::TokenId(TokenId::from_bits(77).to_string());
    stream.send(revocation(TOKEN_REVISION + 1, other_token)).await;
    send_check(&stream, view_check(TOKEN_REVISION + 1)).await;
    let stream = next_stream(&mut streams).await;
    assert_eq!(stream.revision, 0, "a new snapshot is requested");
    wait_for_count(admin, "mismatch", 1).await;
    let revoked = Claims { jti: TokenId::from_bits(77), ..fixtures::claims() };
    assert_eq!(denial_reason(&mut envoy, &fixtures::claims()).await, None, "the view is used meanwhile");
    assert_eq!(denial_reason(&mut envoy, &revoked).await.as_deref(), Some("token_revoked"));
    let revision = TOKEN_REVISION + 1;
    stream.send(Message::Snapshot(v1::SnapshotPage { revision, ..snapshot_page() })).await;
    wait_for_reason(&mut envoy, &revoked, None).await;
    send_check(&stream, view_check(revision)).await;
    wait_for_count(admin, "ok", 2).await;
    sidecar.stop().await;
}
