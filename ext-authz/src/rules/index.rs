//! Finds the most specific rule without comparing the request with every rule: rules are grouped by host, and in each group
//! by the segments of their paths.

use super::{Rule, host::HostPattern, path::NormalPath, pattern::PathPattern};
use std::{collections::HashMap, str::Split};

/// The rules by host. A number stands for the rule at this place in the file.
#[derive(Debug, Default)]
pub struct Index {
    exact: HashMap<Box<str>, HostRules>,
    /// The rules for wildcards, by the end of the host, such as `.example.com`.
    wildcard: HashMap<Box<str>, HostRules>,
    any: HostRules,
}

#[derive(Debug, Default)]
pub struct HostRules {
    without_path: Vec<usize>,
    /// The rules with a path, as a tree of segments.
    root: Node,
    pub depends_on_path: bool,
    pub has_enforced_rules: bool,
}

/// The children of a node by segment, and the rules whose pattern ends here. In each list, rules that name methods come first.
#[derive(Debug, Default)]
struct Node {
    fixed: HashMap<Box<str>, Self>,
    variable: Option<Box<Self>>,
    exact: Vec<usize>,
    template: Vec<usize>,
    prefix: Vec<usize>,
}

impl Index {
    pub fn new(rules: &[Rule]) -> Self {
        let mut index = Self::default();
        let mut by_specificity: Vec<_> = rules.iter().enumerate().collect();
        by_specificity.sort_by_key(|(_, rule)| std::cmp::Reverse(rule.specificity()));
        for (number, rule) in by_specificity {
            let group = match &rule.host {
                HostPattern::Exact(host) => index.exact.entry(host.clone()).or_default(),
                HostPattern::Wildcard(suffix) => index.wildcard.entry(suffix.clone()).or_default(),
                HostPattern::Any => &mut index.any,
            };
            group.insert(number, rule);
        }
        index
    }

    pub fn depends_on_host(&self) -> bool {
        !self.exact.is_empty() || !self.wildcard.is_empty()
    }

    /// The groups of rules that can match a host, the most specific host pattern first.
    pub fn candidates<'a>(&'a self, host: Option<&'a str>) -> impl Iterator<Item = &'a HostRules> + Clone {
        let exact = host.and_then(|host| self.exact.get(host));
        let suffixes = host
            .filter(|_| !self.wildcard.is_empty())
            .into_iter()
            .flat_map(|host| host.match_indices('.').filter_map(|(dot, _)| self.wildcard.get(host.get(dot..)?)));
        exact.into_iter().chain(suffixes).chain(std::iter::once(&self.any))
    }
}

impl HostRules {
    fn insert(&mut self, number: usize, rule: &Rule) {
        self.has_enforced_rules |= !rule.dry_run;
        self.depends_on_path |= rule.path != PathPattern::Any;
        match &rule.path {
            PathPattern::Any => self.without_path.push(number),
            PathPattern::Exact(segments) => self.root.descend(segments).exact.push(number),
            PathPattern::Prefix(segments) => self.root.descend(segments).prefix.push(number),
            PathPattern::Template(segments) => {
                let node = segments.iter().fold(&mut self.root, |node, segment| match segment {
                    Some(fixed) => node.fixed.entry(fixed.clone()).or_default(),
                    None => node.variable.get_or_insert_default(),
                });
                node.template.push(number);
            }
        }
    }

    /// The most specific rule that matches a path and a method.
    pub fn find(&self, rules: &[Rule], path: Option<&NormalPath<'_>>, method: &str) -> Option<usize> {
        // The first rule of a list that applies to the method.
        let first = |numbers: &[usize]| {
            numbers.iter().copied().find(|number| rules.get(*number).is_some_and(|rule| rule.methods.matches(method)))
        };
        let with_path = || {
            let path = path.filter(|_| self.depends_on_path)?;
            let (node, prefix) = self.root.follow(path.segments(), &first);
            let exact = node.and_then(|node| first(&node.exact));
            let template = || self.root.find_template(path.segments(), 0, &first).map(|(_, number)| number);
            exact.or_else(template).or(prefix)
        };
        with_path().or_else(|| first(&self.without_path))
    }
}

impl Node {
    fn descend(&mut self, segments: &[Box<str>]) -> &mut Self {
        segments.iter().fold(self, |node, segment| node.fixed.entry(segment.clone()).or_default())
    }

    /// Follows fixed segments. Returns the node at the end of the path, if there is one, and the rule with the longest prefix.
    fn follow(
        &self,
        segments: Split<'_, char>,
        first: &impl Fn(&[usize]) -> Option<usize>,
    ) -> (Option<&Self>, Option<usize>) {
        let mut node = self;
        let mut prefix = first(&self.prefix);
        for segment in segments {
            let Some(next) = node.fixed.get(segment) else { return (None, prefix) };
            node = next;
            prefix = first(&node.prefix).or(prefix);
        }
        (Some(node), prefix)
    }

    /// Finds the matching template with the most fixed segments. Returns the number of fixed segments, and the rule. It visits at
    /// most as many nodes as all templates have segments.
    fn find_template(
        &self,
        mut segments: Split<'_, char>,
        fixed_segments: usize,
        first: &impl Fn(&[usize]) -> Option<usize>,
    ) -> Option<(usize, usize)> {
        let Some(segment) = segments.next() else { return Some((fixed_segments, first(&self.template)?)) };
        let fixed =
            self.fixed.get(segment).and_then(|node| node.find_template(segments.clone(), fixed_segments + 1, first));
        let variable = self.variable.as_ref().and_then(|node| node.find_template(segments, fixed_segments, first));
        fixed.into_iter().chain(variable).max_by_key(|(fixed_segments, _)| *fixed_segments)
    }
}
