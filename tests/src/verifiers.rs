//! Verifies tokens with the API and with the sidecar, and compares the outcomes.

use crate::{ControlPlane, Sidecar, eventually, http::HttpResponse, sidecar::CheckResult};
use std::cell::RefCell;

/// The outcome of a verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerifyOutcome {
    /// The token is accepted, with this identity.
    Accepted {
        /// Agent id.
        id: String,
        /// Agent name.
        name: String,
        /// Roles.
        roles: Vec<String>,
        /// Permissions.
        permissions: Vec<String>,
        /// Trust score as text.
        trust: String,
    },
    /// HTTP status and reason.
    Refused(u16, String),
}

impl VerifyOutcome {
    /// A refusal.
    pub fn refused(status: u16, reason: &str) -> Self {
        Self::Refused(status, reason.to_owned())
    }

    /// Decodes the response of the verify endpoint.
    pub fn from_response(response: &HttpResponse) -> Self {
        if response.status != 200 {
            let reason = if response.body["valid"] == false { response.error().2 } else { "`valid` is not false" };
            return Self::refused(response.status, reason);
        }
        assert_eq!(response.body["valid"], true, "{}", response.body);
        let agent = &response.body["agent"];
        let list = |name: &str| {
            let items = agent[name].as_array().into_iter().flatten();
            items.map(|item| item.as_str().unwrap_or_default().to_owned()).collect()
        };
        Self::Accepted {
            id: response.text("/agent/id").to_owned(),
            name: response.text("/agent/name").to_owned(),
            roles: list("roles"),
            permissions: list("permissions"),
            trust: agent["trustScore"].to_string(),
        }
    }

    /// Decodes a check result of the sidecar.
    pub fn from_check_result(result: &CheckResult) -> Self {
        if result.status != 200 {
            return Self::refused(result.status, &result.reason);
        }
        let header = |name: &str| result.headers[&format!("x-agent-{name}")].as_str();
        let list = |name: &str| header(name).split(',').filter(|item| !item.is_empty()).map(percent_decoded).collect();
        Self::Accepted {
            id: header("id").to_owned(),
            name: percent_decoded(header("name")),
            roles: list("roles"),
            permissions: list("permissions"),
            trust: header("trust-score").to_owned(),
        }
    }
}

/// The API and a sidecar of one service.
#[derive(Clone, Copy)]
pub struct Verifiers<'a> {
    /// The control plane.
    pub control: &'a ControlPlane,
    /// The sidecar.
    pub sidecar: &'a Sidecar,
    /// Service id.
    pub service: &'a str,
    /// API key of the service.
    pub key: &'a str,
}

impl<'a> Verifiers<'a> {
    /// Verifiers for the first service.
    pub fn new(control: &'a ControlPlane, sidecar: &'a Sidecar) -> Self {
        Self { control, sidecar, service: control.service(), key: control.key() }
    }

    /// Verifies a token with the API and with the sidecar. The sidecar accepts agents without roles, as the API does.
    pub async fn verify(&self, token: &str) -> (VerifyOutcome, VerifyOutcome) {
        let header = format!("Bearer {token}");
        let extensions = [("service_id", self.service), ("allow_unassigned", "true")];
        let headers = [("authorization", header.as_str())];
        let (response, result) = tokio::join!(
            self.control.verify_at(self.service, self.key, token),
            self.sidecar.check_with(&headers, &extensions)
        );
        (VerifyOutcome::from_response(&response), VerifyOutcome::from_check_result(&result))
    }

    /// Waits until API and sidecar have the same outcome and `expected` returns true for it.
    pub async fn wait_until_equal(
        &self,
        condition_name: &str,
        token: &str,
        expected: impl Fn(&VerifyOutcome) -> bool,
    ) -> VerifyOutcome {
        let last = RefCell::new(None);
        let poll = async || {
            let (api, sidecar) = self.verify(token).await;
            let outcome = (api == sidecar && expected(&api)).then(|| api.clone());
            last.replace(Some((api, sidecar)));
            outcome
        };
        eventually(condition_name, poll, || {
            format!("last outcomes of API and sidecar: {:#?}\n{}", last.borrow(), self.sidecar.log())
        })
        .await
    }
}

fn percent_decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8().expect("the text is UTF-8").into_owned()
}
