//! The dynamic metadata of a check, which Envoy's access logs and RBAC filter can read in the namespace
//! `envoy.filters.http.ext_authz`.

use crate::decide::{Denial, Qualification, UnmetRequirement, Validity};
use countersign_identity::{AgentId, Permission, RoleName, ServiceId, VerifiedIdentity};
use prost_types::{ListValue, Struct, Value, value::Kind};

/// The field that contains all others.
const NAMESPACE: &str = "countersign";

type Field = (&'static str, Value);

/// The metadata of a request that is allowed without a token.
pub fn of_anonymous(service: Option<ServiceId>, rule: Option<&str>) -> Struct {
    in_namespace(fields(service, None, &[], ["allow", "anonymous"]).into_iter().chain(rule_field(rule)))
}

/// The metadata of a denied request, or of a request that is allowed only because its rule is a dry run. It always contains the
/// requirement that the agent does not meet, because the client does not see the metadata.
pub fn of_denial(service: Option<ServiceId>, rule: Option<&str>, denial: &Denial, is_dry_run: bool) -> Struct {
    let reason = denial.refusal.reason.as_str();
    let verdict = if is_dry_run { ["allow", "dry_run"] } else { ["deny", reason] };
    let dry_run_reason = is_dry_run.then(|| ("dry_run_reason", string_value(reason)));
    let fields = fields(service, denial.agent, &[], verdict).into_iter().chain(rule_field(rule)).chain(dry_run_reason);
    in_namespace(fields.chain(denial.unmet_requirement.iter().flat_map(unmet_fields)))
}

/// The metadata of a request that is allowed with this identity.
pub fn of_identity(service: ServiceId, rule: Option<&str>, identity: &VerifiedIdentity, validity: Validity) -> Struct {
    let fields = fields(Some(service), Some(identity.agent), &identity.roles, ["allow", "verified"]);
    in_namespace(fields.into_iter().chain(rule_field(rule)).chain(validity_fields(validity)))
}

fn fields(
    service: Option<ServiceId>,
    agent: Option<AgentId>,
    roles: &[RoleName],
    [decision, reason]: [&'static str; 2],
) -> [Field; 5] {
    [
        ("agent_id", string_value(agent.map(|agent| agent.to_string()).unwrap_or_default())),
        ("service", string_value(service.map(|service| service.to_string()).unwrap_or_default())),
        ("roles", list_value(roles.iter().map(RoleName::as_str))),
        ("decision", string_value(decision)),
        ("reason", string_value(reason)),
    ]
}

/// The name of the rule of the rules file that decided.
fn rule_field(rule: Option<&str>) -> Option<Field> {
    rule.map(|rule| ("rule", string_value(rule)))
}

fn in_namespace(fields: impl IntoIterator<Item = Field>) -> Struct {
    to_struct([(NAMESPACE, struct_value(fields))])
}

/// The end of the validity in Unix seconds, and the remaining milliseconds, which Envoy's router accepts as the maximum duration of
/// a stream. Both are rounded down, but the milliseconds are at least 1, because 0 would mean no maximum duration.
fn validity_fields(Validity { until, remaining }: Validity) -> [Field; 2] {
    let milliseconds = u32::try_from(remaining.as_millis()).unwrap_or(u32::MAX).max(1);
    #[expect(clippy::cast_precision_loss, reason = "a double represents all seconds of the next 285 million years")]
    let seconds = until.seconds() as f64;
    [("valid_until", number_value(seconds)), ("valid_milliseconds", number_value(milliseconds.into()))]
}

fn unmet_fields(UnmetRequirement { required, actual }: &UnmetRequirement) -> [Field; 2] {
    [("required", required), ("actual", actual)]
        .map(|(name, requirement)| (name, struct_value([qualification_field(requirement)])))
}

fn qualification_field(requirement: &Qualification) -> Field {
    let roles = |names: &[RoleName]| list_value(names.iter().map(RoleName::as_str));
    let permissions = |names: &[Permission]| list_value(names.iter().map(Permission::as_str));
    match requirement {
        Qualification::Roles(names) => ("roles", roles(names)),
        Qualification::AnyRole(names) => ("any_role", roles(names)),
        Qualification::Permissions(names) => ("permissions", permissions(names)),
        Qualification::AnyPermission(names) => ("any_permission", permissions(names)),
        Qualification::TrustScore(score) => ("trust_score", number_value(score.points())),
    }
}

fn to_struct<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Struct {
    Struct { fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
}

fn struct_value<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    Value { kind: Some(Kind::StructValue(to_struct(fields))) }
}

fn list_value<'a>(items: impl Iterator<Item = &'a str>) -> Value {
    Value { kind: Some(Kind::ListValue(ListValue { values: items.map(string_value).collect() })) }
}

fn string_value(text: impl Into<String>) -> Value {
    Value { kind: Some(Kind::StringValue(text.into())) }
}

fn number_value(number: f64) -> Value {
    Value { kind: Some(Kind::NumberValue(number)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        decide::{Decision, EvaluatedIdentity},
        response::{DecidedRoute, HeaderNames, RequestHeaders, ResponseBuilder},
    };
    use countersign_identity::{Reason, Timestamp, TrustScore};
    use std::{sync::Arc, time::Duration};

    const SERVICE_ID: ServiceId = ServiceId::from_bits(1);

    fn countersign_fields(decision: &Decision) -> Struct {
        let builder = ResponseBuilder { names: HeaderNames::new("x-agent-"), explain_denials: false };
        let route = DecidedRoute { service: Some(SERVICE_ID), rule: Some(&"admin".into()), ..DecidedRoute::default() };
        let response = builder.build(route, decision, RequestHeaders::default());
        match response.dynamic_metadata.unwrap().fields["countersign"].kind.clone() {
            Some(Kind::StructValue(fields)) => fields,
            other => panic!("{other:?}"),
        }
    }

    fn denial(reason: Reason, unmet_requirement: Option<UnmetRequirement>) -> Decision {
        Decision::Denied(Denial { refusal: reason.into(), agent: Some(AgentId::from_bits(2)), unmet_requirement })
    }

    #[test]
    fn metadata_contains_agent_service_decision_and_reason() {
        let metadata = countersign_fields(&denial(Reason::TokenRevoked, None));
        assert_eq!(metadata.fields["agent_id"], string_value(AgentId::from_bits(2).to_string()));
        assert_eq!(metadata.fields["decision"], string_value("deny"));
        assert_eq!(metadata.fields["reason"], string_value("token_revoked"));
        assert_eq!(metadata.fields["service"], string_value(SERVICE_ID.to_string()));
        assert_eq!(metadata.fields["rule"], string_value("admin"));
        assert!(!metadata.fields.contains_key("dry_run_reason"));
        assert!(!metadata.fields.contains_key("required") && !metadata.fields.contains_key("actual"));
    }

    #[test]
    fn metadata_of_an_allowed_agent_contains_the_end_and_the_remaining_milliseconds() {
        let fields = |micros: i64, remaining| {
            let validity =
                Validity { until: Timestamp::from_micros(micros), remaining: Duration::from_micros(remaining) };
            let identity = Arc::new(EvaluatedIdentity::fixture(Vec::new()));
            let metadata = countersign_fields(&Decision::Verified(identity, validity));
            assert_eq!(metadata.fields["rule"], string_value("admin"));
            ["valid_until", "valid_milliseconds"].map(|name| metadata.fields[name].clone())
        };
        assert_eq!(fields(1_700_000_000_999_999, 5_000_999), [1_700_000_000.0, 5000.0].map(number_value));
        assert_eq!(fields(5_000_000_000_000_000, 1), [5_000_000_000.0, 1.0].map(number_value), "never 0");
        let longest = fields(0, u64::MAX)[1].clone();
        assert_eq!(longest, number_value(4_294_967_295.0));
        for decision in [Decision::Anonymous, denial(Reason::NoRole, None)] {
            let metadata = countersign_fields(&decision);
            assert!(
                !metadata.fields.contains_key("valid_until") && !metadata.fields.contains_key("valid_milliseconds")
            );
        }
    }

    #[test]
    fn metadata_of_a_dry_run_says_allow_and_contains_the_reason() {
        let metadata = countersign_fields(&denial(Reason::TrustTooLow, None).into_dry_run());
        for (name, value) in [("decision", "allow"), ("reason", "dry_run"), ("dry_run_reason", "trust_too_low")] {
            assert_eq!(metadata.fields[name], string_value(value));
        }
    }

    #[test]
    fn metadata_contains_the_unmet_requirement() {
        let roles = |names: &[&str]| {
            Qualification::Roles(names.iter().map(|name| RoleName::try_from(*name).unwrap()).collect())
        };
        let unmet_requirement = UnmetRequirement { required: roles(&["reader", "writer"]), actual: roles(&["reader"]) };
        let metadata = countersign_fields(&denial(Reason::RoleMissing, Some(unmet_requirement)));
        assert_eq!(
            metadata.fields["required"],
            struct_value([("roles", list_value(["reader", "writer"].into_iter()))])
        );
        assert_eq!(metadata.fields["actual"], struct_value([("roles", list_value(["reader"].into_iter()))]));
        let [required, actual] =
            [62.5, 50.0].map(|points| Qualification::TrustScore(TrustScore::from_points(points).unwrap()));
        let unmet_requirement = UnmetRequirement { required, actual };
        let metadata = countersign_fields(&denial(Reason::TrustTooLow, Some(unmet_requirement)));
        assert_eq!(metadata.fields["required"], struct_value([("trust_score", number_value(62.5))]));
        assert_eq!(metadata.fields["actual"], struct_value([("trust_score", number_value(50.0))]));
    }
}
