//! How figures change with the number of registered agents, changed agents and sync streams, and how much memory these take.
//!
//! A ratio is the rate with few agents or streams divided by the rate with many, so 1.2 means a fifth more time with many.

use crate::{
    deployment::{Deployment, Operation},
    direct::request,
    replay::{Messages, Replay},
    rounds::{Comparison, Measured, alternate, measured},
    scale,
    servers::{SERVER_CORE, pin, start_on_server_core},
    tokens::TokenIssuer,
};
use countersign_tests::{
    ControlPlane, Sidecar,
    bulk::{BulkInserts, copy_id},
    follower::{Follower, PING_INTERVAL, channel},
    postgres::Postgres,
};
use futures_util::{StreamExt as _, stream};
use prost::Message as _;
use serde_json::json;
use std::{cell::RefCell, collections::BTreeMap, time::Duration};
use tokio::{task::JoinSet, time::interval};

/// How long a round measures each of the two deployments that it compares.
const TIME: Duration = Duration::from_millis(500);

/// Numbers of registered agents. Each holds a role at the service. The second number is a control: its ratio to the first must be
/// 1.
const AGENTS: [u32; 4] = [1_000, 1_000, 100_000, 1_000_000];

/// Numbers of changed agents in the view of a sidecar.
const CHANGED: [u32; 2] = [1_000, 100_000];

/// Number of agents whose tokens are sent to the sidecars to be checked. All of them are changed agents.
const CHECKED: u32 = 1_000;

/// Numbers of sync streams, each of a service of its own.
const STREAMS: [u32; 3] = [1, 100, 1_000];

/// The maximum number of streams that are being opened at the same time.
const CONCURRENCY: usize = 16;

/// The name of the figure for the worst of the ratios between the first and the last number of agents.
const WORST: &str = "growth_worst";

/// The figures: comparisons by name, and how many bytes a changed agent and a stream take.
pub struct Growth {
    pub comparisons: BTreeMap<String, Comparison>,
    pub bytes: BTreeMap<&'static str, f64>,
}

/// Measures everything.
pub async fn measure(rounds: usize) -> Growth {
    let mut growth = Growth { comparisons: BTreeMap::new(), bytes: BTreeMap::new() };
    let postgres = start_on_server_core(Postgres::start_durable()).await;
    growth.views(rounds).await;
    growth.registered_agents("sqlite", &vec![String::new(); AGENTS.len()], rounds).await;
    let mut databases = Vec::new();
    for _ in AGENTS {
        databases.push(postgres.create_database().await);
    }
    growth.registered_agents("postgres", &databases, rounds).await;
    let last = format!("_{}", AGENTS[AGENTS.len() - 1]);
    let with_most_agents = growth.comparisons.iter().filter(|(name, _)| name.ends_with(&last));
    let worst = with_most_agents.map(|(_, comparison)| comparison).max_by(|a, b| a.ratio.total_cmp(&b.ratio));
    growth.comparisons.insert(WORST.to_owned(), worst.expect("there are figures").clone());
    growth.streams(rounds).await;
    growth
}

impl Growth {
    fn insert(&mut self, name: String, comparison: Comparison) {
        eprintln!("{name}: {comparison:?}");
        self.comparisons.insert(name, comparison);
    }

    /// Compares the operations of control planes with these databases, which have different numbers of registered agents.
    async fn registered_agents(&mut self, engine: &str, databases: &[String], rounds: usize) {
        let mut deployments = Vec::new();
        for (database, agents) in databases.iter().zip(AGENTS) {
            let mut deployment = Deployment::start(database).await;
            deployment.add_agents(scale::count(agents).into()).await;
            deployments.push(deployment);
        }
        for (name, operation) in Operation::ALL {
            let rate = async |deployment: &Deployment| deployment.per_second(operation, TIME).await;
            self.compare_all((&format!("growth_{name}_{engine}"), &AGENTS), (&deployments, rate), rounds).await;
        }
        let mut headers = Vec::new();
        for deployment in &deployments {
            headers.push(deployment.verification_headers().await);
        }
        let deployments: Vec<_> = deployments.iter().zip(headers).collect();
        let rate = async |(deployment, headers): &(&Deployment, Vec<String>)| {
            deployment.verifications_per_second(headers).await
        };
        self.compare_all((&format!("growth_verify_{engine}"), &AGENTS), (&deployments, rate), rounds).await;
    }

    /// Compares the first deployment with each other one.
    async fn compare_all<D>(
        &mut self,
        (name, numbers): (&str, &[impl std::fmt::Display + PartialEq]),
        (deployments, rate): (&[D], impl AsyncFn(&D) -> f64),
        rounds: usize,
    ) {
        let mut all_rates = Vec::new();
        for round in 0..scale::warm_up_rounds() + rounds {
            let mut rates = vec![Measured::default(); deployments.len()];
            for place in 0..deployments.len() {
                let turn = (place + round) % deployments.len();
                rates[turn] = measured(rate(&deployments[turn])).await;
            }
            all_rates.push(rates);
        }
        for (place, number) in numbers.iter().enumerate().skip(1) {
            let pairs: Vec<_> =
                all_rates[scale::warm_up_rounds()..].iter().map(|rates| [rates[0], rates[place]]).collect();
            let suffix = if *number == numbers[0] { "control".to_owned() } else { number.to_string() };
            self.insert(format!("{name}_{suffix}"), Comparison::new(&pairs));
        }
    }

