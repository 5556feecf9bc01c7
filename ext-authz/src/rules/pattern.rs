//! Path patterns and methods of rules, and the order of specificity.

use super::{
    host::HostPattern,
    path::{AmbiguousPath, ENCODED_SLASH, EncodedSlash, NormalPath},
};
use std::cmp::Ordering;

/// The maximum length of a path pattern in bytes.
const MAX_PATH: usize = 1024;

/// The maximum number of segments of a path pattern.
const MAX_SEGMENTS: usize = 32;

const MAX_METHODS: usize = 16;

/// The paths to which a rule applies. Segments are in normal form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathPattern {
    /// Every path, even one without a normal form.
    Any,
    /// Every path that begins with these segments.
    Prefix(Vec<Box<str>>),
    /// Every path with these segments. `None` stands for any one segment.
    Template(Vec<Option<Box<str>>>),
    Exact(Vec<Box<str>>),
}

/// The methods to which a rule applies, in upper case. An empty list stands for every method.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Methods(Vec<Box<str>>);

/// How specific a rule is. The host is compared first, then the path, then the methods. The greater value wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Specificity {
    host: HostRank,
    path: PathRank,
    names_methods: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum HostRank {
    Any,
    /// The length of the domain.
    Wildcard(usize),
    Exact,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PathRank {
    Any,
    /// The number of segments.
    Prefix(usize),
    /// The number of fixed segments.
    Template(usize),
    Exact,
}

impl Specificity {
    pub fn of(host: &HostPattern, path: &PathPattern, methods: &Methods) -> Self {
        let host = match host {
            HostPattern::Any => HostRank::Any,
            HostPattern::Wildcard(suffix) => HostRank::Wildcard(suffix.len()),
            HostPattern::Exact(_) => HostRank::Exact,
        };
        let path = match path {
            PathPattern::Any => PathRank::Any,
            PathPattern::Prefix(segments) => PathRank::Prefix(segments.len()),
            PathPattern::Template(segments) => PathRank::Template(segments.iter().flatten().count()),
            PathPattern::Exact(_) => PathRank::Exact,
        };
        Self { host, path, names_methods: !methods.0.is_empty() }
    }

    /// Completes "... also matches, but" for a rule that loses against `winner`.
    pub fn why_it_loses(self, winner: Self) -> &'static str {
        if self.host != winner.host {
            "its host is less specific"
        } else if self.path != winner.path {
            "its path is less specific"
        } else {
            "it names no method"
        }
    }
}

impl PathPattern {
    pub fn parse_exact(text: &str, encoded_slash: EncodedSlash) -> Result<Self, String> {
        parse_fixed("path", text, encoded_slash).map(Self::Exact)
    }

    pub fn parse_prefix(text: &str, encoded_slash: EncodedSlash) -> Result<Self, String> {
        parse_fixed("path_prefix", text, encoded_slash).map(Self::Prefix)
    }

    /// Parses the value of `path_template`: a path in which segments such as `{id}` stand for any one segment.
    pub fn parse_template(text: &str, encoded_slash: EncodedSlash) -> Result<Self, String> {
        let is_variable = |segment: &str| {
            let name = segment.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            name.is_some_and(|name| !name.is_empty() && name.bytes().all(is_allowed))
        };
        check_text("path_template", text)?;
        // A placeholder stands for each variable, so that the rest is parsed like any path.
        let with_placeholders: Vec<_> =
            text.split('/').map(|segment| if is_variable(segment) { "x" } else { segment }).collect();
        let parsed = parse_fixed("path_template", &with_placeholders.join("/"), encoded_slash)?;
        // The text before the first slash is not a segment.
        let written = text.split('/').skip(1).zip(parsed);
        let segments: Vec<_> = written.map(|(segment, parsed)| (!is_variable(segment)).then_some(parsed)).collect();
        if segments.iter().all(Option::is_some) {
            return Err("`path_template` has no segment such as `{id}`: use `path`".to_owned());
        }
        Ok(Self::Template(segments))
    }

    pub fn matches(&self, path: &NormalPath<'_>) -> bool {
        let mut actual = path.segments();
        match self {
            Self::Any => true,
            Self::Prefix(segments) => segments.iter().all(|segment| actual.next() == Some(&**segment)),
            Self::Exact(segments) => {
                segments.iter().all(|segment| actual.next() == Some(&**segment)) && actual.next().is_none()
            }
            Self::Template(segments) => {
                let is_match = |segment: &Option<Box<str>>| {
                    actual.next().is_some_and(|actual| segment.as_deref().is_none_or(|fixed| fixed == actual))
                };
                segments.iter().all(is_match) && actual.next().is_none()
            }
        }
    }

    /// Whether some path with an encoded slash matches.
    pub fn matches_encoded_slash(&self) -> bool {
        match self {
            Self::Exact(segments) => segments.iter().any(|segment| segment.contains(ENCODED_SLASH)),
            Self::Any | Self::Prefix(_) | Self::Template(_) => true,
        }
    }

