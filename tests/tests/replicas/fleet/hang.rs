//! A database that hangs, dies or cannot be reached: everybody is answered in time, sidecars go on, and it is as
//! before soon after.

use super::{
    line::Line,
    outage::{Checks, Clients},
    replica,
};
use countersign_tests::{ControlPlane, Postgres, Sidecar};

/// Checks that the sidecar must answer during each outage.
const CHECKS: u32 = 10;

/// What happens to the database, and how it ends.
trait Trouble {
    fn begin(&mut self);
    async fn end(&mut self);
}

/// Takes a control plane and its sidecar through it, twice.
async fn go_through(what: &str, control: &ControlPlane, trouble: &mut impl Trouble) {
    let (steady, warm, clients) = (Clients::of(control).await, Clients::of(control).await, Clients::of(control).await);
    let sidecar = Sidecar::start(control).await;
    let checks = Checks::begin(&sidecar, &steady.token).await;
    // Connections are open, and statements prepared.
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
async fn a_postgresql_that_hangs() {
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
async fn a_postgresql_that_is_killed() {
    let postgres = Postgres::start().await;
    let control = replica(&postgres.database().await).await;
    go_through("PostgreSQL killed", &control, &mut Killed(postgres)).await;
}

struct Dead(Line, u32);

impl Trouble for Dead {
    fn begin(&mut self) {
        self.0.die();
    }

    /// First the old connections live again, then only new ones do.
    async fn end(&mut self) {
        self.1 += 1;
        if self.1 == 1 { self.0.come_back() } else { self.0.come_back_anew() }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgresql_that_cannot_be_reached() {
    let postgres = Postgres::start().await;
    let line = Line::to(&postgres).await;
    let control = replica(&line.by(&postgres, &postgres.database().await)).await;
    go_through("a dead line", &control, &mut Dead(line, 0)).await;
}

/// Some of the server's processes stop, as one that waits for a bad disk does: who gets such a connection waits once,
/// and the next ones do not.
#[tokio::test(flavor = "multi_thread")]
async fn some_backends_that_hang() {
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
