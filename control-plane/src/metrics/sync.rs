//! Metrics of sidecars, their sync streams, and the changes that they receive.

use super::{BUCKETS, MetricFactory};
use prometheus::{Gauge, Histogram, IntCounter, IntCounterVec, IntGauge};

/// Sidecars and their sync streams.
#[derive(Clone)]
pub struct SyncMetrics {
    /// Open streams.
    pub streams: IntGauge,
    /// Streams that were refused, by limit.
    pub streams_refused: IntCounterVec,
    /// Reads of pages of snapshots and missed changes.
    pub page_reads: IntCounter,
    /// The newest revision sent to sidecars.
    pub feed_revision: IntGauge,
    /// When the change feed was last read, in Unix seconds.
    pub feed_last_read: Gauge,
    /// Seconds from a change until it was sent to a sidecar.
    pub propagation: Histogram,
    /// Sidecars that have no stream to any control plane, and may still decide because their data is fresh enough.
    pub silent_sidecars: IntGauge,
    /// When the oldest change was made that some sidecar may not have applied yet, in Unix seconds; 0 if there is none.
    pub oldest_unconfirmed_change: Gauge,
}

impl SyncMetrics {
    pub(super) fn new(factory: &MetricFactory, stream_limits: &[&str]) -> prometheus::Result<Self> {
        let refused = "Sync streams that were refused, by limit";
        let limits = stream_limits.iter().copied();
        let page_reads = "Reads of snapshots and missed changes for sync streams; streams of one service share a read";
        let last_read =
            "When the feed of changes was last read completely; the time since then is the lag of the sidecars";
        let propagation = "Seconds from a change until it was sent to a sidecar. Of changes that are sent together, one \
                           is observed: the newest of the batch that waited longest";
        let silent =
            "Sidecars of all control planes that have lost contact and may still decide; at most 10000 are counted";
        let unconfirmed = "When the oldest change was made that is not in force at all sidecars; 0 if there is none";
        Ok(Self {
            streams: factory.gauge("sync_streams", "Open sync streams of sidecars")?,
            streams_refused: factory.counter_by("sync_streams_refused_total", refused, "limit", limits)?,
            page_reads: factory.counter("sync_page_reads_total", page_reads)?,
            feed_revision: factory.gauge("feed_revision", "Newest revision sent to sidecars")?,
            feed_last_read: factory.timestamp_gauge("feed_last_read", last_read)?,
            propagation: factory
                .histogram_vec("sync_propagation_seconds", propagation, &[], &BUCKETS)?
                .with_label_values::<&str>(&[]),
            silent_sidecars: factory.gauge("sidecars_silent", silent)?,
            oldest_unconfirmed_change: factory.timestamp_gauge("unconfirmed_change_oldest", unconfirmed)?,
        })
    }
}
