//! Which hosts are connected to: asked when a target is made, and again for every connection, to exactly the addresses
//! that were found good then. So a name that leads elsewhere later leads nowhere.

use crate::domain::webhook::{address::AllowedNetworks, url::TargetUrl};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    time::Duration,
};
use url::Host;

/// How long a name may take when a target is made.
const PATIENCE: Duration = Duration::from_secs(3);

/// Looks names up. Tests bring their own.
pub trait Names: Send + Sync + 'static {
    /// The addresses of a host.
    fn addresses<'a>(&'a self, host: &'a str) -> Found<'a>;
}

/// Addresses, when they are found.
pub type Found<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// The names that the machine knows.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemNames;

impl Names for SystemNames {
    fn addresses<'a>(&'a self, host: &'a str) -> Found<'a> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.map(|found| found.ip()).collect()) })
    }
}

/// Why a host is not connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.as_str())]
pub enum Refused {
    /// The name leads nowhere.
    Unknown,
    /// All of its addresses are out of bounds.
    Private,
    /// Encryption is asked for, but where the operator does without.
    Plain,
}

impl Refused {
    /// What is said to whoever named the host.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "has a host whose name does not resolve",
            Self::Private => {
                "leads to an address that is not public; the operator can list its network in webhooks.allowed_networks"
            }
            Self::Plain => "must be https://, except to networks that the operator lists in webhooks.allowed_networks",
        }
    }
}

/// Says which addresses are connected to.
#[derive(Clone)]
pub struct Guard {
    names: Arc<dyn Names>,
    allowed: Arc<AllowedNetworks>,
}

impl Guard {
    /// Lets through what is public, and these networks.
    pub fn new(names: Arc<dyn Names>, allowed: AllowedNetworks) -> Self {
        Self { names, allowed: Arc::new(allowed) }
    }

    /// Whether there is anything behind a URL that may be connected to now.
    pub async fn check(&self, url: &TargetUrl) -> Result<(), Refused> {
        match url.host() {
            Host::Domain(name) => {
                let found = tokio::time::timeout(PATIENCE, self.admitted(name, url.is_plain())).await;
                found.map_err(|_| Refused::Unknown)?.map(drop)
            }
            Host::Ipv4(_) | Host::Ipv6(_) => self.check_literal(url),
        }
    }

    /// Whether the URL names no address that must not be connected to. Names are asked for by the connection itself.
    pub fn check_literal(&self, url: &TargetUrl) -> Result<(), Refused> {
        match url.host() {
            Host::Domain(_) => Ok(()),
            Host::Ipv4(address) => self.admit(&[address.into()], url.is_plain()).map(drop),
            Host::Ipv6(address) => self.admit(&[address.into()], url.is_plain()).map(drop),
        }
    }

    async fn admitted(&self, name: &str, plain: bool) -> Result<Vec<IpAddr>, Refused> {
        let found = self.names.addresses(name).await.map_err(|_| Refused::Unknown)?;
        if found.is_empty() { Err(Refused::Unknown) } else { self.admit(&found, plain) }
    }

    fn admit(&self, found: &[IpAddr], plain: bool) -> Result<Vec<IpAddr>, Refused> {
        let good = |plain| found.iter().copied().filter(move |address| self.allowed.admit(*address, plain));
        let admitted: Vec<_> = good(plain).collect();
        match admitted.is_empty() {
            false => Ok(admitted),
            true if good(false).next().is_some() => Err(Refused::Plain),
            true => Err(Refused::Private),
        }
    }

    /// Resolves for connections that are encrypted or not.
    pub(crate) fn resolver(&self, plain: bool) -> Pinned {
        Pinned { guard: self.clone(), plain }
    }
}

/// Gives connections the addresses that were checked, and no others.
pub(crate) struct Pinned {
    guard: Guard,
    plain: bool,
}

impl Resolve for Pinned {
    fn resolve(&self, name: Name) -> Resolving {
        let (guard, plain) = (self.guard.clone(), self.plain);
        Box::pin(async move {
            let admitted = guard.admitted(name.as_str(), plain).await?;
            let places: Addrs = Box::new(admitted.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(places)
        })
    }
}
