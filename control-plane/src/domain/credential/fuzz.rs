//! Property tests: every credential has exactly one textual form.

use super::*;
use countersign_mangle::{any_text, cases_divided_by, mutated_text};
use proptest::prelude::*;

fn has_one_textual_form<Id: CredentialId>(text: &str) -> Result<(), TestCaseError> {
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
        id: u128, secret: [u8; SECRET_LEN], anything in any_text(),
        other in (any::<u128>(), any::<[u8; SECRET_LEN]>()).prop_flat_map(|(id, secret)| {
            mutated_text(expose(&Credential::new(ApiKeyId::from_bits(id), Zeroizing::new(secret)).reveal()))
        }),
    ) {
        let credential = Credential::new(RefreshId::from_bits(id), Zeroizing::new(secret));
        let read = Credential::<RefreshId>::parse(expose(&credential.reveal()));
        prop_assert!(read.is_some_and(|read| credential.hash().matches(&read)));
        for text in [&other, &other.replace("svc_sk_", "rf_"), &anything, &format!("rf_{anything}")] {
            has_one_textual_form::<ApiKeyId>(text)?;
            has_one_textual_form::<RefreshId>(text)?;
        }
    }

    #[test]
    fn changed_credential_does_not_match_the_hash(
        other in mutated_text(expose(&Credential::new(ApiKeyId::from_bits(77), Zeroizing::new([0x5a; SECRET_LEN])).reveal()))
    ) {
        let credential = Credential::new(ApiKeyId::from_bits(77), Zeroizing::new([0x5a; SECRET_LEN]));
        let passes = Credential::<ApiKeyId>::parse(&other)
            .is_some_and(|read| read.id() == credential.id() && credential.hash().matches(&read));
        prop_assert_eq!(passes, other == expose(&credential.reveal()));
    }
}
