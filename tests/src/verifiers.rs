//! The two who judge a token, the API and the sidecar, and what they say in one vocabulary.

use crate::{ControlPlane, Sidecar, eventually, http::HttpResponse, sidecar::CheckResult};
use std::{cell::RefCell, str};

/// What one of them says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerifyOutcome {
    /// The token is good; this is who stands behind it.
    Accepted {
        /// The agent.
        id: String,
        /// Its name.
        name: String,
        /// Its roles.
        roles: Vec<String>,
        /// Its permissions.
        permissions: Vec<String>,
        /// Its trust score, as written.
        trust: String,
    },
    /// The status and the reason.
    Refused(u16, String),
}

impl VerifyOutcome {
    /// A refusal.
    pub fn refused(status: u16, reason: &str) -> Self {
        Self::Refused(status, reason.to_owned())
    }

    /// What the API said.
    pub fn from_response(answer: &HttpResponse) -> Self {
        if answer.status != 200 {
            let reason = if answer.body["valid"] == false { answer.error().2 } else { "not said to be invalid" };
            return Self::refused(answer.status, reason);
        }
        assert_eq!(answer.body["valid"], true, "{}", answer.body);
        let agent = &answer.body["agent"];
        let list = |name: &str| {
            let items = agent[name].as_array().into_iter().flatten();
            items.map(|item| item.as_str().unwrap_or_default().to_owned()).collect()
        };
        Self::Accepted {
            id: answer.text("/agent/id").to_owned(),
            name: answer.text("/agent/name").to_owned(),
            roles: list("roles"),
            permissions: list("permissions"),
            trust: agent["trustScore"].to_string(),
        }
    }

    /// What the sidecar said.
    pub fn from_check_result(verdict: &CheckResult) -> Self {
        if verdict.status != 200 {
            return Self::refused(verdict.status, &verdict.reason);
        }
        let header = |name: &str| verdict.headers[&format!("x-agent-{name}")].as_str();
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

/// A service, a key of it, and the sidecar that guards it.
#[derive(Clone, Copy)]
pub struct Verifiers<'a> {
    /// Where the API is.
    pub control: &'a ControlPlane,
    /// Whom Envoy would ask.
    pub sidecar: &'a Sidecar,
    /// The service.
    pub service: &'a str,
    /// Its API key.
    pub key: &'a str,
}

impl<'a> Verifiers<'a> {
    /// For the first service.
    pub fn of(control: &'a ControlPlane, sidecar: &'a Sidecar) -> Self {
        Self { control, sidecar, service: control.service(), key: control.key() }
    }

    /// Asks both; agents without a role are let through by the sidecar as by the API.
    pub async fn ask(&self, token: &str) -> (VerifyOutcome, VerifyOutcome) {
        let header = format!("Bearer {token}");
        let extensions = [("service_id", self.service), ("allow_unassigned", "true")];
        let headers = [("authorization", header.as_str())];
        let (answer, verdict) = tokio::join!(
            self.control.verify_at(self.service, self.key, token),
            self.sidecar.check_with(&headers, &extensions)
        );
        (VerifyOutcome::from_response(&answer), VerifyOutcome::from_check_result(&verdict))
    }

    /// Waits until both say the same and what they say is as it should be.
    pub async fn agree(&self, what: &str, token: &str, expected: impl Fn(&VerifyOutcome) -> bool) -> VerifyOutcome {
        let last = RefCell::new(None);
        let agreed = async || {
            let (api, sidecar) = self.ask(token).await;
            let good = (api == sidecar && expected(&api)).then(|| api.clone());
            last.replace(Some((api, sidecar)));
            good
        };
        eventually(what, agreed, || format!("API and sidecar say {:#?}\n{}", last.borrow(), self.sidecar.log())).await
    }
}

fn percent_decoded(text: &str) -> String {
    let mut pieces = text.split('%');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let (code, rest) = piece.split_at(2);
        bytes.push(u8::from_str_radix(code, 16).expect("two hex digits after %"));
        bytes.extend(rest.as_bytes());
    }
    str::from_utf8(&bytes).expect("UTF-8").to_owned()
}
