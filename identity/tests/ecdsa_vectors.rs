//! Project Wycheproof's ECDSA test vectors against [`P256PublicKey::verifies`].

#![expect(clippy::expect_used, reason = "a failed expectation fails the test")]

use countersign_identity::{P256PublicKey, public_key::EcdsaSignature};
use wycheproof::{
    TestResult,
    ecdsa::{TestName, TestSet},
};

/// Runs a test set. Returns the numbers of accepted and refused signatures.
fn run_test_set(name: TestName) -> (usize, usize) {
    let (mut accepted, mut refused) = (0, 0);
    for group in TestSet::load(name).expect("the vectors load").test_groups {
        let key = P256PublicKey::from_pem(&group.pem).expect("every key of this set is on P-256");
        for test in group.tests {
            let hex = hex::encode(&test.sig[..]);
            let verifies = EcdsaSignature::from_hex(&hex).is_ok_and(|signature| key.verifies(&[&test.msg], &signature));
            let expected = matches!(test.result, TestResult::Valid);
            assert_eq!(verifies, expected, "{name:?}, case {}: {} {:?}", test.tc_id, test.comment, test.flags);
            if verifies { accepted += 1 } else { refused += 1 }
        }
    }
    (accepted, refused)
}

#[test]
fn der_signatures_match_the_vectors() {
    let (accepted, refused) = run_test_set(TestName::EcdsaSecp256r1Sha256);
    assert!(accepted > 100 && refused > 200, "{accepted} accepted, {refused} refused");
}

#[test]
fn raw_signatures_match_the_vectors() {
    let (accepted, refused) = run_test_set(TestName::EcdsaSecp256r1Sha256P1363);
    assert!(accepted > 100 && refused > 50, "{accepted} accepted, {refused} refused");
}
