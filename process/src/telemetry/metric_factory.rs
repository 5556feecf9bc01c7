//! Creates the metrics of a process.

use super::register;
use prometheus::{
    Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    Result,
};

/// Creates metrics whose names begin with a prefix, and registers them.
#[derive(Debug, Clone, Copy)]
pub struct MetricFactory<'a> {
    /// Where the metrics are registered.
    pub registry: &'a Registry,
    /// The first part of each name.
    pub prefix: &'a str,
}

impl MetricFactory<'_> {
    fn opts(&self, name: &str, help: &str) -> Opts {
        Opts::new(format!("{}_{name}", self.prefix), help)
    }

    /// A counter without labels.
    pub fn counter(&self, name: &str, help: &str) -> Result<IntCounter> {
        register(self.registry, IntCounter::with_opts(self.opts(name, help))?)
    }

    /// A counter with labels.
    pub fn counter_vec(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec> {
        register(self.registry, IntCounterVec::new(self.opts(name, help), labels)?)
    }

    /// A counter with one label. The time series of the given values exist from the start, at 0.
    pub fn counter_by<'v>(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = &'v str>,
    ) -> Result<IntCounterVec> {
        let counter = self.counter_vec(name, help, &[label])?;
        for value in values {
            counter.with_label_values(&[value]);
        }
        Ok(counter)
    }

    /// A gauge without labels.
    pub fn gauge(&self, name: &str, help: &str) -> Result<IntGauge> {
        register(self.registry, IntGauge::with_opts(self.opts(name, help))?)
    }

    /// A gauge with labels.
    pub fn gauge_vec(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec> {
        register(self.registry, IntGaugeVec::new(self.opts(name, help), labels)?)
    }

    /// A gauge of a time in Unix seconds. Appends `_timestamp_seconds` to its name.
    pub fn timestamp_gauge(&self, name: &str, help: &str) -> Result<Gauge> {
        register(self.registry, Gauge::with_opts(self.opts(&format!("{name}_timestamp_seconds"), help))?)
    }

    /// A gauge with labels, whose values have a fraction.
    pub fn float_gauge_vec(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec> {
        register(self.registry, GaugeVec::new(self.opts(name, help), labels)?)
    }

    /// A histogram whose buckets have these upper bounds.
    pub fn histogram_vec(&self, name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> Result<HistogramVec> {
        let options = HistogramOpts::from(self.opts(name, help)).buckets(buckets.into());
        register(self.registry, HistogramVec::new(options, labels)?)
    }
}
