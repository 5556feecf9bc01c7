//! `[humans]`: the issuers of human users' tokens.

use reqwest::Url;
use serde::Deserialize;
use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, time::Duration};

/// The `iss` of tokens that the operator key signs. No configured issuer may have the `iss` of the operator key.
const OPERATOR_ISSUER: &str = "urn:countersign:operator";

/// `[humans]`
#[derive(Debug, Clone, Deserialize)]
pub struct HumanSettings {
    #[serde(rename = "keys_refresh_seconds")]
    keys_refresh: u32,
    #[serde(rename = "keys_max_age_seconds")]
    keys_max_age: u32,
    /// The issuers, by the name in the settings.
    #[serde(default)]
    pub issuers: BTreeMap<String, IssuerSettings>,
}

/// `[humans.issuers.<name>]`
#[derive(Debug, Clone, Deserialize)]
pub struct IssuerSettings {
    /// The exact `iss` of the issuer's tokens.
    #[serde(rename = "issuer")]
    pub iss: String,
    /// The value that the `aud` of the issuer's tokens must be or contain.
    pub audience: String,
    /// The URL of the issuer's JWK set. Empty: the URL comes from OpenID Connect Discovery.
    pub jwks_url: String,
    /// A file with the issuer's JWK set. Empty: the keys are fetched over HTTP.
    pub jwks_file: PathBuf,
    /// A PEM file of the certificate authorities trusted for the issuer's server. Empty: the authorities of the operating
    /// system are trusted.
    pub ca_file: PathBuf,
    /// The accepted signature algorithms.
    pub algorithms: Vec<AcceptedAlgorithm>,
    /// The claim that identifies administrators. Empty: the issuer has no administrators.
    pub admin_claim: String,
    /// The value that the claim must have or contain. Empty: the claim must be `true`.
    pub admin_value: String,
}

/// A signature algorithm of tokens, by its name in RFC 7518 or RFC 8037.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum AcceptedAlgorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    RS256,
    /// ECDSA on P-256 with SHA-256.
    ES256,
    /// Ed25519.
    EdDSA,
}

impl TryFrom<String> for AcceptedAlgorithm {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "RS256" => Ok(Self::RS256),
            "ES256" => Ok(Self::ES256),
            "EdDSA" => Ok(Self::EdDSA),
            _ => Err(format!("`{text}` is not one of RS256, ES256, EdDSA")),
        }
    }
}

impl HumanSettings {
    /// The age at which an issuer's keys are fetched again.
    pub fn keys_refresh_after(&self) -> Duration {
        Duration::from_secs(self.keys_refresh.into())
    }

    /// The age at which keys are no longer used, even if they cannot be fetched again.
    pub fn keys_max_age(&self) -> Duration {
        Duration::from_secs(self.keys_max_age.into())
    }

    /// Describes the contradictory, invalid and missing values.
    pub(super) fn problems(&self, public_url: &str, dev: bool) -> Vec<String> {
        let mut problems = Vec::new();
        if self.keys_refresh == 0 {
            problems.push("humans.keys_refresh_seconds: must be at least one second".to_owned());
        }
        if self.keys_max_age < self.keys_refresh {
            problems.push("humans.keys_max_age_seconds: must not be less than humans.keys_refresh_seconds".to_owned());
        }
        for (name, issuer) in &self.issuers {
            let issuer_problems = issuer.problems(public_url, dev);
            problems
                .extend(issuer_problems.into_iter().map(|(key, text)| format!("humans.issuers.{name}.{key}: {text}")));
            let first = self.issuers.iter().find(|(_, other)| other.iss == issuer.iss);
            if let Some((first, _)) = first.filter(|(first, _)| *first != name && !issuer.iss.is_empty()) {
                problems.push(format!("humans.issuers.{name}.issuer: humans.issuers.{first} has the same issuer"));
            }
        }
        problems
    }
}

impl IssuerSettings {
    /// The invalid settings of one issuer, each with a description of the problem.
    fn problems(&self, public_url: &str, dev: bool) -> Vec<(&'static str, &'static str)> {
        let Self { iss, audience, jwks_url, jwks_file, ca_file, algorithms, admin_claim, admin_value } = self;
        let (has_url, has_file) = (!jwks_url.is_empty(), !jwks_file.as_os_str().is_empty());
        let is_own_url = [public_url, public_url.trim_end_matches('/')].contains(&iss.as_str());
        let cases = [
            ("issuer", iss.is_empty(), "set it to the exact `iss` of the issuer's tokens"),
            (
                "issuer",
                !iss.is_empty() && (is_own_url || iss == OPERATOR_ISSUER),
                "is the issuer of this control plane, whose tokens identify agents: set the issuer of your identity provider",
            ),
            (
                "issuer",
                !iss.is_empty() && !has_url && !has_file && (!is_acceptable_url(iss, dev) || iss.contains('?')),
                "must be an https:// URL without user, query and fragment, because the keys are discovered below it \
                 (http:// on loopback with --dev); or set jwks_url or jwks_file",
            ),
            ("audience", audience.is_empty(), "set it to the `aud` of the issuer's tokens for this control plane"),
            (
                "jwks_url",
                has_url && !is_acceptable_url(jwks_url, dev),
                "must be an https:// URL without user and fragment (http:// on loopback with --dev)",
            ),
            ("jwks_file", has_url && has_file, "contradicts jwks_url: leave one of them empty"),
            (
                "ca_file",
                has_file && !ca_file.as_os_str().is_empty(),
                "contradicts jwks_file, because nothing is fetched: leave one of them empty",
            ),
            ("algorithms", algorithms.is_empty(), "name at least one of RS256, ES256, EdDSA"),
            (
                "admin_value",
                admin_claim.is_empty() && !admin_value.is_empty(),
                "has no effect without admin_claim: set both or neither",
            ),
        ];
        cases.into_iter().filter(|(_, is_wrong, _)| *is_wrong).map(|(key, _, text)| (key, text)).collect()
    }
}

/// Whether the keys of an issuer may be fetched from a URL. The URL must not contain a password, because the URL is logged.
fn is_acceptable_url(text: &str, dev: bool) -> bool {
    let Ok(url) = Url::parse(text) else { return false };
    let is_secure = url.scheme() == "https" || (dev && url.scheme() == "http" && is_loopback(&url));
    is_secure && url.username().is_empty() && url.password().is_none() && url.fragment().is_none()
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}
