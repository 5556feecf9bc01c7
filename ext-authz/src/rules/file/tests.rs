//! Tests of the rules file: values, errors with their lines, and bounds.

use super::*;

fn errors(text: &str) -> Vec<String> {
    match RuleSet::parse(text.as_bytes()) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.to_string().lines().map(str::to_owned).collect(),
    }
}

/// The only error of a rule named `a` with this key, without the line.
fn error_of(key: &str) -> String {
    let errors = errors(&format!("[[rules]]\nname = \"a\"\n{key}\n"));
    let [error] = errors.as_slice() else { panic!("{key}: {errors:?}") };
    error.strip_prefix("line 3: rule `a`: ").unwrap_or_else(|| panic!("{error}")).to_owned()
}

#[test]
fn every_key_is_read() {
    let file = r#"
[default]
allow_unassigned = true
dry_run = true

[[rules]]
name = "keys"
host = "*.example.com"
path_template = "/users/{id}/keys"
allow_encoded_slash = true
methods = ["GET", "HEAD"]
service_id = "svc_0000000000000000000000000a"
require_roles = ["reader, eu", "writer"]
any_role = "a,b"
require_permissions = "read"
any_permission = ["x"]
min_trust_score = 62.5
allow_unassigned = true
forward_token = "true"
dry_run = false
"#;
    let service = countersign_identity::ServiceId::from_bits(10);
    let file = file.replace("svc_0000000000000000000000000a", &service.to_string());
    let rules = RuleSet::parse(file.as_bytes()).unwrap();
    let rule = &rules.rules[0];
    assert_eq!((&*rule.name, rule.line, rule.dry_run), ("keys", 6, false));
    assert_eq!(rule.encoded_slash, EncodedSlash::Kept);
    let settings: Vec<_> = rule.policy.settings().into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    let expected = [
        &format!("service_id={service}"),
        "require_roles=reader, eu, writer",
        "any_role=a, b",
        "require_permissions=read",
        "any_permission=x",
        "min_trust_score=62.5",
        "allow_unassigned=true",
        "forward_token=true",
    ];
    assert_eq!(settings, expected);
    let default = rules.default.unwrap();
    assert!(default.dry_run && default.policy.allow_unassigned && *default.name == *DEFAULT_NAME);
}

#[test]
fn all_errors_are_reported_with_their_lines() {
    let file = r#"[[rules]]
name = "a"
require_role = "x"
min_trust_score = 101

[[rules]]
name = "b"
path = "/a/../b"
path_prefix = "/b"

[[rules]]
path = "/c"

[defaults]
"#;
    let errors = errors(file);
    for (error, expected) in errors.iter().zip([
        "line 3: rule `a`: unknown key `require_role`: the keys are `name`, `host`",
        "line 4: rule `a`: `min_trust_score`: `101` is not a number from 0 to 100",
        "line 8: rule `b`: `path`: `/a/../b`: the path contains the segment `.` or `..`",
        "line 11: the rule has no `name`",
        "line 14: unknown key `defaults`: a rules file has `[[rules]]` and `[default]`",
    ]) {
        assert!(error.starts_with(expected), "{error}\n{expected}");
    }
    assert_eq!(errors.len(), 5, "{errors:?}");
    assert!(self::errors("\na = 1 2\n")[0].starts_with("line 2: invalid TOML: "));
    assert_eq!(self::errors("rules = 1"), ["line 1: `rules` must be tables: write `[[rules]]`"]);
}

