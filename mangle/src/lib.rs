//! `proptest` strategies for parsers: mutations of valid input, and arbitrary input.
//!
//! The `fuzz` modules next to the parsers use this crate as a dev-dependency. Invariant: the strategies generate only bytes, text
//! and JSON, nothing specific to this project.

use proptest::{
    collection::{btree_map, vec},
    prelude::*,
    sample::{Index, select},
};
use serde_json::Value;

/// Characters that parsers often mishandle: separators, padding, white space, control characters, invisible characters,
/// characters with unusual case folding, and multi-byte characters.
const MISHANDLED_CHARACTERS: [char; 26] = [
    '\0', '\t', '\n', '\u{b}', '\u{c}', '\r', ' ', '"', '%', '+', ',', '-', '.', '/', '=', '\\', '_', '{', '}',
    '\u{7f}', '\u{a0}', 'é', '\u{130}', '\u{202e}', '\u{feff}', '😀',
];

/// Configures a property test to run `PROPTEST_CASES / divisor` cases (default 256), at least 1. Slow tests use a higher divisor.
pub fn cases_divided_by(divisor: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: (default.cases / divisor).max(1), ..default }
}

/// A mutation of a sequence of items. An `Index` selects a position, whatever the length of the sequence.
#[derive(Debug, Clone)]
enum Mutation<T> {
    Replace(Index, T),
    Insert(Index, T),
    /// Deletes at most this number of items.
    Delete(Index, usize),
    /// Appends a copy of at most this number of items.
    Duplicate(Index, usize),
    Swap(Index, Index),
}

impl<T: Clone> Mutation<T> {
    fn apply(self, items: &mut Vec<T>) {
        let length = items.len();
        match self {
            Self::Insert(position, item) => items.insert(position.index(length + 1), item),
            _ if length == 0 => {}
            Self::Replace(position, item) => items[position.index(length)] = item,
            Self::Delete(position, count) => drop(items.drain(range(position, count, length))),
            Self::Duplicate(position, count) => {
                let copy = items[range(position, count, length)].to_vec();
                items.extend(copy);
            }
            Self::Swap(first, second) => items.swap(first.index(length), second.index(length)),
        }
    }
}

fn range(start: Index, count: usize, length: usize) -> std::ops::Range<usize> {
    let start = start.index(length);
    start..(start + count).min(length)
}

fn mutation<T: Clone + std::fmt::Debug + 'static>(
    item: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Mutation<T>> {
    let (position, count) = (any::<Index>, prop_oneof![Just(1_usize), 1..200_usize]);
    let item = item.boxed();
    prop_oneof![
        3 => (position(), item.clone()).prop_map(|(position, item)| Mutation::Replace(position, item)),
        2 => (position(), item).prop_map(|(position, item)| Mutation::Insert(position, item)),
        2 => (position(), count.clone()).prop_map(|(position, count)| Mutation::Delete(position, count)),
        1 => (position(), count).prop_map(|(position, count)| Mutation::Duplicate(position, count)),
        1 => (position(), position()).prop_map(|(first, second)| Mutation::Swap(first, second)),
    ]
    .boxed()
}

fn mutate<T: Clone>(valid: &[T], mutations: Vec<Mutation<T>>) -> Vec<T> {
    let mut items = valid.to_vec();
    for mutation in mutations {
        mutation.apply(&mut items);
    }
    items
}

/// Generates variants of `valid` with one to three mutations. Mutations may cancel out, so a variant can equal `valid`.
pub fn mutated_bytes(valid: &[u8]) -> impl Strategy<Value = Vec<u8>> + Clone + use<> {
    let valid = valid.to_vec();
    vec(mutation(any::<u8>()), 1..=3).prop_map(move |mutations| mutate(&valid, mutations))
}

/// Generates variants of `valid` with one to three mutations. Mutations may cancel out, so a variant can equal `valid`.
pub fn mutated_text(valid: &str) -> impl Strategy<Value = String> + Clone + use<> {
    let valid: Vec<char> = valid.chars().collect();
    vec(mutation(any_character()), 1..=3).prop_map(move |mutations| mutate(&valid, mutations).into_iter().collect())
}

fn any_character() -> BoxedStrategy<char> {
    prop_oneof![4 => (b'!'..=b'~').prop_map(char::from), 2 => select(&MISHANDLED_CHARACTERS[..]), 1 => any::<char>()]
        .boxed()
}

/// Generates up to 5000 arbitrary bytes.
pub fn any_bytes() -> impl Strategy<Value = Vec<u8>> + Clone {
    prop_oneof![vec(any::<u8>(), 0..200), vec(any::<u8>(), 0..5000)]
}

/// Generates printable ASCII text, or text with characters that parsers often mishandle.
pub fn any_text() -> impl Strategy<Value = String> + Clone {
    let any_characters = |count| vec(any_character(), count).prop_map(String::from_iter);
    let printable = vec((b' '..=b'~').prop_map(char::from), 0..40).prop_map(String::from_iter);
    prop_oneof![3 => printable, 3 => any_characters(0..40), 1 => any_characters(0..2000)]
}

/// Generates arbitrary JSON of up to four levels.
pub fn any_json() -> impl Strategy<Value = Value> + Clone {
    let number = prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-1_i64..200).prop_map(Value::from),
    ];
    let leaf =
        prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), number, any_text().prop_map(Value::from)];
    leaf.prop_recursive(4, 64, 8, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..8).prop_map(Value::from),
            btree_map(any_text(), inner, 0..8).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}
