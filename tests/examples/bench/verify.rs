//! Measures the endpoint `verify` beside a constant route with the same HTTP library and TLS, which shows what the machine can do.
//!
//! The control plane has a processor of its own; the callers have the other one.

use crate::{
    constant_route,
    deployment::{CONNECTIONS, Deployment},
    rounds::{Comparison, alternate},
    servers::ChildServer,
    wrk::wrk,
};
use countersign_tests::process::free_port;
use std::collections::BTreeMap;

/// Measures `verify` beside a constant route and beside itself, with SQLite.
pub async fn measure(rounds: usize) -> BTreeMap<String, Comparison> {
    let deployment = Deployment::start("").await;
    let headers = deployment.verification_headers().await;
    let port = free_port();
    let _constant = ChildServer::start_constant_route(port).await;
    let constant = format!("https://127.0.0.1:{port}{}", constant_route::PATH);
    let borrowed: Vec<_> = headers.iter().map(String::as_str).collect();
    let verify = async || deployment.verifications_per_second(&headers).await;
    let comparison = alternate(rounds, verify, async || wrk(&constant, &borrowed, CONNECTIONS).await).await;
    eprintln!("verify_http: {comparison:?}");
    let control = alternate(rounds, verify, verify).await;
    BTreeMap::from([("verify_http".to_owned(), comparison), ("verify_control".to_owned(), control)])
}
