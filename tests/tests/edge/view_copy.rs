//! The copy of the view on disk: a sidecar that starts while the control plane is away.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{Agent, ControlPlane, Sidecar, eventually};
use serde_json::json;
use std::{fs, path::PathBuf, time::Duration};
use tempfile::TempDir;

const IN_USE: &str = "countersign_authz_view_copy_in_use";
const WRITTEN: &str = "countersign_authz_view_copy_writes_total{result=\"ok\"}";

/// A control plane with an agent that has a role, and a sidecar with a copy.
struct Fixture {
    control: ControlPlane,
    sidecar: Sidecar,
    agent: Agent,
    role: String,
    token: String,
    copies: TempDir,
}

impl Fixture {
    async fn new(max_staleness_seconds: u32) -> Self {
        let limit = format!("sync.max_staleness_seconds={max_staleness_seconds}");
        let control = ControlPlane::start_with(&[&limit]).await;
        let copies = tempfile::tempdir().unwrap();
        let key = control.create_key(control.service(), "sync").await;
        let directory = format!("copy.directory={}", copies.path().join("copies").display());
        let sidecar = Sidecar::start_with(&control, &[&key], &[&directory, "copy.interval_seconds=1"]);
        sidecar.wait_until_ready().await;
        let agent = Agent::register(&control, "agent").await;
        let role = control.create_role("reader", &["read"]).await;
        control.assign(&agent.id, &role).await;
        let token = agent.token().await;
        let fixture = Self { control, sidecar, agent, role, token, copies };
        fixture.wait_for_check(200).await;
        fixture.wait_for_write().await;
        fixture
    }

    fn file(&self) -> PathBuf {
        let entries = fs::read_dir(self.copies.path().join("copies")).unwrap();
        let mut paths = entries.map(|entry| entry.unwrap().path());
        paths.find(|path| path.extension().is_some_and(|extension| extension == "copy")).unwrap()
    }

    /// Waits until two more copies are written: the second one was begun after the call.
    async fn wait_for_write(&self) {
        let before = self.sidecar.metric(WRITTEN).await.unwrap();
        let written = async || self.sidecar.metric(WRITTEN).await.filter(|count| *count >= before + 2.0);
        eventually("a copy is written", written, || self.sidecar.log()).await;
    }

    /// Waits until the check of the token has this status. Returns its reason.
    async fn wait_for_check(&self, status: u16) -> String {
        let result =
            async || Some(self.sidecar.check_token(&self.token).await).filter(|result| result.status == status);
        eventually("the check has its result", result, || self.sidecar.log()).await.reason
    }

    async fn wait_for_rejection(&self, reason: &str) {
        // After this line, the ports of the restarted sidecar are open.
        let logged = format!("reason=\"{reason}\"");
        let logged = async || self.sidecar.log().contains(&logged).then_some(());
        eventually("the reason is logged", logged, || self.sidecar.log()).await;
        let line = format!("countersign_authz_view_copy_rejected_total{{reason=\"{reason}\"}}");
        let counted = async || self.sidecar.metric(&line).await.filter(|count| *count > 0.0);
        eventually("the copy is rejected", counted, || self.sidecar.log()).await;
        assert_eq!(self.sidecar.admin.get("/readyz").await.status, 503);
        assert_eq!(self.sidecar.check_token(&self.token).await.reason, "view_missing");
    }

    async fn wait_for_metric(&self, name: &str, value: f64) {
        let reached = async || self.sidecar.metric(name).await.filter(|current| (current - value).abs() < 0.5);
        eventually(name, reached, || self.sidecar.log()).await;
    }

    async fn revoke_role(&self) {
        let path = self.control.path(&format!("/agents/{}/roles/{}", self.agent.id, self.role));
        self.control.api.send_as(self.control.human(), "DELETE", &path, json!({})).await.expect(200);
    }
}

#[tokio::test]
async fn sidecar_starts_from_its_copy_and_is_healed_when_the_control_plane_is_back() {
    let mut fixture = Fixture::new(600).await;
    for restart in 0..2 {
        fixture.control.signal("STOP");
        fixture.sidecar.restart();
        fixture.wait_for_check(200).await;
        assert_eq!(fixture.sidecar.admin.get("/readyz").await.status, 200, "{restart}");
        fixture.wait_for_metric(IN_USE, 1.0).await;
        fixture.control.signal("CONT");
        fixture.wait_for_metric(IN_USE, 0.0).await;
    }
    fixture.revoke_role().await;
    assert_eq!(fixture.wait_for_check(403).await, "no_role");
    assert!(!fixture.sidecar.log().contains("svc_sk_"), "{}", fixture.sidecar.log());
}

