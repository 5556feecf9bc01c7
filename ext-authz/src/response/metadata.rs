//! The dynamic metadata of a check, in Envoy's namespace `envoy.filters.http.ext_authz`. Envoy's access logs and RBAC
//! filter can read the dynamic metadata.

use crate::decide::{Decision, Denial, UnmetRequirement};
use countersign_identity::{Permission, RoleName, ServiceId};
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value, value::Kind};

/// Builds the metadata of a decision. The metadata always contains the requirement that the agent does not meet,
/// because the client does not see the metadata.
pub fn build(service: Option<ServiceId>, decision: &Decision) -> Struct {
    let (agent, roles, reason) = match decision {
        Decision::Verified(identity) => (Some(identity.agent), identity.roles.as_slice(), "verified"),
        Decision::Anonymous => (None, [].as_slice(), "anonymous"),
        Decision::Denied(Denial { refusal, agent, unmet_requirement: _ }) => {
            (*agent, [].as_slice(), refusal.reason.as_str())
        }
    };
    let verdict = if matches!(decision, Decision::Denied(_)) { "deny" } else { "allow" };
    let fields = [
        ("agent_id", string_value(agent.map(|agent| agent.to_string()).unwrap_or_default())),
        ("service", string_value(service.map(|service| service.to_string()).unwrap_or_default())),
        ("roles", list_value(roles.iter().map(RoleName::as_str))),
        ("decision", string_value(verdict)),
        ("reason", string_value(reason)),
    ];
    let unmet_requirement = match decision {
        Decision::Denied(Denial { unmet_requirement: Some(unmet_requirement), .. }) => {
            Vec::from(unmet_fields(unmet_requirement))
        }
        _ => Vec::new(),
    };
    to_struct([("countersign", struct_value(fields.into_iter().chain(unmet_requirement)))])
}

fn unmet_fields(unmet_requirement: &UnmetRequirement) -> [(&'static str, Value); 2] {
    let (name, required, actual) = match unmet_requirement {
        UnmetRequirement::Roles { required, actual } => (
            "roles",
            list_value(required.iter().map(RoleName::as_str)),
            list_value(actual.iter().map(RoleName::as_str)),
        ),
        UnmetRequirement::Permissions { required, actual } => (
            "permissions",
            list_value(required.iter().map(Permission::as_str)),
            list_value(actual.iter().map(Permission::as_str)),
        ),
        UnmetRequirement::TrustScore { required, actual } => {
            ("trust_score", number_value(required.points()), number_value(actual.points()))
        }
    };
    [("required", struct_value([(name, required)])), ("actual", struct_value([(name, actual)]))]
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
    use countersign_identity::{AgentId, Reason, TrustScore};

    const SERVICE_ID: ServiceId = ServiceId::from_bits(1);

    fn countersign_fields(decision: &Decision) -> Struct {
        match build(Some(SERVICE_ID), decision).fields["countersign"].kind.clone() {
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
        assert!(!metadata.fields.contains_key("required") && !metadata.fields.contains_key("actual"));
    }

    #[test]
    fn metadata_contains_the_unmet_requirement() {
        let roles = |names: &[&str]| names.iter().map(|name| RoleName::try_from(*name).unwrap()).collect();
        let unmet_requirement =
            UnmetRequirement::Roles { required: roles(&["reader", "writer"]), actual: roles(&["reader"]) };
        let metadata = countersign_fields(&denial(Reason::RoleMissing, Some(unmet_requirement)));
        assert_eq!(
            metadata.fields["required"],
            struct_value([("roles", list_value(["reader", "writer"].into_iter()))])
        );
        assert_eq!(metadata.fields["actual"], struct_value([("roles", list_value(["reader"].into_iter()))]));
        let required = TrustScore::from_points(62.5).unwrap();
        let unmet_requirement = UnmetRequirement::TrustScore { required, actual: TrustScore::INITIAL };
        let metadata = countersign_fields(&denial(Reason::TrustTooLow, Some(unmet_requirement)));
        assert_eq!(metadata.fields["required"], struct_value([("trust_score", number_value(62.5))]));
        assert_eq!(metadata.fields["actual"], struct_value([("trust_score", number_value(50.0))]));
    }
}
