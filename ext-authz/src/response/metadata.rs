//! Dynamic metadata for access logs and Envoy's RBAC filter, under `envoy.filters.http.ext_authz`.

use crate::decide::{Decision, Denial, UnmetRequirement};
use countersign_identity::{Permission, RoleName, ServiceId};
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value, value::Kind};

/// The metadata of a decision. It always contains the requirement that is not met: the client does not see it.
pub fn metadata(service: Option<ServiceId>, decision: &Decision) -> Struct {
    let (agent, roles, reason) = match decision {
        Decision::Verified(identity) => (Some(identity.agent), identity.roles.as_slice(), "verified"),
        Decision::Anonymous => (None, [].as_slice(), "anonymous"),
        Decision::Denied(Denial { refusal, agent, unmet: _ }) => (*agent, [].as_slice(), refusal.reason.as_str()),
    };
    let verdict = if matches!(decision, Decision::Denied(_)) { "deny" } else { "allow" };
    let fields = [
        ("agent_id", string(agent.map(|agent| agent.to_string()).unwrap_or_default())),
        ("service", string(service.map(|service| service.to_string()).unwrap_or_default())),
        ("roles", list(roles.iter().map(RoleName::as_str))),
        ("decision", string(verdict)),
        ("reason", string(reason)),
    ];
    let unmet = match decision {
        Decision::Denied(Denial { unmet: Some(unmet), .. }) => Vec::from(unmet_fields(unmet)),
        _ => Vec::new(),
    };
    structure([("countersign", nested(fields.into_iter().chain(unmet)))])
}

fn unmet_fields(unmet: &UnmetRequirement) -> [(&'static str, Value); 2] {
    let (name, required, actual) = match unmet {
        UnmetRequirement::Roles { required, actual } => {
            ("roles", list(required.iter().map(RoleName::as_str)), list(actual.iter().map(RoleName::as_str)))
        }
        UnmetRequirement::Permissions { required, actual } => {
            ("permissions", list(required.iter().map(Permission::as_str)), list(actual.iter().map(Permission::as_str)))
        }
        UnmetRequirement::TrustScore { required, actual } => {
            ("trust_score", number(required.points()), number(actual.points()))
        }
    };
    [("required", nested([(name, required)])), ("actual", nested([(name, actual)]))]
}

fn structure<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Struct {
    Struct { fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
}

fn nested<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    Value { kind: Some(Kind::StructValue(structure(fields))) }
}

fn list<'a>(items: impl Iterator<Item = &'a str>) -> Value {
    Value { kind: Some(Kind::ListValue(ListValue { values: items.map(string).collect() })) }
}

fn string(text: impl Into<String>) -> Value {
    Value { kind: Some(Kind::StringValue(text.into())) }
}

fn number(number: f64) -> Value {
    Value { kind: Some(Kind::NumberValue(number)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_identity::{AgentId, Reason, TrustScore};

    const SERVICE: ServiceId = ServiceId::from_bits(1);

    fn countersign_fields(decision: &Decision) -> Struct {
        match metadata(Some(SERVICE), decision).fields["countersign"].kind.clone() {
            Some(Kind::StructValue(fields)) => fields,
            other => panic!("{other:?}"),
        }
    }

    fn denial(reason: Reason, unmet: Option<UnmetRequirement>) -> Decision {
        Decision::Denied(Denial { refusal: reason.into(), agent: Some(AgentId::from_bits(2)), unmet })
    }

    #[test]
    fn names_agent_service_decision_and_reason() {
        let inner = countersign_fields(&denial(Reason::TokenRevoked, None));
        assert_eq!(inner.fields["agent_id"], string(AgentId::from_bits(2).to_string()));
        assert_eq!(inner.fields["decision"], string("deny"));
        assert_eq!(inner.fields["reason"], string("token_revoked"));
        assert_eq!(inner.fields["service"], string(SERVICE.to_string()));
        assert!(!inner.fields.contains_key("required") && !inner.fields.contains_key("actual"));
    }

    #[test]
    fn states_the_unmet_requirement() {
        let roles = |names: &[&str]| names.iter().map(|name| RoleName::try_from(*name).unwrap()).collect();
        let unmet = UnmetRequirement::Roles { required: roles(&["reader", "writer"]), actual: roles(&["reader"]) };
        let inner = countersign_fields(&denial(Reason::RoleMissing, Some(unmet)));
        assert_eq!(inner.fields["required"], nested([("roles", list(["reader", "writer"].into_iter()))]));
        assert_eq!(inner.fields["actual"], nested([("roles", list(["reader"].into_iter()))]));
        let required = TrustScore::from_points(62.5).unwrap();
        let unmet = UnmetRequirement::TrustScore { required, actual: TrustScore::INITIAL };
        let inner = countersign_fields(&denial(Reason::TrustTooLow, Some(unmet)));
        assert_eq!(inner.fields["required"], nested([("trust_score", number(62.5))]));
        assert_eq!(inner.fields["actual"], nested([("trust_score", number(50.0))]));
    }
}
