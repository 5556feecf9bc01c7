//! Explains a check as a list of questions and answers, up to the question that refuses the request.
//!
//! Invariant: [`Authorizer::decide`] decides, as for a check, and this module only describes its decision. The order of the
//! questions is fixed, so the reason of a denial tells which questions were answered before it.

use super::{Authorizer, CheckOutcome, mcp, request::CheckRequest, token_header};
use crate::{
    decide::{CachedToken, Decision, PresentedToken, verify_signature},
    response::to_rfc3339,
    rules::DEFAULT_NAME,
    view::View,
};
use countersign_identity::{AgentStatus, Claims, Reason, Timestamp, VerifiedIdentity};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};

/// The decision about a request, and how the sidecar came to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `allow` or `deny`.
    pub decision: String,
    /// The reason, as in the dynamic metadata of a check.
    pub reason: String,
    /// Why the request would be denied without the dry run.
    pub dry_run_reason: Option<String>,
    pub rule: Option<String>,
    pub service: Option<String>,
    pub revision: Option<i64>,
    /// The time since the ping that confirmed the view.
    pub view_age_milliseconds: Option<u64>,
    pub questions: Vec<ExplainedQuestion>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedQuestion {
    pub question: String,
    /// `ok`, `refused` or `not asked`.
    pub answer: String,
    /// What the answer depends on.
    pub detail: String,
}

/// The questions, in the order in which they are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Question {
    Rule,
    View,
    Token,
    Form,
    Key,
    Signature,
    Claims,
    Time,
    Audience,
    /// Whether `rev` is below the floor of the view. The view may lack changes up to the floor, so it cannot judge older tokens.
    Floor,
    Status,
    /// Whether `rev` is below the cutoff of the agent, which revokes all older tokens.
    Cutoff,
    Revocation,
    Roles,
    Permissions,
    Trust,
    /// Whether the rule allows the MCP message. Asked last, so that nobody without a token finds out which tools it names.
    Mcp,
}

impl Question {
    const ALL: [(Self, &str); 17] = [
        (Self::Rule, "rule"),
        (Self::View, "view"),
        (Self::Token, "token"),
        (Self::Form, "form"),
        (Self::Key, "key"),
        (Self::Signature, "signature"),
        (Self::Claims, "claims"),
        (Self::Time, "time"),
        (Self::Audience, "audience"),
        (Self::Floor, "floor"),
        (Self::Status, "status"),
        (Self::Cutoff, "cutoff"),
        (Self::Revocation, "jti and sid"),
        (Self::Roles, "roles"),
        (Self::Permissions, "permissions"),
        (Self::Trust, "trust"),
        (Self::Mcp, "mcp"),
    ];

    /// The question at which a request is refused for a reason. `None` for internal errors, and for reasons that only the API has.
    const fn of(reason: Reason, is_cut_off: bool) -> Option<Self> {
        Some(match reason {
            Reason::RuleInvalid
            | Reason::PathAmbiguous
            | Reason::HostInvalid
            | Reason::McpRequestInvalid
            | Reason::RequestInvalid => Self::Rule,
            Reason::ServiceUnknown
            | Reason::SyncKeyRemoved
            | Reason::SyncKeyRefused
            | Reason::ViewMissing
            | Reason::ViewStale => Self::View,
            Reason::TokenMissing | Reason::TokenRepeated => Self::Token,
            Reason::TokenMalformed => Self::Form,
            Reason::TokenKeyUnknown => Self::Key,
            Reason::TokenSignatureInvalid => Self::Signature,
            Reason::TokenClaimsInvalid => Self::Claims,
            Reason::TokenNotYetValid | Reason::TokenExpired => Self::Time,
            Reason::TokenAudienceMismatch | Reason::TokenUnbound => Self::Audience,
            Reason::TokenSuperseded => Self::Floor,
            Reason::AgentSuspended | Reason::AgentRevoked => Self::Status,
            Reason::TokenRevoked if is_cut_off => Self::Cutoff,
            Reason::TokenRevoked => Self::Revocation,
            Reason::NoRole | Reason::RoleMissing => Self::Roles,
            Reason::PermissionMissing | Reason::TokenScopeInsufficient => Self::Permissions,
            Reason::TrustTooLow => Self::Trust,
            Reason::McpNotAllowed => Self::Mcp,
            _ => return None,
        })
    }
}

