//! Explains which rule applies to a request.

use super::{
    AmbiguousPath, EncodedSlash, HostPattern, McpMessage, McpRequest, Methods, NormalPath, PathPattern, RequestTarget,
    Rule, RuleSet, encoded_slash, normalize_host,
};
use crate::policy::Policy;
use countersign_identity::Reason;
use std::fmt;

/// Which rule applies to a request, and why the other matching rules do not apply.
#[derive(Debug)]
pub struct Explanation<'a> {
    host: Option<String>,
    path: Result<String, AmbiguousPath>,
    method: &'a str,
    mcp: Option<McpMessage<'a>>,
    selected: Result<Option<&'a Rule>, super::Unselectable>,
    /// Why no rule can be selected, if that is because of an encoded slash.
    encoded_slash: Option<encoded_slash::Refusal<'a>>,
    /// The other rules that match the request, the most specific one first.
    others: Vec<&'a Rule>,
}

impl RuleSet {
    /// Explains which rule applies to a request, and what it requires. `mcp` is the message that the request contains.
    pub fn explain<'a>(&'a self, target: RequestTarget<'a>, mcp: Option<McpMessage<'a>>) -> Explanation<'a> {
        let (host, path) = (normalize_host(target.host), NormalPath::parse(target.path, EncodedSlash::Kept));
        let selected = self.select(target);
        let is_ambiguous = matches!(selected, Err(unselectable) if unselectable.reason == Reason::PathAmbiguous);
        let encoded_slash = path.as_ref().ok().filter(|_| is_ambiguous).and_then(|path| {
            let candidates = self.index.candidates(host.as_deref());
            encoded_slash::select(path, |path| self.find(candidates.clone(), Some(path), target.method)).err()
        });
        let is_selected = |rule: &Rule| matches!(selected, Ok(Some(selected)) if std::ptr::eq(selected, rule));
        let mut others: Vec<_> = self.matching(target).into_iter().filter(|rule| !is_selected(rule)).collect();
        if selected.is_err() {
            others.clear();
        }
        let path = path.map(|path| path.as_str().to_owned());
        let host = host.map(std::borrow::Cow::into_owned);
        Explanation { host, path, method: target.method, mcp, selected, encoded_slash, others }
    }

    /// All rules that match a request, the most specific one first. Tests compare the first one with [`RuleSet::select`].
    pub(super) fn matching(&self, target: RequestTarget<'_>) -> Vec<&Rule> {
        let (host, path) = (normalize_host(target.host), NormalPath::parse(target.path, EncodedSlash::Kept).ok());
        let matches = |rule: &&Rule| rule.matches(host.as_deref(), path.as_ref(), target.method);
        let mut matching: Vec<_> = self.rules.iter().filter(matches).collect();
        matching.sort_by_key(|rule| std::cmp::Reverse(rule.specificity()));
        matching
    }
}

impl Explanation<'_> {
    /// Whether the request is refused because its host or path is ambiguous, or because of its MCP message.
    pub fn is_refused(&self) -> bool {
        match self.selected {
            Err(unselectable) => !unselectable.dry_run,
            Ok(Some(rule)) => !rule.dry_run && !matches!(self.policy(rule), Ok(Some(_))),
            Ok(None) => false,
        }
    }

    /// What the selected rule requires; `None` if the rule lacks an entry for the MCP message. The error says what is wrong with
    /// the message.
    fn policy<'r>(&self, rule: &'r Rule) -> Result<Option<&'r Policy>, &'static str> {
        let Some(entries) = &rule.mcp else { return Ok(Some(&rule.policy)) };
        Ok(entries.policy(McpRequest::new(self.method, self.mcp)?).map(AsRef::as_ref))
    }

    fn write_selected(&self, f: &mut fmt::Formatter<'_>, rule: &Rule) -> fmt::Result {
        let dry_run = if rule.dry_run { ", dry run" } else { "" };
        let mcp = if rule.mcp.is_some() { ", mcp" } else { "" };
        writeln!(f, "rule     {} (line {}{dry_run}): {}{mcp}", rule.name, rule.line, Conditions(rule))?;
        let verdict = if rule.dry_run { "allowed" } else { "refused" };
        match self.policy(rule) {
            Ok(Some(policy)) => {
                policy.settings().into_iter().try_for_each(|(key, value)| writeln!(f, "requires {key} = {value}"))
            }
            Ok(None) => {
                writeln!(f, "mcp      the request is {verdict} with the reason {}", Reason::McpNotAllowed.as_str())
            }
            Err(problem) => {
                let reason = Reason::McpRequestInvalid.as_str();
                writeln!(f, "mcp      the request is {verdict} with the reason {reason}: {problem}")
            }
        }
    }
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "method   {}", self.method.escape_debug())?;
        writeln!(f, "host     {}", self.host.as_deref().unwrap_or("is not a host name"))?;
        match &self.path {
            Ok(path) => writeln!(f, "path     {}", path.escape_debug())?,
            Err(error) => writeln!(f, "path     has no normal form: {error}")?,
        }
        if let Some(McpMessage::Call { method, name }) = self.mcp {
            let name = name.map(|name| format!(" {}", name.escape_debug())).unwrap_or_default();
            writeln!(f, "message  {}{name}", method.escape_debug())?;
        }
        match self.selected {
            Ok(None) => {
                writeln!(f, "rule     none: the default service and the default requirements of the sidecar apply")
            }
            Ok(Some(rule)) => self.write_selected(f, rule),
            Err(unselectable) => {
                let (verdict, reason) = (if unselectable.dry_run { "allowed" } else { "refused" }, unselectable.reason);
                write!(f, "rule     cannot be selected: the request is {verdict} with the reason {}", reason.as_str())?;
                self.encoded_slash.as_ref().map_or(Ok(()), |refusal| write!(f, ": {refusal}"))?;
                writeln!(f)
            }
        }?;
        for rule in &self.others {
            let why = match self.selected {
                Ok(Some(selected)) => rule.specificity().why_it_loses(selected.specificity()),
                _ => "",
            };
            writeln!(f, "         {} (line {}) also matches, but {why}: {}", rule.name, rule.line, Conditions(rule))?;
        }
        Ok(())
    }
}

struct Conditions<'a>(&'a Rule);

impl fmt::Display for Conditions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rule { host, path, encoded_slash, methods, .. } = self.0;
        match host {
            HostPattern::Any => f.write_str("any host")?,
            HostPattern::Wildcard(suffix) => write!(f, "host *{suffix}")?,
            HostPattern::Exact(host) => write!(f, "host {host}")?,
        }
        match path {
            PathPattern::Any => f.write_str(", any path"),
            PathPattern::Prefix(segments) => write!(f, ", path_prefix /{}", segments.join("/").escape_debug()),
            PathPattern::Exact(segments) => write!(f, ", path /{}", segments.join("/").escape_debug()),
            PathPattern::Template(segments) => {
                f.write_str(", path_template ")?;
                segments.iter().try_for_each(|it| write!(f, "/{}", it.as_deref().unwrap_or("{}").escape_debug()))
            }
        }?;
        if *encoded_slash == EncodedSlash::Kept {
            f.write_str(", allow_encoded_slash")?;
        }
        if *methods == Methods::default() { f.write_str(", any method") } else { write!(f, ", {methods}") }
    }
}
