//! Resolves the hosts of webhook URLs, and rejects hosts that events must not be sent to.
//!
//! The operations that save a webhook target check its URL with this guard. The HTTP sender resolves the host through the guard again
//! for every connection, and connects to exactly the addresses that the guard returns. So an attacker who changes the DNS answer after
//! the check (DNS rebinding) cannot redirect a request. `domain::webhook::address` has the rules for allowed addresses.

use crate::domain::webhook::{
    TargetOwner,
    address::{AllowedNetworks, HostRejection},
    url::TargetUrl,
};
use countersign_process::Places;
use std::{io, net::IpAddr, pin::Pin, sync::Arc, time::Duration};
use tokio::time::timeout;
use url::Host;

/// How long name resolution may take when a webhook target is saved.
const CHECK_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum number of webhook hosts that are resolved at the same time. Each lookup occupies a thread until the resolver of the
/// operating system gives up, which can take a minute. The hosts of the database, Redis and issuers need threads, too.
const MAX_LOOKUPS: usize = 32;

/// Maximum number of lookups that run at the same time for one owner of webhooks.
const MAX_LOOKUPS_PER_OWNER: usize = 8;

/// How long a lookup waits while too many others run. The callers wait longer, so they get an error that names this cause.
const PLACE_TIMEOUT: Duration = Duration::from_secs(2);

/// Resolves host names. Tests replace the resolver of the operating system.
pub trait HostResolver: Send + Sync + 'static {
    /// All addresses of a host.
    fn resolve<'a>(&'a self, host: &'a str) -> ResolveFuture<'a>;
}

/// A name resolution in progress.
pub type ResolveFuture<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// The resolver of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl HostResolver for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str) -> ResolveFuture<'a> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect()) })
    }
}

/// Decides to which addresses of a host events may be sent.
#[derive(Clone)]
pub struct AddressGuard {
    resolver: Arc<dyn HostResolver>,
    lookups: Places<TargetOwner>,
    allowed: Arc<AllowedNetworks>,
}

impl AddressGuard {
    /// A guard that allows public addresses and the networks in `allowed`.
    pub fn new(resolver: Arc<dyn HostResolver>, allowed: AllowedNetworks) -> Self {
        Self { resolver, lookups: Places::new(MAX_LOOKUPS, MAX_LOOKUPS_PER_OWNER), allowed: Arc::new(allowed) }
    }

    /// Resolves the host of a URL, and rejects the URL unless at least one address is allowed.
    pub async fn check(&self, url: &TargetUrl, owner: &TargetOwner) -> Result<(), HostRejection> {
        match url.host() {
            Host::Domain(name) => {
                let resolved = timeout(CHECK_TIMEOUT, self.resolve(name, owner, url.is_plaintext())).await;
                resolved.map_err(|_| HostRejection::Unresolved)?.map(drop)
            }
            Host::Ipv4(_) | Host::Ipv6(_) => self.check_literal(url),
        }
    }

    /// Rejects a URL that contains a forbidden IP address. Accepts host names, which [`Self::resolve`] checks at each connection.
    pub fn check_literal(&self, url: &TargetUrl) -> Result<(), HostRejection> {
        let address: IpAddr = match url.host() {
            Host::Domain(_) => return Ok(()),
            Host::Ipv4(address) => address.into(),
            Host::Ipv6(address) => address.into(),
        };
        self.allowed.filter(&[address], url.is_plaintext()).map(drop)
    }

    /// Resolves a host to the addresses to which we may connect, over plain HTTP (`plaintext`) or HTTPS. Fails if none is allowed.
    pub async fn resolve(
        &self,
        host: &str,
        owner: &TargetOwner,
        plaintext: bool,
    ) -> Result<Vec<IpAddr>, HostRejection> {
        let place = timeout(PLACE_TIMEOUT, self.lookups.enter(owner.clone())).await;
        let place = place.map_err(|_| HostRejection::TooManyLookups)?;
        let (resolver, host) = (Arc::clone(&self.resolver), host.to_owned());
        // Even if the caller gives up, the lookup counts towards the limits until it ends, because it still occupies a thread.
        let addresses = place.run(async move { resolver.resolve(&host).await }).await;
        let addresses = addresses.map_err(|_| HostRejection::Unresolved)?;
        self.allowed.filter(&addresses, plaintext)
    }
}
