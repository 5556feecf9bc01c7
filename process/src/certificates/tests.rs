//! Tests which certificates replace the one that a server presents.

use super::*;
use rcgen::{CertificateParams, KeyPair, date_time_ymd};

const NOW: Timestamp = Timestamp::from_seconds(1_800_000_000);

fn certificate(years: (i32, i32)) -> Certificate {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    (params.not_before, params.not_after) = (date_time_ymd(years.0, 1, 1), date_time_ymd(years.1, 1, 1));
    let key = KeyPair::generate().unwrap();
    Certificate { chain: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem().into() }
}

fn served_chain(served: &ServedCertificate) -> Vec<u8> {
    served.key.load().cert[0].to_vec()
}

#[test]
fn only_a_valid_pair_replaces_the_certificate() {
    let (old, new) = (certificate((2020, 2040)), certificate((2021, 2030)));
    let expiry = IntGauge::new("expiry", "expiry").unwrap();
    let served = ServedCertificate::new(&old, expiry.clone(), NOW).unwrap();
    let before = (served_chain(&served), expiry.get());
    let refused = |certificate: &Certificate| served.replace(certificate, NOW).unwrap_err().to_string();
    let mixed = Certificate { chain: new.chain.clone(), key: old.key.clone() };
    assert!(refused(&mixed).contains("KeyMismatch"), "{}", refused(&mixed));
    assert!(refused(&certificate((2020, 2021))).contains("tls.certificate: expired at 2021-01-01T00:00:00Z"));
    assert!(refused(&certificate((2039, 2040))).contains("not valid before 2039-01-01T00:00:00Z"));
    let truncated = Certificate { chain: new.chain[..new.chain.len() / 2].to_owned(), key: new.key.clone() };
    assert!(refused(&truncated).contains("no PEM certificate"), "{}", refused(&truncated));
    let empty = Certificate { chain: String::new(), key: new.key.clone() };
    assert!(refused(&empty).contains("no PEM certificate"), "{}", refused(&empty));
    assert_eq!((served_chain(&served), expiry.get()), before);
    let expired_last = format!("{}{}", old.chain, certificate((2020, 2021)).chain);
    let expired_last = Certificate { chain: expired_last, key: old.key.clone() };
    assert_eq!(rfc3339(served.replace(&expired_last, NOW).unwrap()), "2040-01-01T00:00:00Z");
    assert_eq!(served_chain(&served), before.0, "the same certificate");
    assert_eq!(rfc3339(served.replace(&new, NOW).unwrap()), "2030-01-01T00:00:00Z");
    assert_ne!(served_chain(&served), before.0);
    assert_eq!(rfc3339(Timestamp::from_seconds(expiry.get())), "2030-01-01T00:00:00Z");
}
