//! The next step after an error of TLS.

use countersign_client::{ApiError, api::innermost};

const CERTIFICATE_ERROR: &str = "invalid peer certificate: ";

/// Whether an untrusted authority signed the certificate of the control plane.
pub fn is_unknown_authority(error: &ApiError) -> bool {
    let ApiError::Unreachable { error, .. } = error else { return false };
    innermost(error).strip_prefix(CERTIFICATE_ERROR).is_some_and(is_unknown_issuer)
}

/// The hint for an error of TLS; `None` for other errors. `trust` is the hint for an unknown authority.
pub fn hint_for_tls_error(cause: &str, trust: &'static str) -> Option<&'static str> {
    // The response does not begin with a TLS record, so the server probably speaks plain HTTP.
    if cause.contains("InvalidContentType") {
        return Some("the server does not speak TLS on this port: is the port in the URL right?");
    }
    let problem = cause.strip_prefix(CERTIFICATE_ERROR)?;
    let contains_one_of = |words: &[&str]| words.iter().any(|word| problem.contains(word));
    Some(if is_unknown_issuer(problem) {
        trust
    } else if contains_one_of(&["not valid for name", "NotValidForName"]) {
        "use a name in the URL that the certificate is valid for"
    } else if contains_one_of(&["expired", "Expired", "not valid yet", "NotValidYet"]) {
        "ask its operator to renew the certificate; or is the clock of this machine wrong?"
    } else {
        "is this the right server? Its certificate is invalid"
    })
}

/// `BadSignature` means that a trusted authority has the name of the issuer, but another key: it is not the issuer.
fn is_unknown_issuer(problem: &str) -> bool {
    problem.contains("UnknownIssuer") || problem.contains("BadSignature")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{CertificateError, Error, pki_types::ServerName};

    #[test]
    fn tls_errors_have_a_hint_by_cause() {
        let expected = ServerName::try_from("host.example").unwrap();
        let name = CertificateError::NotValidForNameContext { expected, presented: vec!["other".into()] };
        for (error, expected) in [
            (CertificateError::UnknownIssuer, "--ca"),
            (CertificateError::BadSignature, "--ca"),
            (name, "a name"),
            (CertificateError::NotValidForName, "a name"),
            (CertificateError::Expired, "renew"),
            (CertificateError::NotValidYet, "clock"),
            (CertificateError::Revoked, "right server"),
        ] {
            let cause = Error::InvalidCertificate(error).to_string();
            let hint = hint_for_tls_error(&cause, "--ca").unwrap();
            assert!(hint.contains(expected), "{cause}: {hint}");
        }
        let plain = Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType).to_string();
        assert!(hint_for_tls_error(&plain, "--ca").unwrap().contains("does not speak TLS"), "{plain}");
        assert_eq!(hint_for_tls_error("Connection refused (os error 111)", "--ca"), None);
    }
}
