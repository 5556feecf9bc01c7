//! The control plane as its operator sees it: start and stop, metrics, and the commands for its database.

mod database;
mod metrics;
mod metrics_series;
mod output;
mod startup;
