//! Tests of the rules for Prometheus and of the Grafana dashboards in the charts. The unit tests of the rules succeed, each alert
//! has a section in the documentation, and running processes have every metric and label that rules and dashboards use.

#![expect(clippy::expect_used, reason = "tests panic on unexpected values")]

use countersign_tests::{
    Agent, ControlPlane, Issuer, Prometheus, Receiver, Redis, Sidecar, SigningKey, Target, TlsFiles, issuer::jwks,
    process::eventually, prometheus::promtool, tools,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tempfile::{NamedTempFile, TempDir};

/// The files with rules.
const RULES: [&str; 2] =
    ["charts/countersign/rules/countersign.yaml", "charts/countersign-ext-authz/rules/countersign-ext-authz.yaml"];

/// The unit tests of the files, in the same order.
const UNIT_TESTS: [&str; 2] = ["tests/rules/countersign.yaml", "tests/rules/countersign-ext-authz.yaml"];

/// The dashboards.
const DASHBOARDS: [&str; 2] = [
    "charts/countersign/dashboards/countersign-control-plane.json",
    "charts/countersign-ext-authz/dashboards/countersign-ext-authz.json",
];

/// The panels that may show zero or no duration, because the test causes nothing that they would show.
const WITHOUT_TRAFFIC: [&str; 13] = [
    // Counted in whole seconds.
    "CPU",
    "Clock",
    "Closed connections",
    // A copy is in use only while there is no control plane.
    "Copies on disk",
    "Housekeeping",
    "Limits",
    "Oldest change that is not in force",
    "Oldest due delivery",
    "Overdue rows",
    "Reconnects",
    "Route rules",
    "Silent sidecars",
    "Waiting deliveries",
];

/// A rules file for the sidecar. Its rule only counts the requests that it would refuse (`dry_run`).
const RULES_OF_ROUTES: &str = r#"
[[rules]]
name = "tried"
path = "/tried"
require_roles = "nobody"
dry_run = true
"#;

/// Labels that Prometheus adds, in Kubernetes or everywhere.
const ADDED_LABELS: [&str; 3] = ["namespace", "job", "instance"];

fn read(file: &str) -> String {
    std::fs::read_to_string(tools::root().join(file)).expect("the file exists")
}

/// The values of a key in a file of rules.
fn values<'a>(rules: &'a str, key: &str) -> Vec<&'a str> {
    rules.lines().filter_map(|line| line.trim_start_matches([' ', '-']).strip_prefix(key)).map(str::trim).collect()
}

#[test]
fn every_alert_fires_and_no_alert_fires_without_a_cause() {
    for (rules, unit_tests) in RULES.into_iter().zip(UNIT_TESTS) {
        promtool(&["check", "rules", "--lint=all", "--lint-fatal", rules]);
        promtool(&["test", "rules", unit_tests]);
        let (rules, unit_tests) = (read(rules), read(unit_tests));
        for alert in values(&rules, "alert:") {
            assert!(unit_tests.contains(&format!("alertname=\"{alert}\"")), "no unit test has {alert} fire");
        }
    }
}

#[test]
fn every_alert_has_a_section() {
    let page = read("docs/run/alerts.md");
    let sections: BTreeSet<_> =
        page.lines().filter_map(|line| line.strip_prefix("### ")).map(str::to_lowercase).collect();
    let mut linked = BTreeSet::new();
    for rules in RULES.map(read) {
        let (alerts, links) = (values(&rules, "alert:"), values(&rules, "runbook_url:"));
        assert_eq!(alerts.len(), links.len(), "each alert has a link");
        for (alert, link) in alerts.iter().zip(links) {
            let section = link.strip_prefix("run/alerts.html#").expect("the link is to the page");
            assert!(alert.to_lowercase().starts_with(section), "{alert} links to {section}");
            linked.insert(section.to_owned());
        }
    }
    assert_eq!(sections, linked);
}

/// A metric with the labels by which an expression selects or groups it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Selected {
    metric: String,
    labels: BTreeSet<String>,
}