    /// A path that matches, and that contains an encoded slash if any such path matches.
    pub fn example_with_encoded_slash(&self) -> NormalPath<'static> {
        const SEGMENT: &str = "x%2Fx";
        let (segments, may_continue) = self.segments();
        let first_variable = segments.iter().position(Option::is_none);
        let example = |(index, segment): (usize, Option<&str>)| match segment {
            Some(fixed) => fixed.to_owned(),
            None if Some(index) == first_variable => SEGMENT.to_owned(),
            None => "x".to_owned(),
        };
        let mut path: Vec<String> = segments.into_iter().enumerate().map(example).collect();
        path.extend(may_continue.then(|| SEGMENT.to_owned()));
        NormalPath::of_segments(path.iter().map(String::as_str))
    }

    /// Whether some path matches both patterns.
    pub fn intersects(&self, other: &Self) -> bool {
        let ((own, own_may_continue), (others, other_may_continue)) = (self.segments(), other.segments());
        let agree = |(a, b): (Option<&str>, Option<&str>)| a.is_none() || b.is_none() || a == b;
        // The longer pattern needs more segments than the shorter one has, so the shorter one must allow more.
        let lengths_agree = match own.len().cmp(&others.len()) {
            Ordering::Less => own_may_continue,
            Ordering::Equal => true,
            Ordering::Greater => other_may_continue,
        };
        lengths_agree && own.into_iter().zip(others).all(agree)
    }

    /// The segments of the pattern, and whether a path may have more. `None` stands for any one segment.
    fn segments(&self) -> (Vec<Option<&str>>, bool) {
        fn fixed(segments: &[Box<str>]) -> Vec<Option<&str>> {
            segments.iter().map(|segment| Some(&**segment)).collect()
        }
        match self {
            Self::Any => (Vec::new(), true),
            Self::Prefix(segments) => (fixed(segments), true),
            Self::Exact(segments) => (fixed(segments), false),
            Self::Template(segments) => (segments.iter().map(Option::as_deref).collect(), false),
        }
    }
}

impl std::fmt::Display for Methods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

fn parse_fixed(key: &str, text: &str, encoded_slash: EncodedSlash) -> Result<Vec<Box<str>>, String> {
    check_text(key, text)?;
    if text.contains(['{', '}', '*']) {
        return Err(format!(
            "`{key}`: `{}` contains `{{`, `}}` or `*`, which are no wildcards here: use `path_prefix`, or \
             `path_template` with segments such as `{{id}}`; write `%7B`, `%7D` or `%2A` for the character itself",
            text.escape_debug()
        ));
    }
    let path = NormalPath::parse(text, encoded_slash).map_err(|error| {
        let needs_key = error == AmbiguousPath::EncodedSlash;
        let fix = if needs_key { ": the rule needs `allow_encoded_slash = true`" } else { "" };
        format!("`{key}`: `{}`: {error}{fix}", text.escape_debug())
    })?;
    let segments: Vec<_> = path.segments().map(Into::into).collect();
    if segments.len() > MAX_SEGMENTS {
        return Err(format!("`{key}` has {} segments: at most {MAX_SEGMENTS} are allowed", segments.len()));
    }
    Ok(segments)
}

fn check_text(key: &str, text: &str) -> Result<(), String> {
    if text.len() > MAX_PATH {
        Err(format!("`{key}` has {} bytes: at most {MAX_PATH} are allowed", text.len()))
    } else if text.contains('?') {
        Err(format!("`{key}` contains `?`: rules do not depend on the query"))
    } else if text.len() > 1 && text.ends_with('/') {
        Err(format!("`{key}` ends with `/`: remove this slash, because a slash at the end of a path does not count"))
    } else {
        Ok(())
    }
}

impl Methods {
    pub fn parse(names: &[&str]) -> Result<Self, String> {
        if names.is_empty() || names.len() > MAX_METHODS {
            return Err(format!("`methods` must contain 1 to {MAX_METHODS} methods: for every method, delete the key"));
        }
        let is_method = |name: &str| {
            (1..=32).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-')
        };
        if let Some(name) = names.iter().find(|name| !is_method(name)) {
            return Err(format!("`methods`: `{}` is not a method in upper case, such as `GET`", name.escape_debug()));
        }
        let mut methods: Vec<Box<str>> = names.iter().map(|name| (*name).into()).collect();
        methods.sort_unstable();
        let count = methods.len();
        methods.dedup();
        if methods.len() == count { Ok(Self(methods)) } else { Err("`methods` contains a method twice".to_owned()) }
    }

    /// Whether the rule applies to this method. Lower case counts as upper case, because some services ignore the case.
    pub fn matches(&self, method: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|name| name.eq_ignore_ascii_case(method))
    }

    /// A method to which the rule applies.
    pub fn example(&self) -> &str {
        self.0.first().map_or("GET", |name| &**name)
    }

    /// Whether some method matches both.
    pub fn intersects(&self, other: &Self) -> bool {
        self.0.is_empty() || other.0.is_empty() || self.0.iter().any(|name| other.0.contains(name))
    }
}
