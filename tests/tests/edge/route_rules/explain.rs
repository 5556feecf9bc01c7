//! Tests of `countersign-ext-authz explain` against a running sidecar.

use super::{Fixture, RULES, metadata};
use countersign_tests::{
    Agent,
    http::HttpResponse,
    sidecar::{CheckResult, run_command},
    tools,
};
use serde_json::Value;
use std::process::Command;

/// A request with its context extensions.
#[derive(Debug, Clone, Copy)]
struct Case<'a> {
    method: &'a str,
    host: &'a str,
    path: &'a str,
    extensions: &'a [(&'a str, &'a str)],
    token: &'a str,
}

impl Case<'_> {
    async fn check(&self, fixture: &Fixture) -> CheckResult {
        let bearer = format!("Bearer {}", self.token);
        let headers: &[(&str, &str)] = if self.token.is_empty() { &[] } else { &[("authorization", &bearer)] };
        fixture.sidecar.check_target((self.method, self.host, self.path), headers, self.extensions).await
    }

    /// The exit code and the output of `explain`.
    fn explain(&self, admin: &str, further_arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(tools::binary("countersign-ext-authz"));
        command.args(["explain", "--admin", admin, "--method", self.method, "--host", self.host, "--path", self.path]);
        for (name, value) in self.extensions {
            command.args(["--context-extension", &format!("{name}={value}")]);
        }
        command.args(further_arguments);
        run_command(command, self.token)
    }
}

fn admin(fixture: &Fixture) -> String {
    fixture.sidecar.admin.url.strip_prefix("http://").unwrap().to_owned()
}

