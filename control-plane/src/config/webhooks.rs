//! `[webhooks]`: the delivery of events.

use super::{addresses::Network, existing_problems};
use ipnet::IpNet;
use serde::Deserialize;
use std::{net::Ipv4Addr, net::Ipv6Addr, path::PathBuf, time::Duration};

/// Maximum number of attempts to deliver an event. `retry_seconds` has one pause less: there is none before the first attempt.
const MAX_ATTEMPTS: usize = 100;

/// Upper bound of `concurrency`.
const MAX_CONCURRENCY: usize = 4096;

/// Upper bound of `attempt_seconds`.
const MAX_ATTEMPT_SECONDS: u32 = 300;

#[derive(Debug, Clone, Deserialize)]
pub struct WebhookSettings {
    allowed_networks: Vec<Network>,
    /// A PEM file of certificate authorities that are trusted in addition to those of the operating system. Empty: no
    /// additional authorities.
    pub ca_file: PathBuf,
    retry_seconds: Vec<u32>,
    attempt_seconds: u32,
    concurrency: usize,
}

impl WebhookSettings {
    pub(super) fn problems(&self) -> Vec<&'static str> {
        let Self { allowed_networks: _, ca_file: _, retry_seconds, attempt_seconds, concurrency } = self;
        let cases = [
            (retry_seconds.len() >= MAX_ATTEMPTS, "webhooks.retry_seconds: must have fewer than 100 pauses"),
            (!(1..=MAX_ATTEMPT_SECONDS).contains(attempt_seconds), "webhooks.attempt_seconds: must be from 1 to 300"),
            (
                !(2..=MAX_CONCURRENCY).contains(concurrency),
                "webhooks.concurrency: must be from 2 to 4096 concurrent attempts",
            ),
        ];
        existing_problems(cases).collect()
    }

    /// Networks that may receive events although they are not public. With --dev, loopback is included.
    pub fn networks(&self, dev: bool) -> Vec<IpNet> {
        let loopback = [
            IpNet::new_assert(Ipv4Addr::LOCALHOST.into(), 8).trunc(),
            IpNet::from(std::net::IpAddr::from(Ipv6Addr::LOCALHOST)),
        ];
        let loopback = loopback.into_iter().filter(|_| dev);
        self.allowed_networks.iter().map(|network| network.0).chain(loopback).collect()
    }

    /// The pauses between delivery attempts.
    pub fn retry_pauses(&self) -> Vec<Duration> {
        self.retry_seconds.iter().map(|seconds| Duration::from_secs((*seconds).into())).collect()
    }

    pub fn attempt_timeout(&self) -> Duration {
        Duration::from_secs(self.attempt_seconds.into())
    }

    /// Maximum number of concurrent delivery attempts.
    pub const fn concurrency(&self) -> usize {
        self.concurrency
    }
}
