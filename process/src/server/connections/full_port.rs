//! Says in the log that a port is full, at most once a minute.

use super::{CloseReason, sites::Site, table::Table};
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

/// When the lines about a port were logged last.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LoggedLines {
    full_at: Option<Duration>,
    pending_at: Option<Duration>,
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
    /// The line about a connection for which the port has no place; `None` if the last such line is less than a minute old.
    pub(super) fn if_due(reason: CloseReason, names: PortNames, table: &mut Table) -> Option<Self> {
        if reason != CloseReason::Capacity {
            return None;
        }
        let (now, is_pending) = (SystemClock.since_boot(), table.len() < table.max());
        let LoggedLines { full_at, pending_at } = &mut table.logged;
        let logged_at = if is_pending { pending_at } else { full_at };
        if logged_at.is_some_and(|logged_at| now.saturating_sub(logged_at) < MIN_LINE_INTERVAL) {
            return None;
        }
        *logged_at = Some(now);
        // A higher setting does not help while the process lacks descriptors.
        let setting = names.setting.filter(|_| !is_pending && table.max() == table.configured_max());
        Some(Self {
            names: PortNames { setting, ..names },
            is_pending,
            limit: if is_pending { table.max_pending() } else { table.max() },
            greediest: if is_pending { greediest_pending(table) } else { greediest(table) },
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
                "too many connections of this port have not sent a request yet, and the oldest close for new ones; the network has the \
                 most of them in the block with the most"
            );
        } else {
            tracing::warn!(
                port,
                limit,
                setting,
                network,
                connections,
                "the port is full, so connections close for new ones, or new ones are refused; the network has the most of them in the \
                 block with the most"
            );
        }
    }
}

/// The site with the most connections in the block with the most, or the clients without an address if they have more.
pub(super) fn greediest(table: &Table) -> Option<(Site, usize)> {
    let without_address = table.len() - table.by_site.total();
    let of_site = table.by_site.greediest().map(|site| (site, table.by_site.of_site(site)));
    of_site.filter(|(_, count)| *count >= without_address).or((without_address > 0).then_some((None, without_address)))
}

fn greediest_pending(table: &Table) -> Option<(Site, usize)> {
    let counts = &table.pending_by_site;
    counts.greediest().map(|site| (site, counts.of_site(site)))
}
