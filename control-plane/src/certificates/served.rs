//! The certificate that the API port and the sync port present, which is replaced while connections are accepted.

use super::{Certificate, CertificateError};
use arc_swap::ArcSwap;
use countersign_identity::Timestamp;
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use std::sync::Arc;

/// The certificate and private key for new connections. Each handshake reads both at once, so a handshake never combines an
/// old certificate with a new key.
#[derive(Debug)]
pub struct ServedCertificate(ArcSwap<CertifiedKey>);

impl ServedCertificate {
    /// Serves a certificate until [`Self::replace`] is called.
    pub fn new(certificate: &Certificate) -> Result<Arc<Self>, CertificateError> {
        Ok(Arc::new(Self(ArcSwap::from_pointee(certificate.certified_key()?))))
    }

    /// Serves another certificate on new connections, and returns its expiry. An invalid certificate, and one that clients
    /// would refuse at the time `now`, replaces nothing.
    pub fn replace(&self, certificate: &Certificate, now: Timestamp) -> Result<Timestamp, CertificateError> {
        let key = certificate.certified_key()?;
        let expires_at = certificate.check_validity(now)?;
        self.0.store(Arc::new(key));
        Ok(expires_at)
    }

    /// The configuration of a port, with the protocols that it offers (ALPN). Connections resume TLS sessions that began
    /// before the certificate was replaced: the configuration, which stores the sessions, stays the same.
    pub fn server_config(self: &Arc<Self>, protocols: &[&[u8]]) -> Arc<ServerConfig> {
        let mut config = ServerConfig::builder().with_no_client_auth().with_cert_resolver(Arc::<Self>::clone(self));
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(config)
    }
}

impl ResolvesServerCert for ServedCertificate {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::format_time, *};
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    const NOW: Timestamp = Timestamp::from_seconds(1_800_000_000);

    fn certificate(years: (i32, i32)) -> Certificate {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(years.0, 1, 1), date_time_ymd(years.1, 1, 1));
        let key = KeyPair::generate().unwrap();
        Certificate { chain: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem().into() }
    }

    fn served_chain(served: &ServedCertificate) -> Vec<u8> {
        served.0.load().cert[0].to_vec()
    }

    #[test]
    fn only_a_valid_pair_replaces_the_certificate() {
        let (old, new) = (certificate((2020, 2040)), certificate((2021, 2030)));
        let served = ServedCertificate::new(&old).unwrap();
        let before = served_chain(&served);
        let refused = |certificate: &Certificate| served.replace(certificate, NOW).unwrap_err().to_string();
        let mixed = Certificate { chain: new.chain.clone(), key: old.key.clone() };
        assert!(refused(&mixed).contains("KeyMismatch"), "{}", refused(&mixed));
        assert!(refused(&certificate((2020, 2021))).contains("expired at 2021-01-01T00:00:00Z"));
        assert!(refused(&certificate((2039, 2040))).contains("not valid before 2039-01-01T00:00:00Z"));
        let truncated = Certificate { chain: new.chain[..new.chain.len() / 2].to_owned(), key: new.key.clone() };
        assert!(refused(&truncated).contains("no PEM certificate"), "{}", refused(&truncated));
        let empty = Certificate { chain: String::new(), key: new.key.clone() };
        assert!(refused(&empty).contains("no PEM certificate"), "{}", refused(&empty));
        assert_eq!(served_chain(&served), before);
        let expired_last = format!("{}{}", old.chain, certificate((2020, 2021)).chain);
        let expired_last = Certificate { chain: expired_last, key: old.key.clone() };
        assert_eq!(format_time(served.replace(&expired_last, NOW).unwrap()), "2040-01-01T00:00:00Z");
        assert_eq!(served_chain(&served), before, "the same certificate");
        assert_eq!(format_time(served.replace(&new, NOW).unwrap()), "2030-01-01T00:00:00Z");
        assert_ne!(served_chain(&served), before);
    }
}
