//! Property tests: every credential has exactly one textual form.

use super::*;
use countersign_mangle::{any_text, cases_divided_by, mutated_text};
use proptest::prelude::*;

fn check_textual_form<Id: CredentialId>(text: &str) -> Result<(), TestCaseError> {
    if let Some(credential) = Credential::<Id>::parse(text) {
        let revealed = credential.reveal();
        prop_assert_eq!(expose(&revealed), text);
        prop_assert!(credential.hash().matches(&credential));
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn credential_round_trips_through_its_text(
        id: u128, secret: [u8; SECRET_LEN], any_input in any_text(),
        other in (any::<u128>(), any::<[u8; SECRET_LEN]>()).prop_flat_map(|(id, secret)| {
            mutated_text(expose(&Credential::new(ApiKeyId::from_bits(id), Zeroizing::new(secret)).reveal()))
        }),
    ) {
        let credential = Credential::new(SessionId::from_bits(id), Zeroizing::new(secret));
        let parsed = Credential::<SessionId>::parse(expose(&credential.reveal()));
        prop_assert!(parsed.is_some_and(|parsed| credential.hash().matches(&parsed)));
        // With the prefix `rf_`, the parser of refresh tokens also reads the rest of the text.
        for text in [&other, &other.replace("svc_sk_", "rf_"), &any_input, &format!("rf_{any_input}")] {
            check_textual_form::<ApiKeyId>(text)?;
            check_textual_form::<SessionId>(text)?;
        }
    }

    #[test]
    fn changed_credential_does_not_match_the_hash(
        other in mutated_text(expose(&Credential::new(ApiKeyId::from_bits(77), Zeroizing::new([0x5a; SECRET_LEN])).reveal()))
    ) {
        let credential = Credential::new(ApiKeyId::from_bits(77), Zeroizing::new([0x5a; SECRET_LEN]));
        let is_accepted = Credential::<ApiKeyId>::parse(&other)
            .is_some_and(|parsed| parsed.id() == credential.id() && credential.hash().matches(&parsed));
        prop_assert_eq!(is_accepted, other == expose(&credential.reveal()));
    }
}
