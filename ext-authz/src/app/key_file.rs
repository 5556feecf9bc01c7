//! What a changed file of API keys means: which keys stay, replace another one, are new or are gone. Pure.
//!
//! Invariant: no change takes the default service away, or makes another service the default. The sidecar learns only from requests which
//! routes need the default service, so it counts as needed.

use crate::config::ApiKey;
use countersign_identity::ServiceId;
use std::collections::BTreeSet;

/// An API key in the file.
#[derive(Debug, Clone)]
pub struct KeyInFile {
    /// The line of the file, from 1.
    pub line: usize,
    pub key: ApiKey,
}

/// Parses the file. As in the settings, commas or line ends separate the keys. The error names each line that is wrong, and never
/// contains its text.
pub fn parse(content: &[u8]) -> Result<Vec<KeyInFile>, String> {
    let text = std::str::from_utf8(content).map_err(|_| "the file is not UTF-8 text: write one API key per line")?;
    let (mut keys, mut problems) = (Vec::<KeyInFile>::new(), Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        for word in line.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match ApiKey::try_from(word.to_owned()) {
                Err(problem) => problems.push(format!("line {number}: {problem}")),
                Ok(key) => match keys.iter().find(|other| is_same(&other.key, &key)) {
                    Some(other) => problems
                        .push(format!("line {number}: repeats the API key of line {}: delete one of them", other.line)),
                    None => keys.push(KeyInFile { line: number, key }),
                },
            }
        }
    }
    if !problems.is_empty() {
        return Err(problems.join("; "));
    }
    if keys.is_empty() {
        return Err("the file contains no API key: write at least one, on a line of its own".to_owned());
    }
    Ok(keys)
}

pub fn is_same(key: &ApiKey, other: &ApiKey) -> bool {
    key.expose() == other.expose()
}

/// The service of routes that name none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultService {
    /// The setting `routes.default_service`.
    Configured(ServiceId),
    /// The service of the first API key; `None` if it is not known yet.
    OfFirstKey(Option<ServiceId>),
}

/// What happens to an API key of the file. The numbers are places in the list of the keys in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Kept(usize),
    /// The key takes the place of a key of the same service, whose stream continues.
    Replaces(usize),
    New,
}

/// The keys after a change.
#[derive(Debug, PartialEq, Eq)]
pub struct KeyPlan {
    /// One for each key of the file, in the order of the file.
    pub places: Vec<Place>,
    /// The services that have no API key any more.
    pub removed_services: BTreeSet<ServiceId>,
}

/// A key with its service, if that is known.
#[derive(Debug, Clone, Copy)]
pub struct KnownKey<'k> {
    pub key: &'k ApiKey,
    pub service: Option<ServiceId>,
    /// Whether a key in use has a view. A key of the file that takes its place continues with this view.
    pub has_view: bool,
}

