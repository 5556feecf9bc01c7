//! Sidecars with several addresses of the control plane: two replicas with one PostgreSQL database, of which one is killed or
//! frozen.

use countersign_tests::{Agent, ControlPlane, Postgres, Sidecar, eventually};

/// Two replicas, a sidecar that prefers the first, and an agent with a role and a token.
struct Pair {
    control: ControlPlane,
    sidecar: Sidecar,
    agent: String,
    role: String,
    token: String,
    // Declared last, so that the database ends after its clients.
    _postgres: Postgres,
}

impl Pair {
    async fn start() -> Self {
        let postgres = Postgres::start().await;
        let database = postgres.create_database().await;
        let control = ControlPlane::start_pair(&database, [&[], &[]]).await;
        let urls = format!("sync.urls={}", control.sync_urls().join(","));
        let sidecar = Sidecar::start_with(&control, &[control.key()], &[&urls]);
        sidecar.wait_until_ready().await;
        let (agent, role) = Agent::with_role(&control, "reader", &[]).await;
        let (token, agent) = (agent.token().await, agent.id.clone());
        let pair = Self { control, sidecar, agent, role, token, _postgres: postgres };
        pair.wait_for_status(200).await;
        pair
    }

    /// Asserts that the request is allowed. Tests call this while there is no reason to deny it.
    async fn assert_allowed(&self) {
        let result = self.sidecar.check_token(&self.token).await;
        assert_eq!(result.status, 200, "{}\n{}", result.reason, self.sidecar.log());
    }

    async fn wait_for_status(&self, status: u16) {
        self.sidecar.wait_for_check(&self.token, |result| result.status == status).await;
    }

    /// The name of a metric of the sidecar with its labels. `label` is a label before `service` with a comma, or empty.
    fn series(&self, name: &str, label: &str) -> String {
        format!("countersign_authz_{name}{{{label}service=\"{}\"}}", self.control.service())
    }

    /// Waits until the stream is at this address. Asserts that requests are allowed all the time.
    async fn wait_for_address(&self, index: f64) {
        let (address, connected) = (self.series("stream_address", ""), self.series("stream_connected", ""));
        let moved = async || {
            self.assert_allowed().await;
            let is_connected = self.sidecar.metric(&connected).await == Some(1.0);
            (is_connected && self.sidecar.metric(&address).await == Some(index)).then_some(())
        };
        eventually("the stream is at the address", moved, || self.sidecar.log()).await;
    }

    /// How often the log of the sidecar contains this text.
    fn logged(&self, text: &str) -> usize {
        self.sidecar.log().matches(text).count()
    }
}

const NEXT: &str = "the next address of the control plane is tried";

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_moves_on_from_a_frozen_replica_and_stays_there() {
    let pair = Pair::start().await;
    pair.wait_for_address(0.0).await;
    pair.control.signal_replica(0, "STOP");
    pair.wait_for_address(1.0).await;
    pair.control.signal_replica(0, "CONT");
    assert!(pair.control.revoke(&pair.agent, &pair.role).await);
    pair.wait_for_status(403).await;
    assert_eq!(pair.logged(NEXT), 1, "{}", pair.sidecar.log());
    let failovers = pair.series("stream_failovers_total", "reason=\"pings\",");
    assert_eq!(pair.sidecar.metric(&failovers).await, Some(1.0), "{}", pair.sidecar.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_moves_on_from_a_killed_replica_and_learns_changes_from_the_other() {
    let mut pair = Pair::start().await;
    pair.wait_for_address(0.0).await;
    pair.control.signal_replica(0, "KILL");
    pair.wait_for_address(1.0).await;
    // The test's requests go to both replicas in turn, so start the first one again before the request that revokes the role.
    pair.control.kill_replica(0).await;
    assert!(pair.control.revoke(&pair.agent, &pair.role).await);
    pair.wait_for_status(403).await;
}
