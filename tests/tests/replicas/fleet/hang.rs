//! A database that hangs, dies or is unreachable: the API responds in time, sidecars continue, and everything
//! recovers.

use super::{
    line::Line,
    outage::{Checks, Clients},
    replica,
};
use countersign_tests::{ControlPlane, Postgres, Sidecar};

/// Checks that the sidecar must answer during each outage.
const CHECKS: u32 = 10;

/// A failure of the database and its end.
trait Trouble {
    fn begin(&mut self);
    async fn end(&mut self);
}

/// Runs a failure twice against a control plane and its sidecar.
async fn go_through(what: &str, control: &ControlPlane, trouble: &mut impl Trouble) {
    let (steady, warm, clients) = (Clients::of(control).await, Clients::of(control).await, Clients::of(control).await);
    let sidecar = Sidecar::start(control).await;
    let checks = Checks::begin(&sidecar, &steady.token).await;
    // Opens connections and prepares statements.
    let before = warm.ask_all().await;
    assert!(before.iter().all(|asked| asked.status < 500), "{before:?}");
    for round in 0..2 {
        trouble.begin();
        let first = clients.assert_all_unavailable().await;
        assert_eq!(clients.health().await.0, 503);
        checks.more(CHECKS).await;
        let second = clients.assert_all_unavailable().await;
        trouble.end().await;
        let recovery = clients.await_recovery().await;
        println!(
            "{what}, round {round}: refused within {first:?} and {second:?}, as before {recovery:?} after its end"
        );
        clients.await_health(200, "healthy", "up").await;
    }
    let (count, longest) = checks.end().await;
    println!("{what}: {count} checks at the sidecar, the longest took {longest:?}");
}

struct Stopped(Postgres);

impl Trouble for Stopped {
    fn begin(&mut self) {
        self.0.pause();
    }

    async fn end(&mut self) {
        self.0.resume();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn api_returns_503_and_recovers_when_postgresql_hangs() {
    let postgres = Postgres::start().await;
    let control = replica(&postgres.database().await).await;
    go_through("all of PostgreSQL stopped", &control, &mut Stopped(postgres)).await;
}

struct Killed(Postgres);

impl Trouble for Killed {
    fn begin(&mut self) {
        self.0.kill();
    }

    async fn end(&mut self) {
        self.0.restart().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn api_returns_503_and_recovers_when_postgresql_is_killed() {
    let postgres = Postgres::start().await;
    let control = replica(&postgres.database().await).await;
    go_through("PostgreSQL killed", &control, &mut Killed(postgres)).await;
}

struct Dead(Line, u32);

impl Trouble for Dead {
    fn begin(&mut self) {
        self.0.die();
    }

    /// The first time all connections work again, the second time only new ones.
    async fn end(&mut self) {
        self.1 += 1;
        if self.1 == 1 { self.0.come_back() } else { self.0.come_back_anew() }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn api_returns_503_and_recovers_when_postgresql_is_unreachable() {
    let postgres = Postgres::start().await;
    let line = Line::to(&postgres).await;
    let control = replica(&line.by(&postgres, &postgres.database().await)).await;
    go_through("a dead line", &control, &mut Dead(line, 0)).await;
}

/// Some server processes stop, as they do when a disk hangs: a request on such a connection waits once, later ones do
/// not.
#[tokio::test(flavor = "multi_thread")]
async fn requests_recover_when_some_backends_hang() {
    let postgres = Postgres::start().await;
    let database = postgres.database().await;
    let control = replica(&database).await;
    let (warm, clients) = (Clients::of(&control).await, Clients::of(&control).await);
    warm.ask_all().await;
    let stopped = postgres.pause_idle(&database).await;
    assert!(stopped >= 2, "{stopped} connections were open");
    let (mut refused, mut good) = (0, 0);
    while good < 3 {
        let asked = clients.ask_all().await;
        let bad = asked.iter().filter(|asked| asked.status == 503).count();
        assert!(asked.iter().all(|asked| asked.status < 500 || asked.status == 503), "{asked:?}");
        refused += bad;
        good = if bad == 0 { good + 1 } else { 0 };
        assert!(refused <= 3 * stopped, "{refused} refused, though only {stopped} connections were bad");
    }
    println!("{stopped} backends stopped: {refused} requests were refused, then none");
    postgres.resume();
}
