//! Tests the copy of the view on disk, from which a sidecar starts while it cannot reach the control plane.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{Agent, ControlPlane, Sidecar, eventually, sidecar::run_command, tools};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
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
        let control = ControlPlane::start_process_with(&[&limit]).await;
        let copies = tempfile::tempdir().unwrap();
        let key = control.create_key(control.service(), "sync").await;
        let directory = format!("copy.directory={}", copies.path().join("copies").display());
        let sidecar = Sidecar::start_with(&control, &[&key], &[&directory]);
        sidecar.wait_until_ready().await;
        let (agent, role) = Agent::with_role(&control, "reader", &["read"]).await;
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

    /// Waits until two more copies are written. The second write began after this call, so it contains the present view.
    async fn wait_for_write(&self) {
        let before = self.sidecar.metric(WRITTEN).await.unwrap();
        let written = async || self.sidecar.metric(WRITTEN).await.filter(|count| *count >= before + 2.0);
        eventually("a copy is written", written, || self.sidecar.log()).await;
    }

    /// Waits until the check of the token has this status. Returns its reason.
    async fn wait_for_check(&self, status: u16) -> String {
        let has_status =
            async || Some(self.sidecar.check_token(&self.token).await).filter(|result| result.status == status);
        eventually("a check has the status", has_status, || self.sidecar.log()).await.reason
    }

    async fn wait_for_rejection(&self, reason: &str) {
        // Wait for the log before the metric: when it has this line, the restarted sidecar has opened its ports.
        self.sidecar.wait_for_log(&format!("reason=\"{reason}\"")).await;
        let line = format!("countersign_authz_view_copy_rejected_total{{reason=\"{reason}\"}}");
        self.sidecar.wait_for_metric(&line).await;
        assert_eq!(self.sidecar.admin.get("/readyz").await.status, 503);
        assert_eq!(self.sidecar.check_token(&self.token).await.reason, "view_missing");
    }

    async fn wait_for_metric(&self, name: &str, value: f64) {
        let reached = async || self.sidecar.metric(name).await.filter(|current| (current - value).abs() < 0.5);
        eventually(name, reached, || self.sidecar.log()).await;
    }

    async fn revoke_role(&self) {
        assert!(self.control.revoke(&self.agent.id, &self.role).await);
    }
}