#[tokio::test]
async fn nothing_is_accepted_with_a_copy_after_max_staleness() {
    let mut fixture = Fixture::new(6).await;
    fixture.control.signal("STOP");
    fixture.sidecar.restart();
    fixture.wait_for_check(200).await;
    assert_eq!(fixture.wait_for_check(503).await, "view_stale");
    fixture.sidecar.restart();
    fixture.wait_for_rejection("too_old").await;
    fixture.control.signal("CONT");
    fixture.wait_for_check(200).await;
}

/// Who can write to the disk can undo a revocation until the control plane is back, or until the instant of the older copy plus
/// `max_staleness`.
#[tokio::test]
async fn older_copy_undoes_a_revocation_only_within_its_own_max_staleness() {
    let mut fixture = Fixture::new(12).await;
    let older = fs::read(fixture.file()).unwrap();
    fixture.revoke_role().await;
    fixture.wait_for_check(403).await;
    fixture.wait_for_write().await;
    fixture.control.signal("STOP");
    fixture.sidecar.restart();
    assert_eq!(fixture.wait_for_check(403).await, "no_role", "the own copy contains the revocation");
    fixture.sidecar.kill();
    fs::write(fixture.file(), &older).unwrap();
    fixture.sidecar.restart();
    fixture.wait_for_check(200).await;
    fixture.control.signal("CONT");
    assert_eq!(fixture.wait_for_check(403).await, "no_role", "the control plane is back");

    fixture.control.signal("STOP");
    fixture.sidecar.kill();
    tokio::time::sleep(Duration::from_secs(12)).await;
    fs::write(fixture.file(), &older).unwrap();
    fixture.sidecar.restart();
    fixture.wait_for_rejection("too_old").await;
}

#[tokio::test]
async fn damaged_and_foreign_copies_are_rejected_and_replaced() {
    let mut fixture = Fixture::new(600).await;
    let good = fs::read(fixture.file()).unwrap();
    let mut corrupt = good.clone();
    corrupt[good.len() / 2] ^= 1;
    let truncated = good[..good.len() - 1].to_vec();
    let other = Fixture::new(600).await;
    let foreign = fs::read(other.file()).unwrap();
    for (content, reason) in [(corrupt, "corrupt"), (truncated, "truncated"), (foreign, "foreign")] {
        fixture.control.signal("STOP");
        fixture.sidecar.kill();
        fs::write(fixture.file(), content).unwrap();
        fixture.sidecar.restart();
        fixture.wait_for_rejection(reason).await;
        fixture.control.signal("CONT");
        fixture.wait_for_check(200).await;
        fixture.wait_for_write().await;
    }
    fixture.control.signal("STOP");
    fixture.sidecar.restart();
    fixture.wait_for_check(200).await;
}

#[tokio::test]
async fn copy_of_a_refused_key_is_withdrawn_and_removed() {
    let mut fixture = Fixture::new(600).await;
    let key = fs::read_to_string(fixture.sidecar.keys_file()).unwrap();
    fixture.control.signal("STOP");
    fixture.sidecar.restart();
    fixture.wait_for_check(200).await;
    fixture.sidecar.kill();
    fixture.control.signal("CONT");
    let path = fixture.control.path(&format!("/keys/key_{}", &key["svc_sk_".len()..][..26]));
    fixture.control.api.send_as(fixture.control.human(), "DELETE", &path, json!({})).await.expect(200);
    fixture.control.signal("STOP");
    fixture.sidecar.restart();
    fixture.wait_for_check(200).await;
    let file = fixture.file();
    fixture.control.signal("CONT");
    assert_eq!(fixture.wait_for_check(503).await, "view_missing");
    let removed = async || (!file.exists()).then_some(());
    eventually("the copy is removed", removed, || fixture.sidecar.log()).await;
    assert_eq!(fixture.sidecar.admin.get("/readyz").await.status, 503);
}
