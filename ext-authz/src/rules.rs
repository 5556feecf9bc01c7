//! The rules of the rules file: which policy applies to a request without context extensions.
//!
//! `app` loads the file, `check` selects the rule of each request, and `commands` checks files and explains selections. Invariants:
//! for each request, one matching rule is the most specific, because a file in which two could be equally specific is refused. If
//! two services could understand a path or host differently, it has no normal form. A request with such a path or host is refused
//! if the choice of its rule depends on it. A rule may allow encoded slashes: see `rules/encoded_slash.rs`.

mod encoded_slash;
mod explain;
mod file;
mod host;
mod index;
mod mcp;
mod path;
mod pattern;

use crate::policy::Policy;
use countersign_identity::Reason;
use host::{HostPattern, normalize_host};
use index::{HostRules, Index};
use path::{AmbiguousPath, EncodedSlash, NormalPath};
use pattern::{Methods, PathPattern, Specificity};
use std::sync::Arc;

pub use file::MAX_FILE_BYTES;
pub use mcp::{McpMessage, McpRequest, McpRules, NamingMethod, ReceivedMessage};

/// The name of the rule in the table `[default]`. No other rule can have this name.
pub const DEFAULT_NAME: &str = "default";

#[derive(Debug, Clone)]
pub struct Rule {
    /// The name, which is unique in the file.
    pub name: Arc<str>,
    /// The line of the file at which the rule begins, from 1.
    pub line: usize,
    pub policy: Arc<Policy>,
    /// What MCP messages require in addition; `None` if the rule is not about MCP.
    pub mcp: Option<McpRules>,
    /// Whether a request that does not meet the requirements is still allowed, without an identity. Other rules are enforced.
    pub dry_run: bool,
    host: HostPattern,
    path: PathPattern,
    /// Whether the rule applies to paths with encoded slashes.
    encoded_slash: EncodedSlash,
    methods: Methods,
}

/// The parts of a request that select its rule, as the client sent them.
#[derive(Debug, Clone, Copy)]
pub struct RequestTarget<'a> {
    pub method: &'a str,
    /// The host, with or without port.
    pub host: &'a str,
    /// The path, with or without query.
    pub path: &'a str,
}

/// The rules of a file.
#[derive(Debug, Default)]
pub struct RuleSet {
    /// The rules in the order of the file, without `[default]`.
    rules: Vec<Rule>,
    /// The rule for requests that no other rule matches.
    default: Option<Rule>,
    index: Index,
}

/// A request for which no rule can be selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unselectable {
    pub reason: Reason,
    /// Whether every rule that could apply is a dry run, so that the request is allowed nevertheless, without an identity.
    pub dry_run: bool,
}

impl Rule {
    fn specificity(&self) -> Specificity {
        Specificity::of(&self.host, &self.path, &self.methods)
    }

    /// `host` is `None` if the host has no normal form: only a rule without a condition about hosts matches it. `path` likewise.
    fn matches(&self, host: Option<&str>, path: Option<&NormalPath<'_>>, method: &str) -> bool {
        let matches_path = match path {
            Some(path) => self.path.matches(path),
            None => self.path == PathPattern::Any,
        };
        self.host.matches(host) && matches_path && self.methods.matches(method)
    }

    /// Whether some request matches both rules.
    fn intersects(&self, other: &Self) -> bool {
        self.host.intersects(&other.host)
            && self.path.intersects(&other.path)
            && self.methods.intersects(&other.methods)
    }

    /// Whether some request matches both rules, and neither is more specific.
    fn conflicts_with(&self, other: &Self) -> bool {
        self.specificity() == other.specificity() && self.intersects(other)
    }
}

impl RuleSet {
    fn new(rules: Vec<Rule>, default: Option<Rule>) -> Self {
        let index = Index::new(&rules);
        Self { rules, default, index }
    }

    /// The number of rules, without `[default]`.
    pub const fn count(&self) -> usize {
        self.rules.len()
    }

    /// What an operator probably does not intend, although the rules are valid.
    pub fn warnings(&self) -> Vec<String> {
        self.dry_run_warnings().chain(self.encoded_slash_warnings()).collect()
    }

    /// A warning for each dry run that takes requests from an enforced rule, because it is more specific: the dry run refuses none
    /// of these requests, although the enforced rule might.
    fn dry_run_warnings(&self) -> impl Iterator<Item = String> {
        let overruled_by = move |dry_run: &Rule| {
            let is_less_specific = |rule: &&Rule| !rule.dry_run && rule.specificity() < dry_run.specificity();
            self.rules.iter().filter(is_less_specific).find(|rule| rule.intersects(dry_run))
        };
        let dry_runs = self.rules.iter().filter(|rule| rule.dry_run);
        let warning = |(dry_run, enforced): (&Rule, &Rule)| {
            format!(
                "line {}: the dry run `{}` takes requests from the enforced rule `{}` at line {}, and refuses none of them",
                dry_run.line, dry_run.name, enforced.name, enforced.line
            )
        };
        dry_runs.filter_map(move |dry_run| Some(warning((dry_run, overruled_by(dry_run)?))))
    }

    /// The most specific rule that matches a request, or else `[default]`; `None` if the file has no default either.
    pub fn select(&self, target: RequestTarget<'_>) -> Result<Option<&Rule>, Unselectable> {
        if self.rules.is_empty() {
            return Ok(self.default.as_ref());
        }
        let host = normalize_host(target.host);
        if host.is_none() && self.index.depends_on_host() {
            return Err(self.unselectable(Reason::HostInvalid, self.rules.iter().all(|rule| rule.dry_run)));
        }
        let candidates = self.index.candidates(host.as_deref());
        let find = |path: Option<&NormalPath<'_>>| self.find(candidates.clone(), path, target.method);
        if !candidates.clone().any(|rules| rules.depends_on_path) {
            return Ok(find(None));
        }
        let selected = match NormalPath::parse(target.path, EncodedSlash::Refused) {
            Ok(path) => Some(find(Some(&path))),
            Err(AmbiguousPath::EncodedSlash) => {
                let path = NormalPath::parse(target.path, EncodedSlash::Kept).ok();
                path.and_then(|path| encoded_slash::select(&path, |path| find(Some(path))).ok()).map(Some)
            }
            Err(_) => None,
        };
        selected.ok_or_else(|| {
            self.unselectable(Reason::PathAmbiguous, candidates.clone().all(|rules| !rules.has_enforced_rules))
        })
    }

    /// The rule for a path in normal form, or else `[default]`. `candidates` are the rules for the host.
    fn find<'c>(
        &self,
        mut candidates: impl Iterator<Item = &'c HostRules>,
        path: Option<&NormalPath<'_>>,
        method: &str,
    ) -> Option<&Rule> {
        let number = candidates.find_map(|rules| rules.find(&self.rules, path, method));
        number.and_then(|number| self.rules.get(number)).or(self.default.as_ref())
    }

    fn unselectable(&self, reason: Reason, rules_are_dry_runs: bool) -> Unselectable {
        // Without `[default]`, the default of the sidecar could apply, which is not a dry run.
        let dry_run = rules_are_dry_runs && self.default.as_ref().is_some_and(|default| default.dry_run);
        Unselectable { reason, dry_run }
    }
}

#[cfg(test)]
mod tests;