impl Authorizer {
    /// Explains the decision about a request. `None` if the request has no HTTP attributes.
    pub(super) fn explain(&self, request: &CheckRequest) -> Option<Explanation> {
        let since_boot = self.clock.since_boot();
        let request = request.http()?;
        let token_header = token_header::extract(request.http.all_headers());
        let rules = self.rules.load();
        let outcome = self.decide(request, &token_header, &rules, since_boot);
        let token = match (token_header.token, &outcome.view) {
            (PresentedToken::Unverified(text), Some(view)) => verify_signature(view, text, &self.cache).ok(),
            _ => None,
        };
        let wall_clock = || self.clock.now();
        let now = outcome.view.as_ref().map_or_else(wall_clock, |view| view.now(since_boot, wall_clock));
        let is_about_mcp = outcome.rule.is_some_and(|rule| rule.mcp.is_some());
        let facts = Facts {
            has_extensions: !request.extensions.is_empty(),
            mcp: is_about_mcp.then(|| mcp::describe(request.http)).flatten(),
            token_header: token_header.name,
            token,
            now,
            since_boot,
            outcome,
        };
        Some(facts.explain())
    }
}

/// What is known about a request and its decision: the answers depend on it.
struct Facts<'a> {
    outcome: CheckOutcome<'a>,
    has_extensions: bool,
    /// The MCP request, if the rule is about MCP and the request is valid.
    mcp: Option<String>,
    token_header: Option<&'a str>,
    /// The token, if its signature is valid.
    token: Option<Arc<CachedToken>>,
    now: Timestamp,
    since_boot: Duration,
}

