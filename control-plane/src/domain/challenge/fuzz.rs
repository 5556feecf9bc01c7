//! Property tests: the id of a challenge decodes, and no other text does.

use super::*;
use countersign_mangle::{any_bytes, any_text, cases_divided_by, mutated_bytes, mutated_text};
use proptest::{prelude::*, sample::select};

fn keys() -> ChallengeKeys {
    ChallengeKeys::derive(&[1; 32])
}

const CHALLENGE: Challenge = Challenge {
    agent: AgentId::from_bits(u128::MAX / 3),
    service: Some(ServiceId::from_bits(2)),
    expires_at: Timestamp::from_seconds(1_700_000_000),
    random_id: 4,
    restore_revision: Revision::new(5),
};

fn decoded_bytes(id: &str) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(id.strip_prefix(PREFIX).unwrap()).unwrap()
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn challenge_round_trips_through_its_id(agent: u128, service in 1..u128::MAX, bound: bool, micros: i64, random_id: u128, restore_revision: i64) {
        let challenge = Challenge {
            agent: AgentId::from_bits(agent),
            service: bound.then(|| ServiceId::from_bits(service)),
            expires_at: Timestamp::from_micros(micros),
            random_id,
            restore_revision: Revision::new(restore_revision),
        };
        prop_assert_eq!(keys().decode_id(&keys().encode_id(&challenge)), Some(challenge));
    }

    #[test]
    fn refuses_text_other_than_the_id(
        text in prop_oneof![mutated_text(&keys().encode_id(&CHALLENGE)), any_text().prop_map(|text| format!("{PREFIX}{text}")), any_text()]
    ) {
        let is_same = text == keys().encode_id(&CHALLENGE);
        prop_assert_eq!(keys().decode_id(&text), is_same.then_some(CHALLENGE));
    }

    #[test]
    fn refuses_other_bytes_and_other_encodings_of_the_same_bytes(
        bytes in prop_oneof![mutated_bytes(&decoded_bytes(&keys().encode_id(&CHALLENGE))), any_bytes()],
        last in select(&b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=+/"[..]),
    ) {
        let valid_id = keys().encode_id(&CHALLENGE);
        let text = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes));
        prop_assert_eq!(keys().decode_id(&text).is_some(), text == valid_id);
        for text in [format!("{}{}", &valid_id[..valid_id.len() - 1], char::from(last)), format!("{valid_id}{}", char::from(last))] {
            prop_assert_eq!(keys().decode_id(&text).is_some(), text == valid_id);
        }
    }
}
