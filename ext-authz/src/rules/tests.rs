//! Tests of the selection of rules.

use super::*;
use proptest::prelude::*;

pub(super) fn rules(text: &str) -> RuleSet {
    RuleSet::parse(text.as_bytes()).unwrap()
}

/// Rules from lines, each with the name of a rule and its conditions.
pub(super) fn rules_from(lines: &[&str]) -> RuleSet {
    let rule = |line: &&str| {
        let (name, conditions) = line.split_once(' ').unwrap_or((line, ""));
        format!("[[rules]]\nname = '{name}'\n{}\n", conditions.replace("; ", "\n"))
    };
    rules(&lines.iter().map(rule).collect::<String>())
}

pub(super) fn selected(rules: &RuleSet, request: &str) -> String {
    let mut parts = request.split(' ');
    let (method, host, path) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
    match rules.select(RequestTarget { method, host, path }) {
        Ok(rule) => rule.map_or("-", |rule| &rule.name).to_owned(),
        Err(unselectable) => unselectable.reason.as_str().to_owned(),
    }
}

#[test]
fn most_specific_rule_is_selected() {
    let rules = rules_from(&[
        "all path_prefix = '/'",
        "admin path_prefix = '/admin'",
        "admin-read path_prefix = '/admin'; methods = ['GET']",
        "admin-keys path_prefix = '/admin/keys'",
        "user path_template = '/users/{id}'",
        "user-keys path_template = '/users/{id}/keys'",
        "me path = '/users/me'",
        "any-keys path_template = '/{a}/{b}/keys'",
        "partners host = '*.partners.example.com'",
        "examples host = '*.example.com'; path_prefix = '/admin'",
        "api host = 'api.example.com'; path = '/exact'",
        "put methods = ['PUT']",
    ]);
    for (request, expected) in [
        ("GET x /", "all"),
        ("GET x /administrator", "all"),
        ("POST x /admin", "admin"),
        ("POST x /admin/x?y=/z", "admin"),
        ("GET x /%61dmin/", "admin-read"),
        ("get x /admin", "admin-read"),
        ("GET x /admin/keys/1", "admin-keys"),
        ("GET x /users/7", "user"),
        ("GET x /users/me", "me"),
        ("GET x /users/me/", "me"),
        ("GET x /users/me/keys", "user-keys"),
        ("GET x /users/7/keys", "user-keys"),
        ("GET x /groups/7/keys", "any-keys"),
        ("GET x /users/7/keys/1", "all"),
        ("GET x /users", "all"),
        ("GET x /Admin", "all"),
        ("PUT x /q", "all"),
        ("GET a.partners.example.com /admin", "partners"),
        ("GET a.example.com /admin", "examples"),
        ("GET A.EXAMPLE.com.:443 /admin", "examples"),
        ("GET a.example.com /users/me", "me"),
        ("GET api.example.com /exact", "api"),
        ("GET api.example.com /admin", "examples"),
        ("GET x /a//b", "path_ambiguous"),
        ("GET x /users/a%2fb", "path_ambiguous"),
        ("GET a@b /users", "host_invalid"),
        ("OPTIONS x *", "path_ambiguous"),
    ] {
        assert_eq!(selected(&rules, request), expected, "{request}");
    }
}

#[test]
fn default_applies_to_what_no_rule_covers() {
    let with_default =
        rules("[default]\nrequire_roles = 'x'\n[[rules]]\nname = 'a'\nmethods = ['PUT']\nhost = 'a.com'");
    assert_eq!(selected(&with_default, "PUT a.com /..;/x"), "a", "no rule depends on the path");
    assert_eq!(selected(&with_default, "GET a.com /x"), "default");
    assert_eq!(selected(&with_default, "GET b.com /x//"), "default");
    assert_eq!(selected(&RuleSet::default(), "GET ??? //"), "-");
}