impl Facts<'_> {
    fn explain(&self) -> Explanation {
        let (decision, reason, refused) = match &self.outcome.decision {
            Decision::Verified(..) => ("allow", "verified", None),
            Decision::Anonymous => ("allow", "anonymous", None),
            Decision::DryRun(denial) => ("allow", "dry_run", Some(denial.refusal.reason)),
            Decision::Denied(denial) => ("deny", denial.refusal.reason.as_str(), Some(denial.refusal.reason)),
        };
        let dry_run_reason = refused.filter(|_| decision == "allow").map(|reason| reason.as_str().to_owned());
        let view = self.outcome.view.as_ref();
        let age = view.and_then(|view| view.age(self.since_boot));
        Explanation {
            decision: decision.to_owned(),
            reason: reason.to_owned(),
            dry_run_reason,
            rule: self.outcome.rule.map(|rule| rule.name.to_string()),
            service: view.map(|view| view.service().to_string()),
            revision: view.map(|view| view.revision().number()),
            view_age_milliseconds: age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
            questions: self.answers(refused),
        }
    }

    fn answers(&self, refused: Option<Reason>) -> Vec<ExplainedQuestion> {
        let last_asked = match refused {
            Some(reason) => Question::of(reason, self.is_cut_off()),
            None if self.mcp.is_some() => Some(Question::Mcp),
            None => Some(Question::Trust),
        };
        let is_anonymous = self.token_header.is_none();
        let is_about_token = |question| (Question::Form..=Question::Trust).contains(&question);
        let identity = self.identity();
        let answer = |(question, name): (Question, &str)| {
            let (answer, detail) = match (last_asked, refused) {
                (Some(last), Some(reason)) if question == last => {
                    let detail = self.detail(question, identity.as_ref());
                    let separator = if detail.is_empty() { "" } else { ": " };
                    ("refused", format!("{}{separator}{detail}", reason.message()))
                }
                (Some(last), _) if question <= last && !(is_anonymous && is_about_token(question)) => {
                    ("ok", self.detail(question, identity.as_ref()))
                }
                _ => ("not asked", String::new()),
            };
            ExplainedQuestion { question: name.to_owned(), answer: answer.to_owned(), detail }
        };
        Question::ALL.into_iter().map(answer).collect()
    }

    fn claims(&self) -> Option<(&View, &Claims)> {
        Some((self.outcome.view.as_deref()?, self.token.as_ref()?.token.claims()))
    }

    /// Whether the cutoff of the agent revokes the token. If not, a revoked token was revoked itself, or with its session.
    fn is_cut_off(&self) -> bool {
        self.claims().is_some_and(|(view, claims)| {
            let status = view.evaluation_context(claims).agent.and_then(|changes| changes.status.as_ref());
            status.is_some_and(|change| claims.rev < change.value.cutoff)
        })
    }

    fn identity(&self) -> Option<VerifiedIdentity> {
        let (view, claims) = self.claims()?;
        VerifiedIdentity::evaluate(claims, &view.evaluation_context(claims), self.now).ok()
    }

    /// The facts on which the answer to a question depends; empty if they are not known.
    fn detail(&self, question: Question, identity: Option<&VerifiedIdentity>) -> String {
        match question {
            Question::Rule => self.rule_detail(),
            Question::View => match (&self.outcome.view, self.outcome.service) {
                (Some(view), _) => self.view_detail(view),
                (None, Some(service)) => format!("service {service}"),
                (None, None) => "the default service, which is that of the first API key".to_owned(),
            },
            Question::Token => match (self.token_header, &self.outcome.decision) {
                (Some(name), _) => format!("in the header `{name}`"),
                (None, Decision::Anonymous) => "none: the rule allows anonymous requests".to_owned(),
                (None, _) => String::new(),
            },
            Question::Key => {
                self.token.as_ref().map_or_else(String::new, |token| token.token.kid().as_str().to_owned())
            }
            Question::Form | Question::Signature | Question::Mcp => String::new(),
            Question::Roles | Question::Permissions | Question::Trust => {
                identity.map_or_else(String::new, |identity| self.requirement_detail(question, identity))
            }
            _ => self.claims().map_or_else(String::new, |(view, claims)| self.claim_detail(question, view, claims)),
        }
    }

    fn rule_detail(&self) -> String {
        let error = self.outcome.error.as_deref();
        let source = match self.outcome.rule {
            Some(rule) if *rule.name == *DEFAULT_NAME => "[default] of the rules file".to_owned(),
            Some(rule) => format!("`{}`, line {} of the rules file", rule.name, rule.line),
            None if self.has_extensions => "context extensions".to_owned(),
            None => "none: the default of the sidecar applies".to_owned(),
        };
        // Without a policy, an error is about the context extensions. With a policy, an error is about the MCP message.
        let Some(policy) = &self.outcome.policy else { return error.unwrap_or_default().to_owned() };
        let settings = list_settings(policy.settings().into_iter());
        let dry_run = if self.outcome.rule.is_some_and(|rule| rule.dry_run) { "; dry run" } else { "" };
        let mcp = self.mcp.as_deref().or(error).map(|mcp| format!("; MCP: {mcp}")).unwrap_or_default();
        format!("{source}{settings}{dry_run}{mcp}")
    }

    fn view_detail(&self, view: &View) -> String {
        let age = view.age(self.since_boot).map_or_else(
            || "never confirmed".to_owned(),
            |age| format!("confirmed {} ms ago, stale after {} s", age.as_millis(), view.max_age().as_secs()),
        );
        let source = if view.is_restored() { ", from the copy on disk" } else { "" };
        format!("service {}, revision {}, {age}{source}", view.service(), view.revision().number())
    }

    fn claim_detail(&self, question: Question, view: &View, claims: &Claims) -> String {
        let status = view.evaluation_context(claims).agent.and_then(|changes| changes.status.as_ref());
        match question {
            Question::Claims => format!("agent {}, issuer {}", claims.sub, claims.iss.escape_debug()),
            Question::Time => format!(
                "issued {}, expires {}, now {}",
                rfc3339(Timestamp::from_seconds(claims.iat)),
                rfc3339(Timestamp::from_seconds(claims.exp)),
                rfc3339(self.now)
            ),
            Question::Audience => format!("aud {}", claims.aud.as_str().escape_debug()),
            Question::Floor => format!("rev {}, floor {}", claims.rev.number(), view.floor().number()),
            Question::Status => match status {
                Some(change) if change.revision > claims.rev => {
                    let status = match change.value.status {
                        AgentStatus::Active => "active",
                        AgentStatus::Suspended => "suspended",
                        AgentStatus::Revoked => "revoked",
                    };
                    format!("{status} since revision {}", change.revision.number())
                }
                _ => "no change since the token was issued".to_owned(),
            },
            Question::Cutoff => match status {
                Some(change) => format!("rev {}, cutoff {}", claims.rev.number(), change.value.cutoff.number()),
                None => "none".to_owned(),
            },
            _ => format!("{}, {}", claims.jti, claims.sid), // `Revocation`
        }
    }

    fn requirement_detail(&self, question: Question, identity: &VerifiedIdentity) -> String {
        let (actual, names): (_, &[&str]) = match question {
            Question::Roles => (list_names(&identity.roles), &["require_roles", "any_role", "allow_unassigned"]),
            Question::Permissions => (list_names(&identity.permissions), &["require_permissions", "any_permission"]),
            _ => (identity.trust_score.to_string(), &["min_trust_score"]), // `Trust`
        };
        let required = self.outcome.policy.as_ref().map_or_else(Vec::new, |policy| policy.settings());
        let required = required.into_iter().filter(|(name, _)| names.contains(name));
        format!("the agent has {actual}{}", list_settings(required))
    }
}

fn list_names(names: &[impl ToString]) -> String {
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Writes settings of a policy with their values, each after a semicolon.
fn list_settings<'a>(settings: impl Iterator<Item = (&'a str, String)>) -> String {
    settings.map(|(name, value)| format!("; {name} = {value}")).collect::<Vec<_>>().concat()
}

fn rfc3339(time: Timestamp) -> String {
    to_rfc3339(time).unwrap_or_else(|| time.seconds().to_string())
}
