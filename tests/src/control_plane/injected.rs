//! A control plane in the process of the test, with a clock or another dependency of the test. It is always one server.

use super::{ControlPlane, Replica, Server, default_limit_settings, without_limits};
use crate::{ManualClock, engines};
use countersign_control_plane::Dependencies;
use std::sync::Arc;

impl ControlPlane {
    /// Starts a control plane whose clock the test sets, without rate limits.
    pub async fn start_with_clock(clock: &Arc<ManualClock>, settings: &[&str]) -> Self {
        Self::start_with_dependencies(with_clock(clock), settings).await
    }

    /// Starts a control plane whose clock the test sets, with the default rate limits, SQLite and counters in memory.
    pub async fn start_limited_with_clock(clock: &Arc<ManualClock>, settings: &[&str]) -> Self {
        let settings = settings.iter().map(ToString::to_string).chain(["database.url=".to_owned()]);
        Self::start_injected(with_clock(clock), settings.collect()).await
    }

    /// Starts a control plane with these dependencies, without rate limits.
    pub async fn start_with_dependencies(dependencies: Dependencies, settings: &[&str]) -> Self {
        Self::start_injected(dependencies, without_limits(settings)).await
    }

    async fn start_injected(dependencies: Dependencies, settings: Vec<String>) -> Self {
        let (settings, lease) = engines::add_to([default_limit_settings(), settings].concat()).await;
        let (replica, env) = Replica::start_with_dependencies(dependencies, &settings).await;
        Self::of(Arc::new(Server { replicas: vec![replica], _database: lease }), env, settings)
    }
}

fn with_clock(clock: &Arc<ManualClock>) -> Dependencies {
    let clock: Arc<ManualClock> = Arc::clone(clock);
    Dependencies { clock, ..Dependencies::default() }
}