/// The metrics of an expression. Series that rules record have a `:` in their name.
fn selected(expression: &str) -> Vec<Selected> {
    let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_' || character == ':';
    let mut grouped = BTreeSet::new();
    for group in expression.split("by (").skip(1) {
        let (labels, _) = group.split_once(')').expect("the list of labels ends");
        grouped.extend(labels.split(',').map(|label| label.trim().to_owned()));
    }
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find(is_name) {
        let word = &rest[start..];
        let end = word.find(|character| !is_name(character)).unwrap_or(word.len());
        let name = &word[..end];
        rest = &word[end..];
        if !name.starts_with("countersign_") {
            continue;
        }
        let mut labels = grouped.clone();
        if let Some(matchers) = rest.strip_prefix('{') {
            let (matchers, after) = matchers.split_once('}').expect("the matchers end");
            labels.extend(matchers.split(',').map(|it| it.split(['=', '!']).next().unwrap_or(it).trim().to_owned()));
            rest = after;
        }
        labels.retain(|label| !ADDED_LABELS.contains(&label.as_str()));
        found.push(Selected { metric: name.to_owned(), labels });
    }
    found
}

#[test]
fn metrics_of_an_expression_are_found() {
    let expression = r#"sum by (namespace, pool, le) (rate(countersign_a_bucket{status=~"5..", kind!="x"}[5m])) / job:countersign_b:rate5m"#;
    let labels = ["kind", "le", "pool", "status"].map(str::to_owned).into();
    assert_eq!(selected(expression), [Selected { metric: "countersign_a_bucket".to_owned(), labels }]);
}

/// A control plane with everything that has metrics of its own, its sidecar, and a Prometheus that scrapes both and evaluates the
/// rules.
struct Monitored {
    control: ControlPlane,
    sidecar: Sidecar,
    prometheus: Prometheus,
    /// Receives the events of the service.
    receiver: Receiver,
    /// Has the metrics of a sidecar that serves TLS.
    _tls_sidecar: Sidecar,
    _redis: Redis,
    _issuer: Issuer,
    _keys: NamedTempFile,
    /// Contains the rules file and the copies of the sidecar.
    _folder: TempDir,
}

impl Monitored {
    async fn start() -> Self {
        let (key, redis) = (SigningKey::p256("key"), Redis::start().await);
        let issuer = Issuer::start(&[&key]).await;
        let mut settings = issuer.settings("corp", &[]);
        settings.push(format!("redis.url={}", redis.url()));
        // Configures an issuer whose keys are in a file, because the control plane has metrics about the reload of such a file.
        let keys = NamedTempFile::new().expect("a temporary file can be created");
        std::fs::write(&keys, jwks(&[&key]).to_string()).expect("the file can be written");
        settings.push("humans.issuers.file.issuer=https://file.example".to_owned());
        settings.push("humans.issuers.file.audience=countersign".to_owned());
        settings.push(format!("humans.issuers.file.jwks={}", keys.path().display()));
        let settings: Vec<_> = settings.iter().map(String::as_str).collect();
        let control = ControlPlane::start_one_with(&settings).await;
        let (receiver, folder) = (Receiver::start_ok().await, TempDir::new().expect("a folder can be created"));
        Target::create(&control, &receiver.url).await;
        let directory = format!("copy.directory={}", folder.path().join("copies").display());
        let rules = folder.path().join("rules.toml");
        std::fs::write(&rules, RULES_OF_ROUTES).expect("the file can be written");
        let rules = format!("rules.file={}", rules.display());
        let key = control.create_key(control.service(), "sync").await;
        let sidecar = Sidecar::start_with(&control, &[&key], &[&directory, &rules]);
        let files = TlsFiles::create("localhost");
        let tls = [("certificate", "server.pem"), ("private_key", "server.key")]
            .map(|(key, file)| format!("tls.{key}={}", files.file(file).display()));
        let tls_sidecar = Sidecar::start_with(&control, &[&key], &tls.each_ref().map(String::as_str));
        sidecar.wait_until_ready().await;
        tls_sidecar.wait_until_ready().await;
        let rules = RULES.map(|file| tools::root().join(file));
        let targets = [
            ("countersign", control.env["ADMIN_URL"].as_str()),
            ("countersign-ext-authz", sidecar.admin.url.as_str()),
            ("countersign-ext-authz-tls", tls_sidecar.admin.url.as_str()),
        ];
        let prometheus = Prometheus::start_with_rules(&targets, &rules).await;
        Self {
            control,
            sidecar,
            prometheus,
            receiver,
            _tls_sidecar: tls_sidecar,
            _redis: redis,
            _issuer: issuer,
            _keys: keys,
            _folder: folder,
        }
    }