    /// Compares how fast sidecars check changed agents if their views have few or many of them.
    async fn views(&mut self, rounds: usize) {
        let changed = CHANGED.map(scale::count);
        let mut few = View::start(scale::count(AGENTS[0]), changed[0]).await;
        let mut many = View::start(scale::count(AGENTS[AGENTS.len() - 1]), changed[1]).await;
        let grown = many.memory as f64 - few.memory as f64;
        self.bytes.insert("sidecar_per_changed_agent", grown / f64::from(changed[1] - changed[0]));
        let name = format!("growth_check_{}", AGENTS[AGENTS.len() - 1]);
        self.insert(name, alternate(rounds, async || few.per_second().await, async || many.per_second().await).await);
    }

    /// Compares role changes at control planes with few and many streams. No stream belongs to the service whose roles change.
    async fn streams(&mut self, rounds: usize) {
        // The streams end before the control planes, because they are dropped in the opposite order.
        let mut deployments = Vec::new();
        let mut followers = JoinSet::new();
        let opened = STREAMS.map(scale::count);
        for streams in opened {
            let deployment = Deployment::of(ControlPlane::start_one_with(&STREAM_SETTINGS).await).await;
            pin(deployment.control.process_id(), SERVER_CORE);
            open_streams(&mut followers, &deployment.control, streams).await;
            deployments.push(deployment);
        }
        let memory = |deployment: &Deployment| deployment.control.resident_memory() as f64;
        let (first, last) = (opened[0], opened[opened.len() - 1]);
        let grown = memory(&deployments[deployments.len() - 1]) - memory(&deployments[0]);
        self.bytes.insert("control_plane_per_stream", grown / f64::from(last - first));
        let rate = async |deployment: &Deployment| deployment.per_second(Operation::RoleChange, TIME).await;
        self.compare_all(("growth_role_change_streams", &STREAMS), (&deployments, rate), rounds).await;
    }
}

/// A sidecar, and the check requests to send to it, with tokens of agents in its view.
struct View {
    _issuer: TokenIssuer,
    _sidecar: Sidecar,
    replay: Replay,
    checks: RefCell<Messages>,
    /// Resident memory before the first check, in bytes.
    memory: usize,
}

impl View {
    async fn start(registered: u32, changed: u32) -> Self {
        let (registered, changed, checked) = (registered.into(), changed.into(), scale::count(CHECKED));
        let issuer = TokenIssuer::start(1).await;
        let url = issuer.database_url();
        let template = issuer.agent().to_string();
        let mut inserts = BulkInserts::connect(&url, &template).await;
        inserts.agents((1, registered), "active").await;
        inserts.assignments((1, changed), issuer.service(), &issuer.roles).await;
        for facet in ["status", "trust", "roles"] {
            inserts.changes((1, changed), facet, issuer.service()).await;
        }
        let sidecar = issuer.start_sidecar(&[]).await;
        pin(sidecar.id(), SERVER_CORE);
        let memory = sidecar.resident_memory();
        let tokens =
            (1..=checked).map(|number| issuer.token_of(copy_id(&template, number.into()).parse().unwrap(), number, 1));
        let encoded = tokens.map(|token| request(&token, 0).encode_to_vec()).collect();
        let checks = Messages::new(encoded, (0..checked).collect());
        let mut replay = Replay::connect(&sidecar.socket()).await;
        replay.send_each_once(&checks).await;
        Self { _issuer: issuer, _sidecar: sidecar, replay, checks: RefCell::new(checks), memory }
    }

    async fn per_second(&mut self) -> f64 {
        let counted = self.replay.run(&self.checks, scale::time(TIME)).await;
        assert!(counted.allowed.abs_diff(counted.answered) <= 100, "{counted:?}");
        counted.per_second
    }
}

/// The settings of a control plane with many streams from one address.
const STREAM_SETTINGS: [&str; 4] =
    ["database.url=", "quotas.services_per_person=1000000", "connections.max=100000", crate::deployment::SETTINGS[0]];

/// Opens streams as sidecars do, each of a service of its own and over a connection of its own. A task follows each one.
async fn open_streams(followers: &mut JoinSet<()>, control: &ControlPlane, count: u32) {
    let open = async |number| {
        let (_, key) = control.create_service(json!({ "name": format!("service {number}") })).await;
        let mut follower = Follower::open(channel(control).await, &key, 0).await.expect("the stream opens");
        follower.snapshot().await;
        follower
    };
    let mut opened = stream::iter(0..count).map(open).buffer_unordered(CONCURRENCY);
    while let Some(mut follower) = opened.next().await {
        followers.spawn(async move {
            let mut timer = interval(PING_INTERVAL);
            loop {
                drop(follower.next_with_pings(&mut timer).await.expect("the stream stays open"));
            }
        });
    }
}
