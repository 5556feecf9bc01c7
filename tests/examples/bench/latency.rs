//! Measures how long a check takes if checks arrive at fixed times, even while the server has not answered earlier ones.
//!
//! The time counts from the intended arrival, so if a server stalls, all checks that arrive meanwhile count as late.

use crate::{
    allow_all, direct,
    replay::{Arrivals, Messages, Replay},
    rounds::{Comparison, Measured, alternate, quartiles},
    scale,
    servers::{ChildServer, SERVER_CORE, ServerCoreTime, pin},
    tokens::TokenIssuer,
};
use countersign_tests::quantiles::quantile;
use std::{cell::RefCell, collections::BTreeMap, time::Duration};

/// How long a round measures each of the two servers that it compares.
const TIME: Duration = Duration::from_millis(1500);

/// Number of runs that measure the capacity. Their median counts.
const CAPACITY_RUNS: usize = 3;

/// How many checks arrive, in percent of the capacity of the sidecar.
const LOADS: [u32; 3] = [30, 50, 70];

/// The quantiles that are reported.
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)];

/// Measures the latencies in microseconds, beside those of a server that allows everything and gets the same load.
pub async fn measure(rounds: usize) -> BTreeMap<String, Comparison> {
    let issuer = TokenIssuer::start(1).await;
    let sidecar = issuer.start_sidecar(&[]).await;
    pin(sidecar.id(), SERVER_CORE);
    let limit = ChildServer::start_allow_all(&allow_all::empty_response()).await;
    let mut ours = Replay::connect(&sidecar.socket()).await;
    let mut allow_all = Replay::connect(&limit.socket()).await;
    let messages = direct::thousand_agents(&issuer);
    ours.send_each_once(&messages).await;
    let messages = RefCell::new(messages);
    let (time, warm_up) = (scale::time(TIME), scale::warm_up_rounds());
    let mut capacities = Vec::new();
    for _ in 0..CAPACITY_RUNS {
        capacities.push(ours.run(&messages, time).await.per_second);
    }
    let [_, capacity, _] = quartiles(capacities);
    let mut results = BTreeMap::new();
    for load in LOADS {
        let arrivals = Arrivals { per_second: capacity * f64::from(load) / 100.0, time };
        let mut pairs = [const { Vec::new() }; QUANTILES.len()];
        for round in 0..warm_up + rounds {
            let [first, second] =
                if round % 2 == 0 { [&mut ours, &mut allow_all] } else { [&mut allow_all, &mut ours] };
            let mut sides = [latencies(first, &messages, arrivals).await, latencies(second, &messages, arrivals).await];
            sides.rotate_left(round % 2);
            for (number, pairs) in pairs.iter_mut().enumerate().filter(|_| round >= warm_up) {
                pairs.push(sides.map(|quantiles| quantiles[number]));
            }
        }
        for ((name, _), pairs) in QUANTILES.into_iter().zip(pairs) {
            results.insert(format!("latency_{name}_at_{load}_vs_allow"), Comparison::new(&pairs));
        }
    }
    let half = results["latency_p99_at_50_vs_allow"].clone();
    results.insert("latency_p99_vs_allow".to_owned(), half);
    let arrivals = Arrivals { per_second: capacity / 2.0, time };
    let ours = tokio::sync::Mutex::new(ours);
    let p99 = async || latencies(&mut *ours.lock().await, &messages, arrivals).await[1].value;
    results.insert("latency_p99_control".to_owned(), alternate(rounds, p99, p99).await);
    results
}

/// The quantiles of the latencies of checks that arrive at fixed times.
async fn latencies(
    server: &mut Replay,
    messages: &RefCell<Messages>,
    arrivals: Arrivals,
) -> [Measured; QUANTILES.len()] {
    let started = ServerCoreTime::now();
    let micros = server.arrive(messages, arrivals).await;
    QUANTILES.map(|(_, part)| Measured { value: quantile(&micros, part), busy: started.busy_since() })
}
