//! `[humans]`: whose tokens speak for people, and which combinations are refused.

use reqwest::Url;
use serde::Deserialize;
use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, time::Duration};

/// The issuer of the operator key's tokens, which no issuer of the platform may be.
const OPERATOR: &str = "urn:countersign:operator";

/// `[humans]`
#[derive(Debug, Clone, Deserialize)]
pub struct Humans {
    #[serde(rename = "keys_refresh_seconds")]
    keys_refresh: u32,
    #[serde(rename = "keys_max_age_seconds")]
    keys_max_age: u32,
    /// By the operator's name for them.
    #[serde(default)]
    pub issuers: BTreeMap<String, Issuer>,
}

/// `[humans.issuers.<name>]`
#[derive(Debug, Clone, Deserialize)]
pub struct Issuer {
    /// The `iss` of its tokens, exactly.
    #[serde(rename = "issuer")]
    pub iss: String,
    /// What the `aud` of its tokens must contain.
    pub audience: String,
    /// Where its keys are, if they are not discovered.
    pub jwks_url: String,
    /// The file of its keys, if they are not fetched.
    pub jwks_file: PathBuf,
    /// The authority of its certificate, if the platform does not know it.
    pub ca_file: PathBuf,
    /// What its tokens may be signed with.
    pub algorithms: Vec<Algorithm>,
    /// The claim that makes an administrator; empty: it makes none.
    pub admin_claim: String,
    /// What the claim must say; empty: `true`.
    pub admin_value: String,
}

/// What a person's token may be signed with; named as in RFC 7518 and RFC 8037.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Algorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    RS256,
    /// ECDSA on P-256 with SHA-256.
    ES256,
    /// Ed25519.
    EdDSA,
}

impl TryFrom<String> for Algorithm {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "RS256" => Ok(Self::RS256),
            "ES256" => Ok(Self::ES256),
            "EdDSA" => Ok(Self::EdDSA),
            _ => Err(format!("`{text}` is none of RS256, ES256, EdDSA")),
        }
    }
}

impl Humans {
    /// Age at which keys are fetched again.
    pub fn keys_refresh(&self) -> Duration {
        Duration::from_secs(self.keys_refresh.into())
    }

    /// Age above which keys are not believed, though they cannot be fetched again.
    pub fn keys_max_age(&self) -> Duration {
        Duration::from_secs(self.keys_max_age.into())
    }

    /// Everything that contradicts itself or is incomplete.
    pub(super) fn problems(&self, public_url: &str, dev: bool) -> Vec<String> {
        let mut problems = Vec::new();
        if self.keys_refresh == 0 {
            problems.push("humans.keys_refresh_seconds: must be at least one second".to_owned());
        }
        if self.keys_max_age < self.keys_refresh {
            problems.push("humans.keys_max_age_seconds: must not be less than humans.keys_refresh_seconds".to_owned());
        }
        for (name, issuer) in &self.issuers {
            let ours = issuer.problems(public_url, dev);
            problems.extend(ours.into_iter().map(|(key, text)| format!("humans.issuers.{name}.{key}: {text}")));
            let first = self.issuers.iter().find(|(_, other)| other.iss == issuer.iss);
            if let Some((first, _)) = first.filter(|(first, _)| *first != name && !issuer.iss.is_empty()) {
                problems.push(format!("humans.issuers.{name}.issuer: is that of humans.issuers.{first} already"));
            }
        }
        problems
    }
}

impl Issuer {
    /// Key and text.
    fn problems(&self, public_url: &str, dev: bool) -> Vec<(&'static str, &'static str)> {
        let Self { iss, audience, jwks_url, jwks_file, ca_file, algorithms, admin_claim, admin_value } = self;
        let (by_url, by_file) = (!jwks_url.is_empty(), !jwks_file.as_os_str().is_empty());
        let ours = [public_url, public_url.trim_end_matches('/')].contains(&iss.as_str());
        let cases = [
            ("issuer", iss.is_empty(), "set it to the `iss` of the issuer's tokens, exactly as it stands there"),
            (
                "issuer",
                !iss.is_empty() && (ours || iss == OPERATOR),
                "is a name of this control plane, whose tokens speak for agents: set that of your identity provider",
            ),
            (
                "issuer",
                !iss.is_empty() && !by_url && !by_file && (!is_acceptable(iss, dev) || iss.contains('?')),
                "must be an https:// URL without user, query and fragment, since the keys are discovered there \
                 (http:// on loopback with --dev); or set jwks_url or jwks_file",
            ),
            ("audience", audience.is_empty(), "set it to what the `aud` of a token for this control plane contains"),
            (
                "jwks_url",
                by_url && !is_acceptable(jwks_url, dev),
                "must be an https:// URL without user and fragment (http:// on loopback with --dev)",
            ),
            ("jwks_file", by_url && by_file, "contradicts jwks_url: leave one of them empty"),
            (
                "ca_file",
                by_file && !ca_file.as_os_str().is_empty(),
                "contradicts jwks_file, with which nothing is fetched: leave one of them empty",
            ),
            ("algorithms", algorithms.is_empty(), "name at least one of RS256, ES256, EdDSA"),
            (
                "admin_value",
                admin_claim.is_empty() && !admin_value.is_empty(),
                "says what admin_claim must contain, and that is empty: set both or none",
            ),
        ];
        cases.into_iter().filter(|(_, wrong, _)| *wrong).map(|(key, _, text)| (key, text)).collect()
    }
}

/// A URL that keys may come from. What stands in it is logged, so it holds no password.
fn is_acceptable(text: &str, dev: bool) -> bool {
    let Ok(url) = Url::parse(text) else { return false };
    let safe = url.scheme() == "https" || (dev && url.scheme() == "http" && is_loopback(&url));
    safe && url.username().is_empty() && url.password().is_none() && url.fragment().is_none()
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}
