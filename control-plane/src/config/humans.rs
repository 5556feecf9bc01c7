//! `[humans]`: the issuers of human users' tokens.

use reqwest::Url;
use serde::Deserialize;
use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

/// The `iss` of tokens that the operator key signs. No configured issuer may have it.
const OPERATOR_ISSUER: &str = "urn:countersign:operator";

#[derive(Debug, Clone, Default, Deserialize)]
pub struct HumanSettings {
    /// The issuers, by their names in the settings.
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
    /// Where the issuer's JWK set is.
    pub jwks: KeySource,
    /// A PEM file of the certificate authorities trusted for the issuer's server. Empty: the authorities of the operating
    /// system are trusted.
    pub ca_file: PathBuf,
    admin_claim: String,
}

/// Where the JWK set of an issuer is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum KeySource {
    /// At the URL that OpenID Connect Discovery returns.
    Discovery,
    Url(String),
    File(PathBuf),
}

impl From<String> for KeySource {
    fn from(text: String) -> Self {
        match text.as_str() {
            "" => Self::Discovery,
            url if url.contains("://") => Self::Url(text),
            _ => Self::File(text.into()),
        }
    }
}

impl HumanSettings {
    /// Describes the contradictory, invalid and missing values.
    pub(super) fn problems(&self, public_url: &str, dev: bool) -> Vec<String> {
        let mut problems = Vec::new();
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
    /// The claim that identifies administrators, and the value that it must have or contain; if the value is empty, the claim must
    /// be `true`. `None` if the issuer has no administrators.
    pub fn admin_claim(&self) -> Option<(&str, &str)> {
        let claim = self.admin_claim.split_once('=').unwrap_or((&self.admin_claim, ""));
        (!self.admin_claim.is_empty()).then_some(claim)
    }

    /// The invalid settings of one issuer, each with a description of the problem.
    fn problems(&self, public_url: &str, dev: bool) -> Vec<(&'static str, &'static str)> {
        let Self { iss, audience, jwks, ca_file, admin_claim: _ } = self;
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
                !iss.is_empty() && *jwks == KeySource::Discovery && (!is_acceptable_url(iss, dev) || iss.contains('?')),
                "must be an https:// URL without user, query and fragment, because the keys are discovered below it \
                 (http:// on loopback with --dev); or set jwks",
            ),
            ("audience", audience.is_empty(), "set it to the `aud` of the issuer's tokens for this control plane"),
            (
                "jwks",
                matches!(jwks, KeySource::Url(url) if !is_acceptable_url(url, dev)),
                "must be an https:// URL without user and fragment (http:// on loopback with --dev), or the path of a file",
            ),
            (
                "jwks",
                matches!(jwks, KeySource::File(path) if path.to_string_lossy().trim_start().starts_with('{')),
                "is the content of a JWK set: set the path of its file, without `_FILE` at the end of the variable's name",
            ),
            (
                "ca_file",
                matches!(jwks, KeySource::File(_)) && !ca_file.as_os_str().is_empty(),
                "contradicts the file in jwks, because nothing is fetched: leave it empty",
            ),
            (
                "admin_claim",
                self.admin_claim().is_some_and(|(name, _)| name.is_empty()),
                "must be the name of a claim, or a name, `=` and a value, such as `groups=countersign-admins`",
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
