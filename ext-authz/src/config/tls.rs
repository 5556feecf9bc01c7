//! The settings of `[tls]`: what protects the checks on their way from Envoy.
//!
//! Invariant: a port that other hosts can reach has a certificate, or the settings say that its clear text is accepted.

use super::{ListenAddress, deserialize_optional};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// What encrypts the checks of other hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum TlsMode {
    /// This sidecar, with its certificate.
    Serve,
    /// A service mesh. The sidecar accepts clear text.
    Mesh,
    /// Nothing. The sidecar accepts clear text.
    Insecure,
}

impl TryFrom<String> for TlsMode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "serve" => Ok(Self::Serve),
            "mesh" => Ok(Self::Mesh),
            "insecure" => Ok(Self::Insecure),
            _ => Err(format!("`{}` must be `serve`, `mesh` or `insecure`", text.escape_debug())),
        }
    }
}

/// The settings of `[tls]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSettings {
    /// What encrypts the checks of other hosts.
    pub mode: TlsMode,
    /// A PEM file with the certificate chain of the port for checks.
    #[serde(deserialize_with = "deserialize_optional")]
    certificate: Option<PathBuf>,
    /// A PEM file with the private key of the certificate.
    #[serde(deserialize_with = "deserialize_optional")]
    private_key: Option<PathBuf>,
    /// A PEM file with the certificate authorities of clients. If `None`, clients need no certificate.
    #[serde(deserialize_with = "deserialize_optional")]
    client_ca: Option<PathBuf>,
}

/// The files of a port that serves TLS.
#[derive(Debug, Clone, Copy)]
pub struct TlsFiles<'a> {
    /// The certificate chain.
    pub certificate: &'a Path,
    /// The private key.
    pub private_key: &'a Path,
    /// The certificate authorities of clients, if clients need a certificate.
    pub client_ca: Option<&'a Path>,
}

impl TlsSettings {
    /// The files of the port; `None` if it serves no TLS.
    pub fn files(&self) -> Option<TlsFiles<'_>> {
        let (certificate, private_key) = (self.certificate.as_deref()?, self.private_key.as_deref()?);
        Some(TlsFiles { certificate, private_key, client_ca: self.client_ca.as_deref() })
    }

    /// What is wrong with the settings of a port with this address.
    pub(super) fn problems(&self, address: &ListenAddress) -> impl Iterator<Item = String> {
        let Self { mode, certificate, private_key, client_ca } = self;
        let has_file = certificate.is_some() || private_key.is_some();
        let cases = [
            (
                certificate.is_some() != private_key.is_some(),
                "tls.certificate, tls.private_key: only one of them is set: set both or none".to_owned(),
            ),
            (
                client_ca.is_some() && !has_file,
                "tls.client_ca: clients can prove who they are with TLS only: set tls.certificate and tls.private_key, too"
                    .to_owned(),
            ),
            (
                has_file && *mode != TlsMode::Serve,
                "tls.mode: accepts clear text, but tls.certificate is set: set tls.mode to serve, or remove the certificate"
                    .to_owned(),
            ),
            (
                !has_file && *mode == TlsMode::Serve && !address.is_local(),
                format!(
                    "tls.certificate: other hosts can reach listen.grpc ({address}), and checks contain tokens: set \
                     tls.certificate and tls.private_key to PEM files, or listen.grpc to a Unix socket or to loopback. To \
                     accept clear text, set tls.mode to mesh (a service mesh encrypts it) or to insecure (nothing does)"
                ),
            ),
        ];
        cases.into_iter().filter(|(is_wrong, _)| *is_wrong).map(|(_, text)| text)
    }
}
