//! A credential has one spelling.

use super::*;
use countersign_mangle::{any_text, cases_divided_by, mutated_text};
use proptest::prelude::*;

fn is_one_spelling<Id: CredentialId>(text: &str) -> Result<(), TestCaseError> {
    if let Some(credential) = Credential::<Id>::parse(text) {
        let revealed = credential.reveal();
        prop_assert_eq!(expose(&revealed), text);
        prop_assert!(credential.hash().is_of(&credential));
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn what_is_read_is_what_is_revealed(
        id: u128, secret: [u8; SECRET_LEN], anything in any_text(),
        other in (any::<u128>(), any::<[u8; SECRET_LEN]>()).prop_flat_map(|(id, secret)| {
            mutated_text(expose(&Credential::new(ApiKeyId::from_bits(id), Zeroizing::new(secret)).reveal()))
        }),
    ) {
        let made = Credential::new(RefreshId::from_bits(id), Zeroizing::new(secret));
        let read = Credential::<RefreshId>::parse(expose(&made.reveal()));
        prop_assert!(read.is_some_and(|read| made.hash().is_of(&read)));
        for text in [&other, &other.replace("svc_sk_", "rf_"), &anything, &format!("rf_{anything}")] {
            is_one_spelling::<ApiKeyId>(text)?;
            is_one_spelling::<RefreshId>(text)?;
        }
    }

    #[test]
    fn a_changed_credential_is_not_the_one_that_was_hashed(
        other in mutated_text(expose(&Credential::new(ApiKeyId::from_bits(77), Zeroizing::new([0x5a; SECRET_LEN])).reveal()))
    ) {
        let made = Credential::new(ApiKeyId::from_bits(77), Zeroizing::new([0x5a; SECRET_LEN]));
        let passes = Credential::<ApiKeyId>::parse(&other)
            .is_some_and(|read| read.id() == made.id() && made.hash().is_of(&read));
        prop_assert_eq!(passes, other == expose(&made.reveal()));
    }
}
