use super::*;

const SHOP: &str = "
apiVersion: countersign/v1
services:
  - name: Shop
    roles:
      - { name: reader, permissions: [read] }
    assignments:
      - { role: reader, agent: agent_01jyd3rq8yfd19yr0w5mz4ypkb }
      - { role: reader, match: { name: 'build-*' }, expiresAt: 2027-01-31T12:00:00Z }
    webhooks:
      - url: https://example.com/hook
    keys:
      - { name: sidecar, scope: sync, secretFile: sync.keys }
";

fn error(text: &str) -> String {
    parse("shop.yaml", text).unwrap_err().to_string()
}

#[test]
fn documents_of_a_file_are_parsed_with_their_defaults() {
    let documents = parse("shop.yaml", &format!("{SHOP}---{SHOP}")).unwrap();
    let [first, second] = documents.as_slice() else { panic!("{documents:?}") };
    assert_eq!(first, second);
    let service = &first.services[0];
    assert_eq!((service.name.as_str(), service.accepts_unbound_tokens), ("Shop", None));
    assert_eq!(service.webhooks[0].events, ["*"]);
    assert_eq!(
        (service.keys[0].scope, service.keys[0].secret_file.clone()),
        (KeyScope::Sync, Some("sync.keys".into()))
    );
    assert!(check_services(&first.services).is_ok());
    let twice = check_services(&[&first.services[..], &second.services].concat()).unwrap_err();
    assert!(twice.contains("the service Shop is described twice"), "{twice}");
}

#[test]
fn error_names_the_file_and_the_place() {
    for (from, to, expected) in [
        ("name: Shop", "name: Shop\n    rolez: []", "line 5 column 5: unknown field `rolez`"),
        ("countersign/v1", "countersign/v2", "countersign/v2"),
        ("permissions: [read]", "permissions: read", "line 6"),
        ("/hook", "/hook\n        events: [agent.role_asigned]", "webhooks[0].events: agent.role_asigned is no kind"),
        ("/hook", "/hook\n        events: []", "webhooks[0].events: must be"),
        ("scope: sync", "scope: all", "unknown variant `all`"),
        ("services:", "managedBy: -team\nservices:", "managedBy: must be 1 to 63"),
        ("match: { name: 'build-*' }", "match: {}", "assignments[1].match: must have `name` or `email`"),
        ("match: { name: 'build-*' }", "match: { email: '' }", "assignments[1].match.email: must not be empty"),
        ("name: Shop", "name: ' '", "services[0].name: must not be empty"),
        ("name: Shop", "name: Shop\n    id: shop", "services[0].id: is not the id of a service"),
        ("agent_01jyd3rq8yfd19yr0w5mz4ypkb", "me", "services[0].assignments[0].agent: is not the id of an agent"),
        (", agent: agent_01jyd3rq8yfd19yr0w5mz4ypkb", "", "assignments[0].agent: is missing: set `agent` or `match`"),
        (
            "match: {",
            "agent: agent_01jyd3rq8yfd19yr0w5mz4ypkb, match: {",
            "assignments[1].match: is set besides `agent`",
        ),
        ("2027-01-31T12:00:00Z", "tomorrow", "assignments[1].expiresAt: must be a time"),
        (
            "permissions: [read] }",
            "permissions: [read] }\n      - { name: reader, permissions: [] }",
            "reader is listed twice",
        ),
        ("sync.keys }", "sync.keys }\n      - { name: sidecar, scope: full }", "keys[1].name: sidecar is listed twice"),
    ] {
        assert!(SHOP.contains(from), "{from}");
        let error = error(&SHOP.replacen(from, to, 1));
        assert!(error.starts_with("shop.yaml: ") && error.contains(expected), "{to}: {error}");
    }
    assert!(parse("shop.yaml", "").unwrap().is_empty(), "an empty file describes nothing");
    let repeated_key = error(&SHOP.replacen("name: Shop", "name: Shop\n    name: Store", 1));
    assert!(repeated_key.contains("name"), "{repeated_key}");
}

#[test]
fn star_stands_for_any_text() {
    for (pattern, name, expected) in [
        ("build-*", "build-1", true),
        ("build-*", "build-", true),
        ("build-*", "rebuild-1", false),
        ("*-1", "build-1", true),
        ("*", "", true),
        ("b*d-*1", "build-21", true),
        ("b*d-*1", "build-2", false),
        ("a*a", "a", false),
        ("a**a", "aa", true),
        ("build", "build", true),
        ("build", "builder", false),
    ] {
        assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
    }
    let of = |name: Option<&str>, email: Option<&str>| Match {
        name: name.map(ToOwned::to_owned),
        email: email.map(ToOwned::to_owned),
    };
    let both = of(Some("build-*"), Some("*@example.org"));
    assert!(both.matches("build-1", Some("a@example.org")));
    assert!(!both.matches("build-1", Some("a@example.com")) && !both.matches("other", Some("a@example.org")));
    assert!(!of(None, Some("*")).matches("build-1", None), "an address that is not known matches nothing");
}

/// The schema and the parser must not drift apart: the schema has a property for each field of the format, and no other.
#[test]
fn schema_has_the_fields_of_the_format() {
    let schema: serde_json::Value = serde_json::from_str(SCHEMA).unwrap();
    let document =
        &parse("shop.yaml", &SHOP.replacen("name: Shop", &format!("name: Shop\n    id: {ID}"), 1)).unwrap()[0];
    let mut full = document.clone();
    full.managed_by = Some("team".to_owned());
    let service = &mut full.services[0];
    service.accepts_unbound_tokens = Some(true);
    service.resource_uris = Some(Vec::new());
    service.roles[0].description = Some(String::new());
    service.webhooks[0].description = Some(String::new());
    service.webhooks[0].secret_file = Some("hook".into());
    service.keys[0].kubernetes_secret = Some(KubernetesSecret { name: "guarded-services".into(), key: "keys".into() });
    let value = serde_json::to_value(&full).unwrap();
    let names = |object: &serde_json::Value| object.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let properties = |name: &str| names(&schema["$defs"][name]["properties"]);
    assert_eq!(names(&schema["properties"]), names(&value));
    let service = &value["services"][0];
    assert_eq!(properties("service"), names(service));
    assert_eq!(properties("role"), names(&service["roles"][0]));
    assert_eq!(properties("webhook"), names(&service["webhooks"][0]));
    assert_eq!(properties("key"), names(&service["keys"][0]));
    let mut assignment = names(&service["assignments"][0]);
    assignment.extend(names(&service["assignments"][1]));
    let assignment: std::collections::BTreeSet<_> = assignment.into_iter().collect();
    assert_eq!(properties("assignment").into_iter().collect::<std::collections::BTreeSet<_>>(), assignment);
}

const ID: &str = "svc_01jyd3rq8yfd19yr0w5mz4ypkb";

#[test]
fn resource_uris_are_compared_in_their_normal_form() {
    assert_eq!(normal_uri("HTTPS://Shop.example:443/mcp/").as_deref(), Some("https://shop.example/mcp"));
    for invalid in ["shop.example", "ftp://shop.example", "https://shop.example/?a", "https://u@shop.example"] {
        let text = SHOP.replacen("name: Shop", &format!("name: Shop\n    resourceUris: ['{invalid}']"), 1);
        let error = parse("shop.yaml", &text).unwrap_err().to_string();
        assert!(error.contains("resourceUris[0]: must be an http:// or https:// URL"), "{invalid}: {error}");
    }
}
