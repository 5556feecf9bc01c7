//! Unambiguous encoding of a list of fields, for hashing.
//!
//! A field is encoded as a netstring, `LENGTH:BYTES,`, and an absent field as `-,`. Different lists never have the same
//! encoding. The documentation of the audit log lists the encoded fields, so that other programs can verify the hashes.

/// Encodes all fields in order.
pub fn encode(values: &[Option<&str>]) -> Vec<u8> {
    let field =
        |value: Option<&str>| value.map_or_else(|| "-,".to_owned(), |value| format!("{}:{value},", value.len()));
    values.iter().copied().map(field).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The inverse of [`encode`].
    fn decode(mut text: &[u8]) -> Option<Vec<Option<String>>> {
        let mut values = Vec::new();
        while !text.is_empty() {
            if let Some(rest) = text.strip_prefix(b"-,") {
                values.push(None);
                text = rest;
                continue;
            }
            let colon = text.iter().position(|byte| *byte == b':')?;
            let length: usize = std::str::from_utf8(&text[..colon]).ok()?.parse().ok()?;
            let value = text.get(colon + 1..colon + 1 + length)?;
            values.push(Some(String::from_utf8(value.to_vec()).ok()?));
            text = text[colon + 1 + length..].strip_prefix(b",")?;
        }
        Some(values)
    }

    #[test]
    fn encodes_in_the_documented_format() {
        assert_eq!(encode(&[Some("role"), None, Some(""), Some("ü,")]), b"4:role,-,0:,3:\xc3\xbc,,");
    }

    proptest! {
        /// The encoding is unambiguous, because it can be decoded.
        #[test]
        fn encoding_round_trips(values in proptest::collection::vec(proptest::option::of("[-0-9:,a]{0,6}|.{0,4}"), 0..8)) {
            let fields: Vec<_> = values.iter().map(Option::as_deref).collect();
            prop_assert_eq!(decode(&encode(&fields)), Some(values));
        }

        #[test]
        fn different_lists_have_different_encodings(
            one in proptest::collection::vec(proptest::option::of("[-0-3:,]{0,4}"), 0..5),
            other in proptest::collection::vec(proptest::option::of("[-0-3:,]{0,4}"), 0..5),
        ) {
            let encode_list = |values: &[Option<String>]| encode(&values.iter().map(Option::as_deref).collect::<Vec<_>>());
            prop_assert_eq!(encode_list(&one) == encode_list(&other), one == other);
        }
    }
}
