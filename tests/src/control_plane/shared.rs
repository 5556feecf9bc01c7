//! A control plane that several tests use at the same time.

use super::{ControlPlane, Server};
use serde_json::json;
use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};
use tokio::sync::Mutex;

/// The server of [`ControlPlane::shared`], with the fields of [`ControlPlane`] that the tests copy.
struct SharedServer {
    server: Weak<Server>,
    env: HashMap<String, String>,
    settings: Vec<String>,
}

static SHARED: Mutex<Option<SharedServer>> = Mutex::const_new(None);

impl ControlPlane {
    /// A control plane that tests of this binary share while they run at the same time. The shared control plane stops
    /// when the last of its tests ends. Each test that shares the control plane gets a new service, which
    /// [`Self::service`] and [`Self::key`] return, and must not change what other services can see.
    pub async fn shared() -> Self {
        let mut slot = SHARED.lock().await;
        let running = slot.as_ref().and_then(|shared| Some((shared.server.upgrade()?, shared)));
        let mut control = if let Some((server, SharedServer { env, settings, .. })) = running {
            Self::of(server, env.clone(), settings.clone())
        } else {
            let control = Self::start().await;
            let (server, env) = (Arc::downgrade(&control.server), control.env.clone());
            *slot = Some(SharedServer { server, env, settings: control.settings.clone() });
            control
        };
        drop(slot);
        let (service, key) = control.create_service(json!({ "name": "test" })).await;
        control.env.extend([("SERVICE_ID".to_owned(), service), ("SERVICE_KEY".to_owned(), key)]);
        control
    }
}

impl Drop for ControlPlane {
    /// Prints the log if the test panics. A shared server may continue to run for other tests.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let ends_with_test = Arc::strong_count(&self.server) == 1;
            self.server.replicas.iter().for_each(|replica| replica.print_last_lines(ends_with_test));
        }
    }
}