/// Compares the keys in use with those of the file, or refuses the file.
pub fn plan(in_use: &[KnownKey<'_>], in_file: &[KnownKey<'_>], default: DefaultService) -> Result<KeyPlan, String> {
    let position = |key: &ApiKey| in_use.iter().position(|other| is_same(other.key, key));
    let mut places: Vec<_> = in_file.iter().map(|it| position(it.key).map_or(Place::New, Place::Kept)).collect();
    let mut gone: Vec<_> = (0..in_use.len()).filter(|index| !places.contains(&Place::Kept(*index))).collect();
    for (place, new) in places.iter_mut().zip(in_file).filter(|(place, _)| **place == Place::New) {
        let is_predecessor =
            |index: &usize| new.service.is_some() && in_use.get(*index).and_then(|it| it.service) == new.service;
        if let Some(found) = gone.iter().position(is_predecessor) {
            *place = Place::Replaces(gone.swap_remove(found));
        }
    }
    let services = |keys: &[KnownKey<'_>]| keys.iter().filter_map(|it| it.service).collect::<BTreeSet<_>>();
    let (before, after) = (services(in_use), services(in_file));
    check_default(&before, &after, in_file.first().and_then(|first| first.service), default)?;
    check_views(in_use, &gone, &after)?;
    Ok(KeyPlan { places, removed_services: before.difference(&after).copied().collect() })
}

/// Refuses to drop the last view of a service whose other keys have none yet. The next attempt may find one.
fn check_views(in_use: &[KnownKey<'_>], gone: &[usize], after: &BTreeSet<ServiceId>) -> Result<(), String> {
    let with_view = |is_gone| {
        let keys = in_use.iter().enumerate().filter(move |(index, it)| it.has_view && gone.contains(index) == is_gone);
        keys.filter_map(|(_, it)| it.service).collect::<BTreeSet<_>>()
    };
    match with_view(true).difference(&with_view(false)).find(|service| after.contains(service)) {
        Some(service) => {
            Err(format!("the other API key of {service} has no view yet: the earlier key stays in use until then"))
        }
        None => Ok(()),
    }
}

fn check_default(
    before: &BTreeSet<ServiceId>,
    after: &BTreeSet<ServiceId>,
    first: Option<ServiceId>,
    default: DefaultService,
) -> Result<(), String> {
    match default {
        DefaultService::Configured(service) if before.contains(&service) && !after.contains(&service) => Err(format!(
            "the file contains no API key of {service}, the service of routes.default_service, which routes without a service need: \
             keep a key of it, or change the setting and restart"
        )),
        DefaultService::OfFirstKey(Some(service)) if first != Some(service) => {
            let other = first.map_or_else(|| "a service that is not known".to_owned(), |first| first.to_string());
            Err(format!(
                "the first API key belongs to {other}, but routes without a service need {service}, the service of the first key until \
                 now: put a key of {service} first, or set routes.default_service and restart"
            ))
        }
        DefaultService::Configured(_) | DefaultService::OfFirstKey(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each letter stands for an API key, and the digit after it for its service; 0 stands for an unknown service. A key with `-` has no
    /// view.
    fn keys(text: &str) -> Vec<(ApiKey, Option<ServiceId>, bool)> {
        let key = |word: &str| {
            let (letter, digit) = word.trim_end_matches('-').split_at(1);
            let service = Some(digit.parse::<u128>().unwrap()).filter(|it| *it > 0).map(ServiceId::from_bits);
            (ApiKey::try_from(format!("svc_sk_{letter}")).unwrap(), service, !word.ends_with('-'))
        };
        text.split_whitespace().map(key).collect()
    }

    fn known(keys: &[(ApiKey, Option<ServiceId>, bool)]) -> Vec<KnownKey<'_>> {
        keys.iter().map(|(key, service, has_view)| KnownKey { key, service: *service, has_view: *has_view }).collect()
    }

    fn planned(in_use: &str, in_file: &str, default: DefaultService) -> Result<(Vec<Place>, Vec<ServiceId>), String> {
        let (in_use, in_file) = (keys(in_use), keys(in_file));
        let plan = plan(&known(&in_use), &known(&in_file), default)?;
        Ok((plan.places, plan.removed_services.into_iter().collect()))
    }

    fn of_first(service: u128) -> DefaultService {
        DefaultService::OfFirstKey(Some(ServiceId::from_bits(service)))
    }

    use Place::{Kept, New, Replaces};

    #[test]
    fn keys_are_kept_replaced_by_keys_of_the_same_service_added_or_removed() {
        let two = Vec::from([ServiceId::from_bits(2)]);
        for (in_use, in_file, places, removed) in [
            ("a1", "a1 b2", vec![Kept(0), New], vec![]),
            ("a1 b2", "a1", vec![Kept(0)], two.clone()),
            ("a1 b2", "x1 b2", vec![Replaces(0), Kept(1)], vec![]),
            ("a1 b2", "x1 y2", vec![Replaces(0), Replaces(1)], vec![]),
            ("a1 b2", "a1 c3", vec![Kept(0), New], two),
            ("a1 b1", "b1", vec![Kept(1)], vec![]),
            ("a1", "a1 x1", vec![Kept(0), New], vec![]),
            ("a1 x0", "a1 b2", vec![Kept(0), New], vec![]),
            ("a1 b2", "a1 b2", vec![Kept(0), Kept(1)], vec![]),
        ] {
            assert_eq!(planned(in_use, in_file, of_first(1)), Ok((places, removed)), "{in_use} to {in_file}");
        }
    }

    #[test]
    fn default_service_is_neither_removed_nor_changed() {
        for (in_use, in_file, other) in [
            ("a1 b2", "b2", "the first API key belongs to svc_"),
            ("a1 b2", "b2 a1", "first, or set routes.default"),
            ("a1 b0", "b0", "not known"),
        ] {
            let error = planned(in_use, in_file, of_first(1)).unwrap_err();
            assert!(error.contains(other) && error.contains(&ServiceId::from_bits(1).to_string()), "{error}");
        }
        let configured = |service| DefaultService::Configured(ServiceId::from_bits(service));
        let error = planned("a1 b2", "a1", configured(2)).unwrap_err();
        assert!(
            error.contains("routes.default_service") && error.contains(&ServiceId::from_bits(2).to_string()),
            "{error}"
        );
        assert!(planned("a1 b2", "b2", configured(2)).is_ok());
        assert!(planned("a1", "b3", configured(2)).is_ok(), "nothing worked for the default service before");
        assert!(planned("a0 b2", "b2", DefaultService::OfFirstKey(None)).is_ok(), "the first key never had a view");
    }

    #[test]
    fn last_view_of_a_service_is_dropped_only_with_its_last_key() {
        let error = planned("a1 x1-", "x1", of_first(1)).unwrap_err();
        assert!(error.contains("no view yet") && error.contains(&ServiceId::from_bits(1).to_string()), "{error}");
        for (in_use, in_file) in [("a1 x1", "x1"), ("a1 b2- c2", "a1 c2"), ("a1 b2", "a1"), ("a1 b2", "a1 x2")] {
            assert!(planned(in_use, in_file, of_first(1)).is_ok(), "{in_use} to {in_file}");
        }
        assert!(planned("a1 b2 c2-", "a1 c2", of_first(1)).is_err(), "not the default service either");
    }

    #[test]
    fn error_of_a_bad_file_names_each_line_and_contains_no_key() {
        let lines = |text: &str| parse(text.as_bytes()).map(|keys| keys.iter().map(|it| it.line).collect::<Vec<_>>());
        assert_eq!(lines("svc_sk_a\r\n\n svc_sk_b , svc_sk_c\n"), Ok(vec![1, 3, 3]));
        let error = lines("svc_sk_a\n<html>\nsvc_sk_a\nsvc_sk_secret word\n").unwrap_err();
        for part in ["line 2: must be", "line 3: repeats the API key of line 1", "line 4: must be"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(!error.contains("svc_sk_a") && !error.contains("secret"), "{error}");
        for text in ["garbage", "svc_sk_", "svc_sk_a b", "{\"error\":\"not found\"}"] {
            assert!(lines(text).unwrap_err().starts_with("line 1: must be"), "{text}");
        }
        for text in ["", "\n \n", ","] {
            assert!(lines(text).unwrap_err().contains("contains no API key"), "{text:?}");
        }
        assert!(parse(&[0xff]).unwrap_err().contains("UTF-8"));
    }
}
