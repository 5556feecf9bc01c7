//! The control plane for its operator: start and stop, metrics, and database commands.

mod database;
mod metrics;
mod metrics_series;
mod output;
mod startup;
