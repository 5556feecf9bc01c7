//! How many connections each site has, and which site has the most.
//!
//! One client can have any number of sites of a block, so blocks are compared first, and then the sites of a block.

use crate::server::network::Network;
use std::collections::{BTreeSet, HashMap};

/// The site of a client. `None` stands for all clients without a known address: those of trusted proxies and Unix sockets.
pub(super) type Site = Option<Network>;

/// The numbers of connections by site and by block. Finding the site with the most takes no search.
#[derive(Default)]
pub(super) struct SiteCounts {
    sites: HashMap<Site, usize>,
    blocks: HashMap<Site, usize>,
    total: usize,
    /// The sites of each block, by their number of connections.
    ranked_sites: BTreeSet<(Site, usize, Site)>,
    /// Blocks by their number of connections.
    ranked_blocks: BTreeSet<(usize, Site)>,
}

impl SiteCounts {
    /// Counts a connection.
    pub(super) fn add(&mut self, site: Site) {
        self.total += 1;
        self.change(site, |count| count + 1);
    }

    /// No longer counts a connection.
    pub(super) fn remove(&mut self, site: Site) {
        self.total = self.total.saturating_sub(1);
        self.change(site, |count| count.saturating_sub(1));
    }

    /// The number of all counted connections.
    pub(super) const fn total(&self) -> usize {
        self.total
    }

    /// The number of connections of a site.
    pub(super) fn of_site(&self, site: Site) -> usize {
        self.sites.get(&site).copied().unwrap_or_default()
    }

    /// The number of connections of all sites in the block that contains a site.
    pub(super) fn of_block(&self, site: Site) -> usize {
        self.blocks.get(&block(site)).copied().unwrap_or_default()
    }

    /// The site with the most connections in the block with the most.
    pub(super) fn greediest(&self) -> Option<Site> {
        let (_, block) = self.ranked_blocks.last()?;
        self.greediest_in(*block)
    }

    /// The site with the most connections in the block of a site.
    pub(super) fn greediest_near(&self, site: Site) -> Option<Site> {
        self.greediest_in(block(site))
    }

    fn greediest_in(&self, block: Site) -> Option<Site> {
        let of_block = (block, 0, None)..=(block, usize::MAX, Some(Network::MAX));
        self.ranked_sites.range(of_block).next_back().map(|(_, _, site)| *site)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.sites.is_empty() && self.blocks.is_empty() && self.ranked_sites.is_empty() && self.ranked_blocks.is_empty()
    }

    fn change(&mut self, site: Site, change: fn(usize) -> usize) {
        let block = block(site);
        let (of_site, of_block) = (self.of_site(site), self.of_block(site));
        self.ranked_sites.remove(&(block, of_site, site));
        self.ranked_blocks.remove(&(of_block, block));
        let (of_site, of_block) = (change(of_site), change(of_block));
        if of_site == 0 {
            self.sites.remove(&site);
        } else {
            self.sites.insert(site, of_site);
            self.ranked_sites.insert((block, of_site, site));
        }
        if of_block == 0 {
            self.blocks.remove(&block);
        } else {
            self.blocks.insert(block, of_block);
            self.ranked_blocks.insert((of_block, block));
        }
    }
}

fn block(site: Site) -> Site {
    site.map(Network::block)
}
