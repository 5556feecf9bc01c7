//! Requests for the sidecars of a service, and for whether these sidecars already decide with a change.

use super::{
    Page, PageStart, Result, ServiceApi,
    response::{id, line, optional_line},
};
use countersign_identity::ApiKeyId;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use std::{str::FromStr, time::Duration};

/// The longest wait of one request for the enforcement of a change.
pub const LONGEST_ENFORCEMENT_WAIT: Duration = Duration::from_secs(3);

/// The length of the id of a sidecar's process, in characters.
const INSTANCE_LENGTH: usize = 32;

/// A sidecar that decides about requests to a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sidecar {
    /// The id of the sidecar's process: 32 hex digits.
    #[serde(deserialize_with = "id::<_, InstanceId>")]
    pub instance: String,
    /// The id of the API key with which the sidecar opened its stream of changes.
    #[serde(deserialize_with = "id::<_, ApiKeyId>")]
    pub key_id: String,
    /// The address and port from which the sidecar opened its stream.
    #[serde(deserialize_with = "line")]
    pub address: String,
    /// The release of the sidecar; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_line")]
    pub release: Option<String>,
    /// The status: `connected`, or `silent` if its stream or its control plane has ended. A silent sidecar may still decide.
    #[serde(deserialize_with = "line")]
    pub status: String,
    /// The sidecar decides with data that contains all changes up to this revision; `None` if it has reported no revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// When the sidecar's stream began (RFC 3339).
    #[serde(deserialize_with = "line")]
    pub connected_at: String,
    /// When the sidecar last confirmed that its data is current (RFC 3339); `None` if it never did.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_line")]
    pub last_confirmed_at: Option<String>,
    /// When a silent sidecar will refuse all requests by itself, at the latest (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_line")]
    pub refuses_by: Option<String>,
}

impl Sidecar {
    /// Whether this item stands for all sidecars that the control plane may not know, because they connected after the backup from
    /// which it was restored. The instance of this item is 0.
    pub fn is_several(&self) -> bool {
        self.instance.bytes().all(|digit| digit == b'0')
    }
}

/// Whether the sidecars of a service decide with a change. Sidecars whose data is too old refuse all requests: they do not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Enforcement {
    /// The revision of the change.
    pub revision: u64,
    /// Whether every sidecar that may decide decides with the change.
    pub enforced: bool,
    /// The number of sidecars of the service that may decide.
    pub sidecars: u64,
    /// How many of `sidecars` decide with the change.
    pub enforced_sidecars: u64,
    /// The number of sidecars that never confirmed the change, and now refuse all requests, because their data is too old.
    pub expired_sidecars: u64,
    /// The time in milliseconds, rounded up, from the change until the last sidecar decided with it or refused all requests by itself.
    /// `None` if the change is not enforced yet, if there are no sidecars, or if the control plane has forgotten the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub milliseconds: Option<u64>,
    /// Sidecars that have not confirmed the change, at most 100.
    pub unconfirmed: Vec<Sidecar>,
    /// When all sidecars that have not confirmed the change will refuse all requests by themselves, at the latest (RFC 3339);
    /// `None` if the change is enforced.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_line")]
    pub refuses_by: Option<String>,
}

/// The id of the process of a sidecar.
struct InstanceId;

impl FromStr for InstanceId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() == INSTANCE_LENGTH && text.bytes().all(is_digit) { Ok(Self) } else { Err(()) }
    }
}

impl ServiceApi {
    /// Lists a page of the sidecars of the service.
    pub async fn sidecars(&self, start: &PageStart) -> Result<Page<Sidecar>> {
        self.page(&["sidecars"], start, &[]).await
    }

    /// Asks whether all changes up to a revision are in force at the sidecars of the service. The control plane answers as soon as
    /// they are in force, or after `wait`: whole seconds, at most [`LONGEST_ENFORCEMENT_WAIT`].
    pub async fn enforcement(&self, revision: u64, wait: Duration) -> Result<Enforcement> {
        let mut url = self.api.endpoint(&self.path(&["enforcement"]))?;
        let seconds = wait.min(LONGEST_ENFORCEMENT_WAIT).as_secs();
        let parameters = [("revision", revision), ("wait", seconds)];
        url.query_pairs_mut().extend_pairs(parameters.map(|(name, value)| (name, value.to_string())));
        // The caller's timeout is for the request alone, so we add the time that the control plane waits.
        let with_longer_timeout = self.api.clone().with_timeout(self.api.timeout.saturating_add(wait));
        with_longer_timeout.send(self.api.http.get(url).bearer_auth(self.credential.expose_secret())).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn sidecar() -> Value {
        json!({
            "instance": "9f86d081884c7d659a2feaa0c55ad015",
            "keyId": ApiKeyId::from_bits(1).to_string(),
            "address": "10.0.3.7:41822",
            "status": "silent",
            "connectedAt": "2026-11-24T08:00:00Z",
            "refusesBy": "2026-11-24T09:10:00Z",
        })
    }

    #[test]
    fn sidecar_keeps_absent_fields_absent() {
        let parsed: Sidecar = serde_json::from_value(sidecar()).unwrap();
        assert_eq!((&parsed.release, parsed.revision, &parsed.last_confirmed_at), (&None, None, &None));
        assert_eq!(json!(parsed), sidecar());
        let mut full = sidecar();
        full["release"] = json!("0.1.0");
        full["revision"] = json!(1_769_245_201_123_456_u64);
        full["lastConfirmedAt"] = json!("2026-11-24T08:10:00Z");
        assert_eq!(json!(serde_json::from_value::<Sidecar>(full.clone()).unwrap()), full);
    }

    #[test]
    fn sidecar_with_a_malformed_id_or_text_is_refused() {
        for (field, wrong) in [
            ("instance", ""),
            ("instance", "9F86D081884C7D659A2FEAA0C55AD015"),
            ("instance", "9f86d081884c7d659a2feaa0c55ad01; tr"),
            ("keyId", "svc_00000000000000000000000001"),
            ("address", "10.0.3.7:41822\nNext: x"),
            ("status", "silent\nNext: x"),
            ("refusesBy", "soon\nNext: x"),
        ] {
            let mut record = sidecar();
            record[field] = json!(wrong);
            assert!(serde_json::from_value::<Sidecar>(record).is_err(), "{field} {wrong}");
        }
    }

    #[test]
    fn enforcement_is_parsed_with_and_without_unconfirmed_sidecars() {
        let enforced = json!({
            "revision": 7, "enforced": true, "sidecars": 2, "enforcedSidecars": 2, "expiredSidecars": 0, "milliseconds": 38,
            "unconfirmed": [],
        });
        let parsed: Enforcement = serde_json::from_value(enforced).unwrap();
        assert_eq!((parsed.milliseconds, parsed.unconfirmed.len(), parsed.refuses_by), (Some(38), 0, None));
        let missing = json!({
            "revision": 7, "enforced": false, "sidecars": 2, "enforcedSidecars": 1, "expiredSidecars": 1,
            "unconfirmed": [sidecar()], "refusesBy": "2026-11-24T09:10:00Z",
        });
        let parsed: Enforcement = serde_json::from_value(missing.clone()).unwrap();
        assert_eq!(json!(parsed), missing);
    }
}