#[test]
fn invalid_values_are_refused_with_the_fix() {
    for (key, expected) in [
        ("host = 'A.com'", "write `a.com`"),
        ("host = '*'", "is not a host"),
        ("path = 'admin'", "does not begin with `/`"),
        ("path = '/admin/'", "ends with `/`"),
        ("path = '/a?b'", "rules do not depend on the query"),
        ("path = '/a;b'", "path parameter"),
        ("path = '/users/{id}'", "use `path_prefix`, or `path_template`"),
        ("path_prefix = '/admin/*'", "use `path_prefix`"),
        ("path_template = '/users/me'", "use `path`"),
        ("path = '/a%2Fb'", "(`%2f`): the rule needs `allow_encoded_slash = true`"),
        ("path_prefix = '/a%2fb'", "(`%2f`): the rule needs `allow_encoded_slash = true`"),
        ("path_template = '/a%2fb/{c}'", "(`%2f`): the rule needs `allow_encoded_slash = true`"),
        ("path = '/a%2Fb'\nallow_encoded_slash = false", "the rule needs `allow_encoded_slash = true`"),
        ("path = '/a%2F..%2Fb'\nallow_encoded_slash = true", "at the start or end of a segment"),
        ("path_prefix = '/a%2F'\nallow_encoded_slash = true", "at the start or end of a segment"),
        ("path_template = '/a%252Fb/{c}'\nallow_encoded_slash = true", "`%25`"),
        ("path_template = '/{a}%2F{b}'\nallow_encoded_slash = true", "no wildcards here"),
        ("allow_encoded_slash = 'yes'", "`allow_encoded_slash` must be `true` or `false`"),
        ("path_template = '/users/{id'", "no wildcards here"),
        ("path_template = '/users/x{id}'", "no wildcards here"),
        ("methods = ['get']", "upper case"),
        ("methods = []", "1 to 16 methods"),
        ("methods = 'GET'", "list of texts"),
        ("methods = ['GET', 'GET']", "twice"),
        ("dry_run = 'yes'", "`true` or `false`"),
        ("service_id = 'billing'", "is not a service id"),
        ("require_roles = []", "is not a list of role names"),
        ("any_role = [1]", "must be a list of texts"),
        ("allow_anonymous = 1", "neither `true` nor `false`"),
        ("any_permission = {}", "wrong type"),
    ] {
        let error = error_of(key);
        assert!(error.contains(expected), "{key}: {error}");
    }
    let long = "a".repeat(1025);
    assert!(error_of(&format!("path = '/{long}'")).contains("at most 1024"));
    assert!(error_of(&format!("path = '{}'", "/a".repeat(33))).contains("at most 32"));
    for name in ["", "a b", "default", "é", &"a".repeat(65)] {
        assert_eq!(errors(&format!("[[rules]]\nname = '{name}'")).len(), 1, "{name}");
    }
    assert_eq!(errors("[default]\npath = '/a'").len(), 1);
    assert!(errors("[default]\nallow_encoded_slash = true")[0].contains("`allow_encoded_slash` is not allowed"));
    assert_eq!(
        errors("[[rules]]\nname = 'a'\npath = '/a'\nallow_encoded_slash = true"),
        ["line 1: rule `a`: `allow_encoded_slash` changes nothing, because `path` contains no `%2F`: remove it"]
    );
    assert_eq!(errors("[[rules]]\nname='a'\nallow_anonymous=true\nany_role='x'").len(), 1);
}

#[test]
fn names_are_unique_and_equally_specific_rules_are_refused() {
    let rules = |conditions: &[&str]| {
        let rule = |(number, condition)| format!("[[rules]]\nname = 'r{number}'\n{condition}\n");
        errors(&conditions.iter().enumerate().map(rule).collect::<String>())
    };
    for (a, b) in [
        ("", ""),
        ("path = '/a'", "path = '/%61'"),
        ("path_prefix = '/a'", "path_prefix = '/a'\nrequire_roles = 'x'"),
        ("path_template = '/{a}/b'", "path_template = '/{x}/b'"),
        ("path_template = '/{a}/b'", "path_template = '/a/{x}'"),
        ("path_template = '/a/{x}'", "path_template = '/a/{x}'\nallow_encoded_slash = true"),
        ("path = '/a%2Fb'\nallow_encoded_slash = true", "path = '/%61%2fb'\nallow_encoded_slash = true"),
        ("methods = ['GET', 'PUT']", "methods = ['PUT']"),
        ("host = '*.a.com'", "host = '*.a.com'"),
    ] {
        let errors = rules(&[a, b]);
        assert_eq!(errors.len(), 1, "{a} {b}: {errors:?}");
        assert!(errors[0].contains("rule `r1` and rule `r0` at line 1 can both match"), "{errors:?}");
    }
    for (a, b) in [
        ("path = '/a'", "path = '/b'"),
        ("path = '/a'", "path_prefix = '/a'"),
        ("path_prefix = '/a'", "path_prefix = '/a/b'"),
        ("path = '/a/b'", "path = '/a%2Fb'\nallow_encoded_slash = true"),
        ("path_template = '/{a}/b'", "path_template = '/{a}/c'"),
        ("path_template = '/{a}/{b}'", "path_template = '/{a}/b'"),
        ("path_template = '/{a}'", "path_template = '/{a}/{b}'"),
        ("methods = ['GET']", "methods = ['PUT']"),
        ("methods = ['GET']", ""),
        ("host = 'a.com'", "host = 'b.com'"),
        ("host = '*.com'", "host = '*.a.com'"),
        ("host = 'a.com'", ""),
    ] {
        assert_eq!(rules(&[a, b]), [] as [&str; 0], "{a} {b}");
    }
    assert!(errors("[[rules]]\nname='a'\npath='/a'\n[[rules]]\nname='a'\npath='/b'")[0].contains("at line 1"));
}

