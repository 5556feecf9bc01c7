//! The limit of open files of the process, and its division among the ports.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// File descriptors for everything except the connections that [`fit_to_descriptors`] limits: the admin port, files, listeners, and
/// connections to other servers.
pub const RESERVED_DESCRIPTORS: usize = 512;

/// Raises the soft limit of open files of the process to its hard limit, and returns the limit.
pub fn raise_descriptor_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // If this fails, the soft limit remains.
        let _refused = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// Reduces the wanted numbers of connections of the ports in proportion, so that their sum and the reserved descriptors fit into
/// `limit`. If the limit is small, connections still get half of it, and each port at least one.
pub fn fit_to_descriptors<const N: usize>(wanted: [usize; N], reserved: usize, limit: usize) -> [usize; N] {
    let available = limit.saturating_sub(reserved).max(limit / 2);
    let total: usize = wanted.iter().sum();
    if total <= available {
        return wanted;
    }
    let share = |count: usize| {
        let share = count as u128 * available as u128 / total as u128;
        usize::try_from(share).unwrap_or(usize::MAX).max(1)
    };
    wanted.map(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_fit_into_the_limit_of_open_files() {
        assert_eq!(fit_to_descriptors([4096, 16384], 512, 1 << 20), [4096, 16384], "unchanged");
        let [api, sync] = fit_to_descriptors([4096, 16384], 512, 4096);
        assert!(api + sync + 512 <= 4096 && sync > api && api > 600, "{api} {sync}");
        let [api, sync] = fit_to_descriptors([4096, 16384], 512, 256);
        assert!(api + sync <= 128 && api > 0, "half of a very low limit: {api} {sync}");
    }
}
