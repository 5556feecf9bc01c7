//! Says in the log that a port is full, at most once a minute.

use super::{
    CloseReason,
    sites::{Site, SiteCounts},
    table::Table,
};
use crate::{Clock, SystemClock, server::network::Network};
use std::time::Duration;

/// The shortest time between two lines about the same port.
const MIN_LINE_INTERVAL: Duration = Duration::from_mins(1);

/// The names of a port in its lines.
#[derive(Debug, Clone, Copy)]
pub struct PortNames {
    /// The name of the port in logs and metrics.
    pub port: &'static str,
    /// The setting with the number of connections; `None` if the number is fixed.
    pub setting: Option<&'static str>,
}

/// A line that is due. It is logged after the lock of the table is released.
pub(super) struct FullPortLine {
    names: PortNames,
    /// Whether only the connections are too many that have not sent a request yet.
    is_pending: bool,
    limit: usize,
    /// The site with the most connections, and their number.
    greediest: Option<(Site, usize)>,
}

impl FullPortLine {
    /// The line about a connection that has no place, if one is due. `logged_at` is the time of the last one.
    pub(super) fn if_due(
        reason: CloseReason,
        names: PortNames,
        table: &Table,
        logged_at: &mut Option<Duration>,
    ) -> Option<Self> {
        if reason != CloseReason::Capacity {
            return None;
        }
        let now = SystemClock.since_boot();
        if logged_at.is_some_and(|logged_at| now.saturating_sub(logged_at) < MIN_LINE_INTERVAL) {
            return None;
        }
        *logged_at = Some(now);
        let is_pending = table.len() < table.max();
        let counts = if is_pending { &table.pending_by_site } else { &table.by_site };
        // A higher setting does not help while the process lacks descriptors.
        let setting = names.setting.filter(|_| !is_pending && table.max() == table.configured_max());
        Some(Self {
            names: PortNames { setting, ..names },
            is_pending,
            limit: if is_pending { table.max_pending() } else { table.max() },
            greediest: greediest(counts),
        })
    }

    pub(super) fn log(self) {
        let Self { names: PortNames { port, setting }, is_pending, limit, greediest } = self;
        let connections = greediest.map(|(_, count)| count);
        let without_address = || "trusted proxies or a Unix socket".to_owned();
        let network = greediest.map(|(site, _)| site.map_or_else(without_address, Network::site_text));
        if is_pending {
            tracing::warn!(
                port,
                limit,
                network,
                connections,
                "too many connections of this port have not sent a request yet, and the oldest close for new ones: this network has the \
                 most"
            );
        } else {
            tracing::warn!(
                port,
                limit,
                setting,
                network,
                connections,
                "the port is full, so connections close for new ones, or new ones are refused: this network has the most"
            );
        }
    }
}

fn greediest(counts: &SiteCounts) -> Option<(Site, usize)> {
    counts.greediest().map(|site| (site, counts.of_site(site)))
}