#[test]
fn file_is_bounded() {
    let rules = |count: usize| {
        (0..count).map(|n| format!("[[rules]]\nname='r{n}'\npath='/{n}'\n")).collect::<Vec<_>>().concat()
    };
    assert_eq!(errors(&rules(1000)), [] as [&str; 0]);
    assert_eq!(errors(&rules(1001)), ["line 1: the file has 1001 rules: at most 1000 are allowed"]);
    let large = format!("# {}", "a".repeat(MAX_FILE_BYTES));
    assert!(errors(&large)[0].contains("larger than 1048576 bytes"));
    assert_eq!(RuleSet::parse(b"\xff").unwrap_err().to_string(), "line 1: the file is not UTF-8");
    let many = (0..60).map(|n| format!("[[rules]]\nname='r{n}'\npath='x'\n")).collect::<Vec<_>>().concat();
    assert_eq!(errors(&many).len(), 51);
    assert_eq!(errors(&many).last().map(String::as_str), Some("and 10 more errors"));
}

/// The errors of a rule with this table `mcp`, without lines.
fn errors_of_mcp(table: &str) -> Vec<String> {
    let errors = errors(&format!("[[rules]]\nname = 'a'\n[rules.mcp]\n{table}\n"));
    let without_line =
        |error: String| error.split_once(": rule `a`: ").unwrap_or_else(|| panic!("{error}")).1.to_owned();
    errors.into_iter().map(without_line).collect()
}

#[test]
fn invalid_tables_of_mcp_are_refused_with_the_fix() {
    let list = "must be a list of permissions, such as `[\"weather:read\"]`, or `[]`";
    for (table, expected) in [
        ("tool = {}", "`mcp`: unknown key `tool`: the keys are `tools`, `prompts`, `resources`, `methods`".to_owned()),
        ("tools = []", "`mcp.tools` must be a table: write `[rules.mcp.tools]`".to_owned()),
        ("tools.a = 'x'", format!("`mcp.tools`: `a`: {list}")),
        ("tools.a = [1]", format!("`mcp.tools`: `a`: {list}")),
        ("prompts.a = ['re ad']", format!("`mcp.prompts`: `a`: {list}")),
        ("tools.\"\" = []", "`mcp.tools`: ``: must be 1 to 256 bytes without control characters".to_owned()),
        (
            "tools.\"a\\u0000\" = []",
            "`mcp.tools`: `a\\0`: must be 1 to 256 bytes without control characters".to_owned(),
        ),
        ("methods.'*' = []", "`mcp.methods`: `*`: methods have no entry for all others: name each method".to_owned()),
        (
            "methods.'tools/call' = []",
            "`mcp.methods`: `tools/call`: has a table of its own: write the tools into `mcp.tools`".to_owned(),
        ),
        (
            "methods.'resources/read' = []",
            "`mcp.methods`: `resources/read`: has a table of its own: write the resources into `mcp.resources`"
                .to_owned(),
        ),
    ] {
        assert_eq!(errors_of_mcp(table), [expected], "{table}");
    }
    assert_eq!(error_of("mcp = 1"), "`mcp` must be a table: write `[rules.mcp]`");
    assert!(errors("[default.mcp]")[0].contains("[default]: `mcp` is not allowed"));
    let long = |length| errors_of_mcp(&format!("resources.{} = []", "a".repeat(length)));
    assert_eq!((long(256).len(), long(257).len()), (0, 1));
    assert!(errors("[[rules]]\nname='a'\n[rules.mcp.tools]\nx = []\nx = []")[0].starts_with("line 5: invalid TOML"));
}

#[test]
fn errors_of_mcp_have_the_line_of_the_entry() {
    let rules = "[[rules]]\nname = 'a'\nallow_anonymous = true\n[rules.mcp.tools]\nopen = []\nclosed = ['x']\n\
                 [rules.mcp.methods]\n'prompts/get' = []\n";
    assert_eq!(
        errors(rules),
        [
            "line 6: rule `a`: `mcp.tools`: `closed`: `allow_anonymous` contradicts the permissions: remove one of them",
            "line 8: rule `a`: `mcp.methods`: `prompts/get`: has a table of its own: write the prompts into `mcp.prompts`",
        ]
    );
}

#[test]
fn number_of_mcp_entries_of_a_file_is_bounded() {
    let rule = |number: usize, entries: usize| {
        let entries = (0..entries).map(|entry| format!("t{entry} = []\n")).collect::<Vec<_>>().concat();
        format!("[[rules]]\nname = 'r{number}'\npath = '/{number}'\n[rules.mcp.tools]\n{entries}")
    };
    assert_eq!(errors(&format!("{}{}", rule(1, 500), rule(2, 500))), [] as [&str; 0]);
    let errors = errors(&format!("{}{}", rule(1, 500), rule(2, 501)));
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].ends_with("rule `r2`: the `mcp` tables of the file have more than 1000 entries"), "{errors:?}");
}
