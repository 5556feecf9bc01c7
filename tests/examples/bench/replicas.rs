//! Two replicas of the control plane beside one, each with the same share of a processor.
//!
//! `cpulimit` stops and continues the replicas. They and PostgreSQL share one processor; the callers have the other one.

use crate::{
    deployment::{Deployment, Operation, SETTINGS, start_control_plane},
    rounds::{Comparison, alternate},
    servers::{SERVER_CORE, pin, start_on_server_core},
};
use countersign_tests::{ControlPlane, postgres::Postgres, process::Process, tools};
use std::{collections::BTreeMap, process::Command, time::Duration};
use tempfile::TempDir;

/// The share of a processor that a replica gets, in percent. PostgreSQL needs most of the rest.
const SHARE_PERCENT: &str = "20";

/// In a round, one replica is measured for this time, and then two replicas. `cpulimit` needs some time to find the right pauses.
const TIME: Duration = Duration::from_secs(2);

/// Replicas that `cpulimit` limits.
struct Limited {
    deployment: Deployment,
    _limits: Vec<Process>,
    _folder: TempDir,
}

/// Measures the rates of two replicas divided by the rates of one. The best possible ratio is 2.
pub async fn measure(rounds: usize) -> BTreeMap<String, Comparison> {
    let postgres = start_on_server_core(Postgres::start_durable()).await;
    let one = start_control_plane(&postgres.create_database().await).await;
    let two = ControlPlane::start_pair_with(&postgres.create_database().await, [&[], &[]], &SETTINGS).await;
    let (one, two) = (Limited::of(one).await, Limited::of(two).await);
    let mut results = BTreeMap::new();
    for (name, operation) in Operation::ALL {
        let name = format!("two_replicas_{name}");
        let rate = async |limited: &Limited| limited.deployment.per_second(operation, TIME).await;
        let comparison = alternate(rounds, async || rate(&two).await, async || rate(&one).await).await;
        eprintln!("{name}: {comparison:?}");
        results.insert(name, comparison);
    }
    let logins = async || one.deployment.per_second(Operation::Login, TIME).await;
    results.insert("two_replicas_control".to_owned(), alternate(rounds, logins, logins).await);
    results
}

impl Limited {
    async fn of(control: ControlPlane) -> Self {
        control.process_ids().into_iter().for_each(|process| pin(process, SERVER_CORE));
        let deployment = Deployment::of(control).await;
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let limit = |process: u32| {
            let mut command = Command::new(tools::bench_program("cpulimit"));
            command.args(["--limit", SHARE_PERCENT, "--pid", &process.to_string(), "--lazy"]);
            Process::start(command, &folder.path().join(format!("log-{process}")))
        };
        let limits = deployment.control.process_ids().into_iter().map(limit).collect();
        Self { deployment, _limits: limits, _folder: folder }
    }
}