fn refused_question(explanation: &Value) -> String {
    let questions = explanation["questions"].as_array().unwrap();
    let refused = questions.iter().filter(|it| it["answer"] == "refused").map(|it| it["question"].as_str().unwrap());
    refused.collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn explanation_has_the_verdict_of_a_check_for_every_case() {
    let fixture = Fixture::start(RULES).await;
    let reader = fixture.token("reader", &["read"]).await;
    let roleless = Agent::register(&fixture.control, "roleless").await.token().await;
    let bad_signature = format!("{}AAAA", &reader[..reader.len() - 4]);
    let case = |method, path, token| Case { method, host: "x", path, extensions: &[], token };
    let other = "svc_00000000000000000000000007";
    for (name, case, question) in [
        ("no token", case("GET", "/", ""), "token"),
        ("anonymous", case("GET", "/open", ""), ""),
        ("verified", case("GET", "/", &reader), ""),
        ("two tokens", case("GET", "/", "a.b, Bearer c.d"), "token"),
        ("malformed", case("GET", "/open", "a.b.c"), "form"),
        ("bad signature", case("GET", "/", &bad_signature), "signature"),
        ("no role", case("GET", "/", &roleless), "roles"),
        ("permission", case("POST", "/admin", &reader), "permissions"),
        ("any permission", case("GET", "/admin", &reader), ""),
        ("template", case("GET", "/users/7/keys", &reader), "roles"),
        ("ambiguous path", case("GET", "/open/%2e%2e", &reader), "rule"),
        ("not a host", Case { host: "a b", ..case("GET", "/", &reader) }, "rule"),
        ("host", Case { host: "a.partners.example.com", ..case("GET", "/", &reader) }, "roles"),
        ("dry run", case("GET", "/tried", &reader), "roles"),
        ("dry run without token", case("GET", "/tried", ""), "token"),
        ("extensions", Case { extensions: &[("min_trust_score", "99")], ..case("GET", "/open", &reader) }, "trust"),
        ("bad extensions", Case { extensions: &[("require_role", "x")], ..case("GET", "/open", &reader) }, "rule"),
        ("another service", Case { extensions: &[("service_id", other)], ..case("GET", "/", &reader) }, "view"),
    ] {
        let checked = case.check(&fixture).await;
        let (code, output, errors) = case.explain(&admin(&fixture), &["--json"]);
        let explanation: Value = serde_json::from_str(&output).unwrap_or_else(|_| panic!("{name}: {output}{errors}"));
        for (field, key) in
            [("decision", "decision"), ("reason", "reason"), ("dry_run_reason", "dryRunReason"), ("rule", "rule")]
        {
            let explained = explanation[key].as_str().unwrap_or_default();
            assert_eq!(explained, metadata(&checked, field), "{name}: {field}: {output}");
        }
        assert_eq!(code, Some(if checked.status == 200 { 0 } else { 3 }), "{name}");
        assert_eq!(refused_question(&explanation), question, "{name}: {output}");
        assert!(name != "bad extensions" || output.contains("unknown key `require_role`"), "{output}");
        let is_secret = |text: &str| case.token.len() > 20 && text.contains(case.token);
        assert!(!is_secret(&output) && !is_secret(&errors) && !is_secret(&fixture.sidecar.log()), "{name}");
    }
    let checks = "countersign_authz_checks_total{decision=\"allow\",reason=\"anonymous\"";
    assert_eq!(fixture.sidecar.metric(checks).await, Some(1.0), "an explanation is not counted");
}

#[tokio::test]
async fn text_names_every_question_and_revocations_are_explained() {
    let fixture = Fixture::start(RULES).await;
    let (agent, _) = Agent::with_role(&fixture.control, "reader", &["read"]).await;
    let token = agent.token().await;
    let case = Case { method: "GET", host: "x", path: "/admin", extensions: &[], token: &token };
    let (code, output, _) = case.explain(&admin(&fixture), &[]);
    assert_eq!(code, Some(0), "{output}");
    for line in [
        "rule         ok         `read-admin`, line 12 of the rules file; any_permission = admin, read\n".to_owned(),
        format!("view         ok         service {}, revision ", fixture.control.service()),
        "token        ok         in the header `authorization`\n".to_owned(),
        "form         ok\n".to_owned(),
        "roles        ok         the agent has reader\n".to_owned(),
        "permissions  ok         the agent has read; any_permission = admin, read\n".to_owned(),
        "verdict      allow      verified\n".to_owned(),
    ] {
        assert!(output.contains(&line), "{line}{output}");
    }
    assert_eq!(output.lines().count(), 18, "{output}");
    fixture.control.set_status(&agent.id, "suspended").await.expect(200);
    let suspended = async || Some(case.check(&fixture).await).filter(|result| result.reason == "agent_suspended");
    countersign_tests::eventually("the sidecar receives the status", suspended, || fixture.sidecar.log()).await;
    let (code, output, _) = case.explain(&admin(&fixture), &[]);
    assert!(
        code == Some(3) && output.contains("status       refused    The agent is suspended: suspended since"),
        "{output}"
    );
    assert!(output.contains("cutoff       not asked\n"), "{output}");
}

#[tokio::test]
async fn explain_refuses_what_it_cannot_read_and_says_what_is_unreachable() {
    let fixture = Fixture::start(RULES).await;
    let post = |body: String| fixture.sidecar.admin.request("POST", "/explain").body(body);
    let json = |body: String| post(body).header("content-type", "application/json");
    assert_eq!(HttpResponse::send(post("{}".to_owned())).await.status, 415);
    let of_web_page = HttpResponse::send(json("{}".to_owned()).header("host", "page.example")).await;
    assert_eq!(of_web_page.status, 421, "the name of a web page may resolve to loopback: {}", of_web_page.body);
    let refused = HttpResponse::send(json("{\"token\": [\"secret-token\"]}".to_owned())).await;
    assert_eq!(refused.status, 400);
    assert!(!refused.body.to_string().contains("secret-token"), "{}", refused.body);
    assert_eq!(HttpResponse::send(json("x".repeat(65 * 1024))).await.status, 413);
    assert_eq!(fixture.sidecar.admin.get("/explain").await.status, 405);
    let case = Case { method: "GET", host: "x", path: "/", extensions: &[], token: "secret-token" };
    let (code, output, errors) = case.explain("127.0.0.1:1", &[]);
    assert_eq!((code, output.as_str()), (Some(4), ""));
    assert!(errors.contains("127.0.0.1:1") && !errors.contains("secret-token"), "{errors}");
    assert_eq!(case.explain("10.0.0.1:9092", &[]).0, Some(2));
    assert!(!fixture.sidecar.log().contains("secret-token"));
}
