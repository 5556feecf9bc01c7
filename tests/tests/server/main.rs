//! Tests of the network connections, the start and stop, the stop while something hangs, the metrics, the database commands and the rotation of the master key of the control plane.

mod connections;
mod database;
mod ended_sessions;
mod housekeeping;
mod master_key;
mod metrics;
mod metrics_series;
mod output;
mod reload;
mod slow_clients;
mod startup;
mod stopping;
