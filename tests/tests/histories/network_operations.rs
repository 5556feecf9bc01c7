//! Operations that change the connections between sidecars and control plane, and the rules file of the sidecars.

use crate::{
    operation::{Operation, SERVICES},
    rules,
    run::Run,
    sidecars::{COPYING, Network, PLAIN, SIDECARS},
};
use countersign_tests::eventually;
use std::time::Duration;

/// Whether tokens are verified right after an operation: not if it has changed nothing, or if sidecars may still have to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Verify,
    Continue,
}

impl Run {
    /// Changes the connections. First waits until the sidecars have received everything, so that the test knows with which data
    /// they decide.
    pub async fn change_network(&mut self, operation: &Operation) -> Result<Next, String> {
        let before = self.environment.network;
        let Network { connected, frozen, cut } = before;
        let (network, next) = match *operation {
            Operation::Disconnect if connected => (Network { connected: false, ..before }, Next::Verify),
            Operation::Reconnect if !connected || frozen => {
                (Network { connected: true, frozen: false, ..before }, Next::Continue)
            }
            Operation::Freeze if before.reaches(PLAIN) => (Network { frozen: true, ..before }, Next::Verify),
            Operation::CutAddress(address) if !cut[address] => {
                let mut network = before;
                network.cut[address] = true;
                (network, Next::Verify)
            }
            Operation::RestoreAddress(address) if cut[address] => {
                let mut network = before;
                network.cut[address] = false;
                (network, Next::Continue)
            }
            _ => return Ok(Next::Continue),
        };
        self.update_keys().await?;
        self.wait_for_sidecars().await?;
        self.environment.network = network;
        self.environment.apply_network();
        Ok(next)
    }

    /// Waits until the first address has confirmed the view of the sidecar with a copy. Then lets the sidecar reach only an address
    /// that serves older data, which must not replace the view.
    pub async fn offer_old_data(&mut self) -> Result<Next, String> {
        if !self.environment.has_backup() || !self.environment.network.reaches(COPYING) {
            return Ok(Next::Continue);
        }
        let before = self.environment.network;
        self.environment.network.cut = [false, true];
        self.environment.apply_network();
        self.wait_for_first_address().await?;
        self.environment.network.cut = [true; 2];
        self.environment.apply_network();
        self.environment.start_restored_control_plane().await;
        let ids = self.environment.service_ids();
        let was_offered = async || {
            for id in &ids {
                let refused = format!("countersign_authz_stream_failovers_total{{reason=\"data\",service=\"{id}\"}}");
                let is_refused = self.environment.sidecars.metric(COPYING, &refused).await > 0.0;
                let revision = self.environment.sidecars.view_revision(COPYING, id).await;
                if !is_refused && revision > self.backup_revision {
                    return None;
                }
            }
            Some(())
        };
        eventually("old data was offered", was_offered, String::new).await;
        self.verify_again().await?;
        self.environment.stop_restored_control_plane();
        self.environment.network = Network { cut: [true, before.cut[1]], ..before };
        self.environment.apply_network();
        Ok(Next::Verify)
    }

    /// Waits until the control plane at the first address has confirmed all views of the sidecar with a copy.
    async fn wait_for_first_address(&mut self) -> Result<(), String> {
        let sidecars = &self.environment.sidecars;
        let confirmed = "countersign_authz_view_confirmed_timestamp_seconds";
        let is_in_use =
            async || (sidecars.metric(COPYING, "countersign_authz_stream_address").await < 0.5).then_some(());
        self.environment.wait_for_sidecar(COPYING).await?;
        eventually("the first address is in use", is_in_use, String::new).await;
        let line = |number: usize| format!("{confirmed}{{service=\"{}\"}}", self.environment.services[number].id);
        let mut before = [0.0; SERVICES];
        for (number, time) in before.iter_mut().enumerate() {
            *time = sidecars.metric(COPYING, &line(number)).await;
        }
        self.environment.clock.advance(Duration::from_secs(1));
        self.sidecars.reports_are_prompt = false;
        let is_confirmed = async || {
            for (number, time) in before.iter().enumerate() {
                // The metric shows the time of the sidecar's clock, which may have been set back, so it may also decrease.
                if (sidecars.metric(COPYING, &line(number)).await - time).abs() < 0.9 {
                    return None;
                }
            }
            Some(())
        };
        eventually("the first address confirms the views", is_confirmed, String::new).await;
        self.wait_for_sidecars().await
    }

    /// Replaces the rules file, and waits until the sidecars use it.
    pub async fn change_rules(&mut self, set: usize, invalid_first: bool) -> Result<(), String> {
        let file = self.environment.sidecars.rules_file();
        if invalid_first {
            let failures = self.count_reloads("failed").await;
            rules::write_invalid(&file, set, &self.environment.service_ids());
            self.wait_for_reload("failed", failures).await;
            self.verify_again().await?;
            rules::write(&file, self.rules, &self.environment.service_ids());
        }
        if set != self.rules {
            let reloads = self.count_reloads("ok").await;
            rules::write(&file, set, &self.environment.service_ids());
            self.wait_for_reload("ok", reloads).await;
            self.rules = set;
        }
        self.verify_again().await
    }

    async fn count_reloads(&self, result: &str) -> [f64; SIDECARS.len()] {
        let line = format!("countersign_authz_file_reloads_total{{result=\"{result}\",setting=\"rules.file\"}}");
        let [plain, copying] = SIDECARS;
        [self.environment.sidecars.metric(plain, &line).await, self.environment.sidecars.metric(copying, &line).await]
    }

    async fn wait_for_reload(&self, result: &str, before: [f64; SIDECARS.len()]) {
        let reloaded = async || {
            let counts = self.count_reloads(result).await;
            counts.iter().zip(before).all(|(count, before)| *count > before).then_some(())
        };
        eventually("all sidecars have read the rules file", reloaded, String::new).await;
    }

    /// Verifies the newest tokens again with the sidecars as they are.
    async fn verify_again(&mut self) -> Result<(), String> {
        let newest = self.model.tokens.len().min(4 * SERVICES);
        self.verify_tokens(self.round, newest, 0).await
    }
}
