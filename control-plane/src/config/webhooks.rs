//! `[webhooks]`

use super::networks::Network;
use ipnet::IpNet;
use serde::Deserialize;
use std::{net::Ipv4Addr, net::Ipv6Addr, path::PathBuf, time::Duration};

/// Tries that are made at the most.
const MOST_TRIES: usize = 100;

/// Tries at a time, at the most.
const WIDEST: u16 = 4096;

/// How long a try can be given, in seconds.
const MOST_PATIENT: u16 = 300;

/// `[webhooks]`
#[derive(Debug, Clone, Deserialize)]
pub struct WebhookSettings {
    allowed_networks: Vec<Network>,
    /// A PEM file of authorities to believe beside those of the system; empty for none.
    pub ca_file: PathBuf,
    retry_seconds: Vec<u32>,
    attempt_seconds: u16,
    concurrency: u16,
    target_concurrency: u16,
    retention_days: u16,
}

impl WebhookSettings {
    /// What is wrong with them.
    pub(super) fn problem(&self) -> Option<&'static str> {
        let Self {
            allowed_networks: _,
            ca_file: _,
            retry_seconds,
            attempt_seconds,
            concurrency,
            target_concurrency,
            retention_days,
        } = self;
        let cases = [
            (retry_seconds.len() >= MOST_TRIES, "webhooks.retry_seconds: must be less than 100 pauses"),
            (!(1..=MOST_PATIENT).contains(attempt_seconds), "webhooks.attempt_seconds: must be from 1 to 300"),
            (!(2..=WIDEST).contains(concurrency), "webhooks.concurrency: must be from 2 to 4096 tries at a time"),
            (
                *target_concurrency == 0 || target_concurrency > concurrency,
                "webhooks.target_concurrency: must be from 1 to webhooks.concurrency",
            ),
            (*retention_days == 0, "webhooks.retention_days: must be at least 1"),
        ];
        cases.into_iter().find(|(wrong, _)| *wrong).map(|(_, text)| text)
    }

    /// Networks that events may be sent to although they are not public. With --dev, this machine is among them.
    pub fn networks(&self, dev: bool) -> Vec<IpNet> {
        let loopback = [
            IpNet::new_assert(Ipv4Addr::LOCALHOST.into(), 8).trunc(),
            IpNet::from(std::net::IpAddr::from(Ipv6Addr::LOCALHOST)),
        ];
        let loopback = loopback.into_iter().filter(|_| dev);
        self.allowed_networks.iter().map(|network| network.0).chain(loopback).collect()
    }

    /// The pauses after failed tries.
    pub fn pauses(&self) -> Vec<Duration> {
        self.retry_seconds.iter().map(|seconds| Duration::from_secs((*seconds).into())).collect()
    }

    /// How long a try may take.
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.attempt_seconds.into())
    }

    /// Tries at a time: all together, and for one target.
    pub fn widths(&self) -> (usize, usize) {
        (self.concurrency.into(), self.target_concurrency.into())
    }

    /// How long events are kept.
    pub fn event_retention(&self) -> Duration {
        Duration::from_hours(24 * u64::from(self.retention_days))
    }
}