    /// Logs an agent in, verifies and checks its token, and changes its roles and trust, which causes an event. Some requests are
    /// refused, one of them in a dry run only.
    async fn use_everything(&self, name: &str) {
        let Self { control, sidecar, receiver, .. } = self;
        let deliveries = receiver.count();
        let (agent, _) = Agent::with_role(control, name, &["read"]).await;
        let token = agent.token_for(control.service()).await;
        for _ in 0..2 {
            control.verify(&token).await.expect(200);
            assert_eq!(sidecar.check_token(&token).await.status, 200);
        }
        let authorization = format!("Bearer {token}");
        let tried = sidecar.check_target(("GET", "", "/tried"), &[("authorization", &authorization)], &[]).await;
        assert_eq!(tried.status, 200, "a dry run refuses nothing");
        receiver.wait_for_requests(deliveries + 1).await;
        control.verify("nonsense").await.expect(401);
        assert_eq!(sidecar.check_token("nonsense").await.status, 401);
        let feedback = json!({ "agentId": agent.id, "score": 80 });
        control.api.send_as(control.key(), "POST", "/trust/feedback", feedback).await.expect(200);
    }

    /// Uses everything twice. A counter that appears with the first use has no earlier sample, so its `rate` is 0 until the second
    /// use.
    async fn use_twice(&self) {
        self.use_everything("first").await;
        self.prometheus.wait_for_value(r#"sum(countersign_authz_checks_total{decision="deny"})"#, 1.0).await;
        self.prometheus.wait_for_value(r#"countersign_feedback_total{result="ok"}"#, 1.0).await;
        self.prometheus.wait_for_value("sum(countersign_authz_dry_run_denials_total)", 1.0).await;
        self.use_everything("second").await;
    }
}

#[tokio::test]
async fn rules_and_dashboards_show_what_running_processes_do() {
    let monitored = Monitored::start().await;
    monitored.use_twice().await;
    assert_rules_select_series(&monitored.prometheus).await;
    assert_dashboards_show_values(&monitored.prometheus).await;
}

async fn assert_rules_select_series(prometheus: &Prometheus) {
    let loaded = prometheus.rules().await;
    let expected: usize = RULES.iter().map(|file| values(&read(file), "expr:").len()).sum();
    assert_eq!(loaded.len(), expected);
    let text = |rule: &Value, field: &str| rule[field].as_str().expect("the field is a text").to_owned();
    for rule in &loaded {
        for Selected { metric, labels } in selected(&text(rule, "query")) {
            let matchers: Vec<_> = labels.iter().map(|label| format!("{label}!=\"\"")).collect();
            let series = format!("{metric}{{{}}}", matchers.join(","));
            prometheus.wait_for_value(&format!("count({series}) > bool 0"), 1.0).await;
        }
        if rule["type"] == "recording" {
            prometheus.wait_for_value(&format!("count({}) > bool 0", text(rule, "name")), 1.0).await;
        }
    }
}

async fn assert_dashboards_show_values(prometheus: &Prometheus) {
    let mut quiet_panels = BTreeSet::from(WITHOUT_TRAFFIC);
    for dashboard in DASHBOARDS.map(read) {
        let dashboard: Value = serde_json::from_str(&dashboard).expect("a dashboard is JSON");
        for panel in dashboard["panels"].as_array().expect("a dashboard has panels") {
            let title = panel["title"].as_str().expect("a panel has a title");
            let is_quiet = WITHOUT_TRAFFIC.contains(&title);
            quiet_panels.remove(title);
            let targets = panel["targets"].as_array().into_iter().flatten();
            let expressions: Vec<_> = targets.map(|target| expression(&target["expr"])).collect();
            let shown = async || {
                let mut values = Vec::new();
                for expression in &expressions {
                    let all = prometheus.query_all(expression).await?;
                    values.extend((!all.is_empty()).then_some(all)?);
                }
                let has_value = values.iter().any(|value| value.is_finite() && *value != 0.0);
                (has_value || is_quiet || panel["type"] == "row").then_some(())
            };
            eventually(&format!("the panel `{title}` shows a value"), shown, || format!("{expressions:?}")).await;
        }
    }
    assert_eq!(quiet_panels, BTreeSet::new(), "no dashboard has these panels");
}

/// The expression of a panel, for all processes.
fn expression(text: &Value) -> String {
    let mut expression = text.as_str().expect("an expression is a text").replace("$__rate_interval", "5m");
    for variable in ["$namespace", "$job", "$instance"] {
        expression = expression.replace(variable, ".*");
    }
    assert!(!expression.contains('$') || expression.contains("${1}"), "{expression} has another variable");
    expression
}