#[test]
fn ambiguous_paths_are_refused_only_where_a_rule_depends_on_the_path() {
    let rules = rules_from(&["a host = 'a.com'; path = '/a'; methods = ['PUT']", "b host = 'b.com'"]);
    assert_eq!(selected(&rules, "GET a.com //"), "path_ambiguous");
    assert_eq!(selected(&rules, "GET b.com //"), "b");
    assert_eq!(selected(&rules, "GET c.com //"), "-");
}

#[test]
fn unselectable_requests_pass_only_if_everything_is_a_dry_run() {
    let passes =
        |text: &str, host| rules(text).select(RequestTarget { method: "GET", host, path: "//" }).unwrap_err().dry_run;
    let dry = "[default]\ndry_run = true\n[[rules]]\nname = 'a'\nhost = 'a.com'\npath = '/a'\ndry_run = true\n";
    assert!(passes(dry, "a.com") && passes(dry, "??"));
    let other_host = format!("{dry}[[rules]]\nname = 'b'\nhost = 'b.com'\npath = '/a'\n");
    assert!(passes(&other_host, "a.com") && !passes(&other_host, "b.com") && !passes(&other_host, "??"));
    let without_default = dry.replace("[default]\ndry_run = true\n", "");
    assert!(!passes(&without_default, "a.com"));
    let enforced_default = dry.replace("[default]\ndry_run = true", "[default]");
    assert!(!passes(&enforced_default, "a.com"));
    let enforced_rule = format!("{dry}[[rules]]\nname = 'b'\nmethods = ['PUT']\n");
    assert!(!passes(&enforced_rule, "a.com"));
}

#[test]
fn explanation_names_the_rule_and_why_others_lost() {
    let rules = rules_from(&[
        "all path_prefix = '/'",
        "admin path_prefix = '/admin'; require_permissions = 'admin'; dry_run = true",
        "get path_prefix = '/admin'; methods = ['GET']; any_role = 'a,b'",
        "host host = 'x.com'",
    ]);
    let explain = |host, path| rules.explain(RequestTarget { method: "GET", host, path }, None).to_string();
    assert_eq!(
        explain("Y.com:80", "/%61dmin/?x"),
        "method   GET\nhost     y.com\npath     /admin\nrule     get (line 9): any host, path_prefix /admin, GET\n\
         requires any_role = a, b\n         \
         admin (line 4) also matches, but it names no method: any host, path_prefix /admin, any method\n         \
         all (line 1) also matches, but its path is less specific: any host, path_prefix /, any method\n"
    );
    assert!(explain("x.com", "/admin").contains("get (line 9) also matches, but its host is less specific"));
    let refused = explain("x.com", "/a/..");
    assert!(refused.contains("the path contains the segment `.` or `..`"), "{refused}");
    assert!(refused.contains("the request is refused with the reason path_ambiguous"), "{refused}");
    assert!(!refused.contains("also matches"), "{refused}");
}

fn condition() -> impl Strategy<Value = String> {
    let host = prop_oneof![Just(""), Just("host='a.b.c'"), Just("host='*.c'"), Just("host='*.b.c'"), Just("host='c'")];
    let fixed = "(/[ab]){1,3}";
    let path = prop_oneof![
        Just(String::new()),
        fixed.prop_map(|path| format!("path='{path}'")),
        fixed.prop_map(|path| format!("path_prefix='{path}'")),
        "(/(a|b|\\{x\\})){0,2}/\\{x\\}(/(a|b|\\{x\\})){0,1}".prop_map(|path| format!("path_template='{path}'")),
    ];
    let methods = prop_oneof![Just(""), Just("methods=['GET']"), Just("methods=['PUT']")];
    (host, path, methods).prop_map(|(host, path, methods)| format!("{host}\n{path}\n{methods}"))
}

