//! Certificate authorities in PEM files.

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};

/// Parses the certificate authorities in a PEM file, which must have at least one.
pub fn parse(pem: &[u8]) -> Result<RootCertStore, &'static str> {
    let certificates = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
    let mut authorities = RootCertStore::empty();
    let (added, _ignored) = authorities.add_parsable_certificates(certificates);
    if added == 0 { Err("contains no PEM certificate") } else { Ok(authorities) }
}
