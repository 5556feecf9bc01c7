//! Fields as text that is hashed: each with its length, so that different fields never read the same.
//!
//! A field is written as `LENGTH:BYTES,` (a netstring), one that is absent as `-,`. README.md says which fields the hashes
//! of the audit are made of, for whoever checks them in another language.

/// Appends a field.
fn field(to: &mut Vec<u8>, value: Option<&str>) {
    if let Some(value) = value {
        to.extend_from_slice(value.len().to_string().as_bytes());
        to.push(b':');
        to.extend_from_slice(value.as_bytes());
    } else {
        to.push(b'-');
    }
    to.push(b',');
}

/// All fields, one after the other.
pub fn fields(values: &[Option<&str>]) -> Vec<u8> {
    let mut text = Vec::new();
    for value in values {
        field(&mut text, *value);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads what [`fields`] wrote.
    fn read(mut text: &[u8]) -> Option<Vec<Option<String>>> {
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
    fn the_form_is_the_documented_one() {
        assert_eq!(fields(&[Some("role"), None, Some(""), Some("ü,")]), b"4:role,-,0:,3:\xc3\xbc,,");
    }

    proptest! {
        /// What can be read back in one way only was written in one way only.
        #[test]
        fn what_is_written_reads_back(values in proptest::collection::vec(proptest::option::of("[-0-9:,a]{0,6}|.{0,4}"), 0..8)) {
            let given: Vec<_> = values.iter().map(Option::as_deref).collect();
            prop_assert_eq!(read(&fields(&given)), Some(values));
        }

        #[test]
        fn different_fields_are_never_written_the_same(
            one in proptest::collection::vec(proptest::option::of("[-0-3:,]{0,4}"), 0..5),
            other in proptest::collection::vec(proptest::option::of("[-0-3:,]{0,4}"), 0..5),
        ) {
            let write = |values: &[Option<String>]| fields(&values.iter().map(Option::as_deref).collect::<Vec<_>>());
            prop_assert_eq!(write(&one) == write(&other), one == other);
        }
    }
}