proptest! {
    #[test]
    fn index_selects_the_first_of_all_matching_rules(
        conditions in proptest::collection::vec(condition(), 0..12),
        host in prop_oneof!["[abc]", "[ab]\\.c", "[ab]\\.b\\.c"],
        path in "(/[ab]){0,4}/?",
        method in prop_oneof![Just("GET"), Just("PUT"), Just("POST")],
    ) {
        // Leaves out each rule that conflicts with an earlier one.
        let mut text = String::new();
        for (number, condition) in conditions.iter().enumerate() {
            let longer = format!("{text}[[rules]]\nname='r{number}'\n{condition}\n");
            if RuleSet::parse(longer.as_bytes()).is_ok() {
                text = longer;
            }
        }
        let rules = rules(&text);
        let path = if path.is_empty() { "/".to_owned() } else { path };
        let target = RequestTarget { method, host: &host, path: &path };
        let matching = rules.matching(target);
        let selected = rules.select(target).unwrap().map(|rule| rule.name.clone());
        prop_assert_eq!(selected, matching.first().map(|rule| rule.name.clone()));
        for pair in matching.windows(2) {
            prop_assert!(pair[0].specificity() > pair[1].specificity(), "{} {}", pair[0].name, pair[1].name);
        }
    }
}

#[test]
fn dry_run_that_takes_requests_from_an_enforced_rule_is_a_warning() {
    let warnings = |lines: &[&str]| rules_from(lines).warnings();
    let enforced = "admin path_prefix = '/admin'; require_permissions = 'admin'";
    for tried in [
        "tried path_prefix = '/admin'; methods = ['GET']; dry_run = true",
        "tried path = '/admin/keys'; dry_run = true",
        "tried path_template = '/{a}/keys'; dry_run = true",
        "tried host = '*.example.com'; dry_run = true",
    ] {
        let expected = "the dry run `tried` takes requests from the enforced rule `admin` at line 1";
        let found = warnings(&[enforced, tried]);
        assert!(found.len() == 1 && found[0].contains(expected), "{tried}: {found:?}");
        let both_tried = format!("{enforced}; dry_run = true");
        assert_eq!(warnings(&[&both_tried, tried]), Vec::<String>::new());
    }
    for harmless in [
        "tried path_prefix = '/'; dry_run = true",
        "tried path_prefix = '/other'; dry_run = true",
        "tried path_template = '/admin2/{a}'; dry_run = true",
        "tried path_template = '/{a}'; methods = ['GET']",
    ] {
        assert_eq!(warnings(&[enforced, harmless]), Vec::<String>::new(), "{harmless}");
    }
    assert_eq!(
        warnings(&["a host = 'a.example.com'", "b host = '*.b.example.com'; path = '/x'; dry_run = true"]),
        Vec::<String>::new()
    );
}

proptest! {
    /// Two path patterns intersect if and only if some path matches both. Tested paths have at most one segment more.
    #[test]
    fn patterns_that_intersect_match_a_common_path(patterns in prop::array::uniform2("(path|path_prefix|path_template) /[ab{](/[ab{]){0,2}")) {
        let parse = |text: &str| {
            let (key, path) = text.split_once(' ').unwrap();
            // A generated `{` is a variable in a template, and the segment `c` elsewhere.
            let (template, fixed) = (path.replace('{', "{v}"), path.replace('{', "c"));
            match key {
                "path" => PathPattern::parse_exact(&fixed, EncodedSlash::Refused).unwrap(),
                "path_prefix" => PathPattern::parse_prefix(&fixed, EncodedSlash::Refused).unwrap(),
                _ if path.contains('{') => {
                    PathPattern::parse_template(&template, EncodedSlash::Refused).unwrap()
                }
                _ => PathPattern::Any,
            }
        };
        let (first, second) = (parse(&patterns[0]), parse(&patterns[1]));
        let mut paths = vec![String::new()];
        let mut has_common_path = false;
        for _ in 0..4 {
            paths = paths.iter().flat_map(|path| ["a", "b", "c"].map(|segment| format!("{path}/{segment}"))).collect();
            has_common_path |= paths.iter().any(|path| {
                let path = NormalPath::parse(path, EncodedSlash::Refused).unwrap();
                first.matches(&path) && second.matches(&path)
            });
        }
        prop_assert_eq!(first.intersects(&second), has_common_path);
        prop_assert_eq!(second.intersects(&first), has_common_path);
    }
}