#[tokio::test]
async fn sidecar_starts_from_its_copy_and_is_healed_when_the_control_plane_is_back() {
    let mut fixture = Fixture::new(120).await;
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

/// Whoever can write to the disk can undo a revocation with an older copy, but only until the control plane is back, or until
/// `max_staleness` has passed since the confirmation of the older copy.
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
    let mut fixture = Fixture::new(120).await;
    let good = fs::read(fixture.file()).unwrap();
    let mut corrupt = good.clone();
    corrupt[good.len() / 2] ^= 1;
    let truncated = good[..good.len() - 1].to_vec();
    let other = Fixture::new(120).await;
    let foreign = fs::read(other.file()).unwrap();
    for (content, reason) in [(corrupt, "corrupt"), (truncated, "corrupt"), (foreign, "foreign")] {
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
    let mut fixture = Fixture::new(120).await;
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
    assert_eq!(fixture.wait_for_check(503).await, "sync_key_refused");
    let removed = async || (!file.exists()).then_some(());
    eventually("the copy is removed", removed, || fixture.sidecar.log()).await;
    assert_eq!(fixture.sidecar.admin.get("/readyz").await.status, 503);
}

/// Runs `explain --copy` with the settings of the sidecar, and asserts that it creates and removes no file. Returns exit code,
/// standard output and standard error.
fn explain_copy(fixture: &Fixture, keys_file: &Path, settings: &[&str]) -> (Option<i32>, String, String) {
    let files = || {
        let entries = fs::read_dir(fixture.copies.path().join("copies")).unwrap();
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        files.sort_unstable();
        files
    };
    let before = files();
    let directory = format!("copy.directory={}", fixture.copies.path().join("copies").display());
    let mut command = Command::new(tools::binary("countersign-ext-authz"));
    command.env_clear().env("COUNTERSIGN_SYNC__KEYS_FILE", keys_file);
    command.args(["explain", "--copy", "--json", "--host", "x", "--path", "/", "--set", &directory]);
    command.args(settings);
    let (code, stdout, stderr) = run_command(command, &fixture.token);
    assert!(!stdout.contains(&fixture.token) && !stderr.contains(&fixture.token), "{stdout}{stderr}");
    assert!(!stderr.contains("svc_sk_"), "{stderr}");
    assert_eq!(files(), before);
    (code, stdout, stderr)
}

#[tokio::test]
async fn explain_decides_with_the_copy_also_while_a_sidecar_uses_it() {
    let mut fixture = Fixture::new(120).await;
    let keys_file = fixture.sidecar.keys_file();
    let explanation = |(code, stdout, stderr): (Option<i32>, String, String), expected: i32| {
        assert_eq!(code, Some(expected), "{stdout}{stderr}");
        serde_json::from_str::<Value>(&stdout).unwrap()
    };
    let allowed = explanation(explain_copy(&fixture, &keys_file, &[]), 0);
    assert_eq!((&allowed["decision"], &allowed["service"]), (&json!("allow"), &json!(fixture.control.service())));
    let view = allowed["questions"][1]["detail"].as_str().unwrap();
    assert!(view.ends_with("stale after 120 s, from the copy on disk"), "{view}");
    let limited = explanation(explain_copy(&fixture, &keys_file, &["--set", "sync.max_staleness_seconds=100"]), 0);
    assert!(limited["questions"][1]["detail"].as_str().unwrap().contains("stale after 100 s"), "{limited}");
    let refused = ["--context-extension", "require_permissions=admin"];
    assert_eq!(explanation(explain_copy(&fixture, &keys_file, &refused), 3)["reason"], "permission_missing");

    fixture.control.signal("STOP");
    fixture.sidecar.kill();
    let before = fs::read(fixture.file()).unwrap();
    let first = explanation(explain_copy(&fixture, &keys_file, &[]), 0);
    let second = explanation(explain_copy(&fixture, &keys_file, &[]), 0);
    let age = |explanation: &Value| explanation["viewAgeMilliseconds"].as_u64().unwrap();
    assert!(age(&first) < age(&second) && age(&second) < 120_000, "{first}{second}");
    assert_eq!(first["revision"], second["revision"]);
    assert_eq!(fs::read(fixture.file()).unwrap(), before);
    fixture.sidecar.restart();
    fixture.wait_for_check(200).await;
}

#[tokio::test]
async fn explain_names_why_a_copy_cannot_be_used() {
    let mut fixture = Fixture::new(120).await;
    let keys_file = fixture.sidecar.keys_file();
    fixture.control.signal("STOP");
    fixture.sidecar.kill();
    let fails_with = |fixture: &Fixture, keys_file: &Path, settings: &[&str], expected: &str| {
        let (code, stdout, stderr) = explain_copy(fixture, keys_file, settings);
        assert_eq!((code, &*stdout), (Some(1), ""), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    };
    fails_with(&fixture, &keys_file, &["--set", "copy.directory="], "copy.directory is not set");
    let limit = ["--set", "sync.max_staleness_seconds=2", "--set", "sync.ping_seconds=1"];
    tokio::time::sleep(Duration::from_secs(2)).await;
    fails_with(&fixture, &keys_file, &limit, "too_old: its last confirmation is older");
    let other_keys = fixture.copies.path().join("keys");
    fs::write(&other_keys, "svc_sk_other").unwrap();
    fails_with(&fixture, &other_keys, &[], "sync.keys[0]: ");
    fails_with(&fixture, &other_keys, &[], "there is no copy of the view");
    // The file has two API keys, and only one of them has a copy.
    let first = fs::read_to_string(&keys_file).unwrap();
    fs::write(&other_keys, format!("{first}\nsvc_sk_other\n")).unwrap();
    let service = format!("service_id={}", fixture.control.service());
    let (code, stdout, stderr) = explain_copy(&fixture, &other_keys, &["--context-extension", &service]);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stderr.contains("sync.keys[1]: ") && stderr.contains("there is no copy"), "{stderr}");
    let (code, stdout, _) = explain_copy(&fixture, &other_keys, &[]);
    assert_eq!(code, Some(0), "the service of the first key is the default: {stdout}");
    fs::write(&other_keys, format!("svc_sk_other\n{first}\n")).unwrap();
    let (code, stdout, _) = explain_copy(&fixture, &other_keys, &[]);
    assert_eq!((code, stdout.contains("view_missing")), (Some(3), true), "{stdout}");
    let mut corrupt = fs::read(fixture.file()).unwrap();
    let middle = corrupt.len() / 2;
    corrupt[middle] ^= 1;
    fs::write(fixture.file(), corrupt).unwrap();
    fails_with(&fixture, &keys_file, &[], "corrupt: the file is damaged or was changed");
}
