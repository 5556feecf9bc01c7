//! `proptest` strategies for parsers: mutations of valid input, and arbitrary input.
//!
//! The `fuzz` modules beside the parsers use them; a dev-dependency only. Invariant: only bytes, text and JSON, nothing
//! specific to this project.
//!
//! [`cases_divided_by`] sets the number of cases of all these tests.

use proptest::{
    collection::{btree_map, vec},
    prelude::*,
    sample::{Index, select},
};
use serde_json::Value;

/// Characters that parsers often mishandle: separators, padding, white space, control and invisible characters,
/// characters with unusual case folding, multi-byte characters.
const AWKWARD: [char; 26] = [
    '\0', '\t', '\n', '\u{b}', '\u{c}', '\r', ' ', '"', '%', '+', ',', '-', '.', '/', '=', '\\', '_', '{', '}',
    '\u{7f}', '\u{a0}', 'é', '\u{130}', '\u{202e}', '\u{feff}', '😀',
];

/// The number of cases: `PROPTEST_CASES` (default 256) divided by `divisor`, for slow tests; at least 1.
pub fn cases_divided_by(divisor: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: (default.cases / divisor).max(1), ..default }
}

/// A mutation of a sequence.
#[derive(Debug, Clone)]
enum Mutation<T> {
    Replace(Index, T),
    Insert(Index, T),
    Delete(Index, usize),
    Duplicate(Index, usize),
    Swap(Index, Index),
}

impl<T: Clone> Mutation<T> {
    fn apply(self, items: &mut Vec<T>) {
        let length = items.len();
        match self {
            Self::Insert(at, item) => items.insert(at.index(length + 1), item),
            _ if length == 0 => {}
            Self::Replace(at, item) => items[at.index(length)] = item,
            Self::Delete(at, count) => drop(items.drain(range(at, count, length))),
            Self::Duplicate(at, count) => {
                let copy = items[range(at, count, length)].to_vec();
                items.extend(copy);
            }
            Self::Swap(one, other) => items.swap(one.index(length), other.index(length)),
        }
    }
}

fn range(at: Index, count: usize, length: usize) -> std::ops::Range<usize> {
    let start = at.index(length);
    start..(start + count).min(length)
}

fn mutation<T: Clone + std::fmt::Debug + 'static>(
    item: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Mutation<T>> {
    let (at, count) = (any::<Index>, prop_oneof![Just(1_usize), 1..200_usize]);
    let item = item.boxed();
    prop_oneof![
        3 => (at(), item.clone()).prop_map(|(at, item)| Mutation::Replace(at, item)),
        2 => (at(), item).prop_map(|(at, item)| Mutation::Insert(at, item)),
        2 => (at(), count.clone()).prop_map(|(at, count)| Mutation::Delete(at, count)),
        1 => (at(), count).prop_map(|(at, count)| Mutation::Duplicate(at, count)),
        1 => (at(), at()).prop_map(|(one, other)| Mutation::Swap(one, other)),
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

/// The bytes after one to three mutations, which may cancel out.
pub fn mutated_bytes(valid: &[u8]) -> impl Strategy<Value = Vec<u8>> + Clone + use<> {
    let valid = valid.to_vec();
    vec(mutation(any::<u8>()), 1..=3).prop_map(move |mutations| mutate(&valid, mutations))
}

/// The text after one to three mutations, which may cancel out.
pub fn mutated_text(valid: &str) -> impl Strategy<Value = String> + Clone + use<> {
    let valid: Vec<char> = valid.chars().collect();
    vec(mutation(character()), 1..=3).prop_map(move |mutations| mutate(&valid, mutations).into_iter().collect())
}

fn character() -> BoxedStrategy<char> {
    prop_oneof![4 => (b'!'..=b'~').prop_map(char::from), 2 => select(&AWKWARD[..]), 1 => any::<char>()].boxed()
}

/// Arbitrary bytes, short or long.
pub fn any_bytes() -> impl Strategy<Value = Vec<u8>> + Clone {
    prop_oneof![vec(any::<u8>(), 0..200), vec(any::<u8>(), 0..5000)]
}

/// Arbitrary text: plain, awkward, or long.
pub fn any_text() -> impl Strategy<Value = String> + Clone {
    let awkward = |count| vec(character(), count).prop_map(String::from_iter);
    let plain = vec((b' '..=b'~').prop_map(char::from), 0..40).prop_map(String::from_iter);
    prop_oneof![3 => plain, 3 => awkward(0..40), 1 => awkward(0..2000)]
}

/// Arbitrary JSON, up to four levels deep.
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
