//! Input that is almost good, and input that is nothing at all, for the property tests of every crate.
//!
//! Neighbours: the `fuzz` modules beside the parsers, which say what must be true of them; no crate but
//! in its tests. The rule of the room: nothing of ours is known here, only bytes, texts and JSON.
//!
//! [`cases`] is the one place where it is said how many cases there are.

use proptest::{
    collection::{btree_map, vec},
    prelude::*,
    sample::{Index, select},
};
use serde_json::Value;

/// Characters that parsers stumble over: separators, padding, white space, what folds, hides or is long.
const AWKWARD: [char; 26] = [
    '\0', '\t', '\n', '\u{b}', '\u{c}', '\r', ' ', '"', '%', '+', ',', '-', '.', '/', '=', '\\', '_', '{', '}',
    '\u{7f}', '\u{a0}', 'é', '\u{130}', '\u{202e}', '\u{feff}', '😀',
];

/// As many cases as `PROPTEST_CASES` says, or 256; of what is slow, one in `share`.
pub fn cases_divided_by(share: u32) -> ProptestConfig {
    let all = ProptestConfig::default();
    ProptestConfig { cases: (all.cases / share).max(1), ..all }
}

/// One change to a sequence.
#[derive(Debug, Clone)]
enum Edit<T> {
    Replace(Index, T),
    Insert(Index, T),
    Cut(Index, usize),
    Repeat(Index, usize),
    Swap(Index, Index),
}

impl<T: Clone> Edit<T> {
    fn apply(self, to: &mut Vec<T>) {
        let length = to.len();
        match self {
            Self::Insert(at, item) => to.insert(at.index(length + 1), item),
            _ if length == 0 => {}
            Self::Replace(at, item) => to[at.index(length)] = item,
            Self::Cut(at, count) => drop(to.drain(range(at, count, length))),
            Self::Repeat(at, count) => {
                let again = to[range(at, count, length)].to_vec();
                to.extend(again);
            }
            Self::Swap(one, other) => to.swap(one.index(length), other.index(length)),
        }
    }
}

fn range(at: Index, count: usize, length: usize) -> std::ops::Range<usize> {
    let start = at.index(length);
    start..(start + count).min(length)
}

fn edit<T: Clone + std::fmt::Debug + 'static>(item: impl Strategy<Value = T> + 'static) -> BoxedStrategy<Edit<T>> {
    let (at, count) = (any::<Index>, prop_oneof![Just(1_usize), 1..200_usize]);
    let item = item.boxed();
    prop_oneof![
        3 => (at(), item.clone()).prop_map(|(at, item)| Edit::Replace(at, item)),
        2 => (at(), item).prop_map(|(at, item)| Edit::Insert(at, item)),
        2 => (at(), count.clone()).prop_map(|(at, count)| Edit::Cut(at, count)),
        1 => (at(), count).prop_map(|(at, count)| Edit::Repeat(at, count)),
        1 => (at(), at()).prop_map(|(one, other)| Edit::Swap(one, other)),
    ]
    .boxed()
}

fn edited<T: Clone>(good: &[T], edits: Vec<Edit<T>>) -> Vec<T> {
    let mut items = good.to_vec();
    for edit in edits {
        edit.apply(&mut items);
    }
    items
}

/// These bytes after one to three changes, which may amount to none.
pub fn mutated_bytes(good: &[u8]) -> impl Strategy<Value = Vec<u8>> + Clone + use<> {
    let good = good.to_vec();
    vec(edit(any::<u8>()), 1..=3).prop_map(move |edits| edited(&good, edits))
}

/// This text after one to three changes, which may amount to none.
pub fn mutated_text(good: &str) -> impl Strategy<Value = String> + Clone + use<> {
    let good: Vec<char> = good.chars().collect();
    vec(edit(character()), 1..=3).prop_map(move |edits| edited(&good, edits).into_iter().collect())
}

fn character() -> BoxedStrategy<char> {
    prop_oneof![4 => (b'!'..=b'~').prop_map(char::from), 2 => select(&AWKWARD[..]), 1 => any::<char>()].boxed()
}

/// Bytes of any kind.
pub fn any_bytes() -> impl Strategy<Value = Vec<u8>> + Clone {
    prop_oneof![vec(any::<u8>(), 0..200), vec(any::<u8>(), 0..5000)]
}

/// Text of any kind: plain, awkward, or long.
pub fn any_text() -> impl Strategy<Value = String> + Clone {
    let of = |count| vec(character(), count).prop_map(String::from_iter);
    let plain = vec((b' '..=b'~').prop_map(char::from), 0..40).prop_map(String::from_iter);
    prop_oneof![3 => plain, 3 => of(0..40), 1 => of(0..2000)]
}

/// JSON of any shape, a few levels deep.
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
