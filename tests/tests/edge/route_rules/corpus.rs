//! Hostile paths against services that normalize paths in different ways, behind the real Envoy.
//!
//! The paths come from the word lists of web scanners, and the services are the real nginx and models of Tomcat and others. The
//! tests require that an anonymous request never gets a protected resource, however its path is spelled. They also show that the
//! paths reach the protected resources without the rules, and with a token that the rules accept.

mod batch;
mod services;
mod spellings;
mod word_lists;

use super::Fixture;
use batch::{Answer, send_all};
use countersign_tests::{Envoy, Nginx, envoy::replaced};
use services::{Model, start_nginx};
use spellings::SPELLINGS;
use std::fmt;
use word_lists::WordLists;

/// The rules of most hosts, of the host `slashes`, where all rules allow encoded slashes, of the host `folding` and of the host
/// `unprotected`. A service that ignores case needs rules that refuse by default. The host `unprotected` must have no rule with a
/// path, so the other rules name their hosts.
const RULES: &str = r#"
[[rules]]
name = "admin"
host = "service"
path_prefix = "/admin"
require_permissions = ["admin"]

[[rules]]
name = "keys"
host = "service"
path_template = "/users/{id}/keys"
require_permissions = ["admin"]

[[rules]]
name = "open"
host = "service"
path_prefix = "/"
allow_anonymous = true

[[rules]]
name = "slashes-admin"
host = "slashes"
path_prefix = "/admin"
require_permissions = ["admin"]
allow_encoded_slash = true

[[rules]]
name = "slashes-keys"
host = "slashes"
path_template = "/users/{id}/keys"
require_permissions = ["admin"]
allow_encoded_slash = true

[[rules]]
name = "slashes-open"
host = "slashes"
path_prefix = "/"
allow_anonymous = true
allow_encoded_slash = true

[[rules]]
name = "folding-open"
host = "folding"
path_prefix = "/public"
allow_anonymous = true

[[rules]]
name = "unprotected"
host = "unprotected"
allow_anonymous = true

[default]
require_permissions = ["admin"]
"#;

/// The host with rules for services that distinguish case.
const CASE_SENSITIVE: &str = "service";
/// The host with rules that allow encoded slashes.
const SLASHES: &str = "slashes";
/// The host with rules for services that ignore case.
const FOLDING: &str = "folding";
/// The host without rules for paths.
const UNPROTECTED: &str = "unprotected";

/// What became of the requests.
#[derive(Debug, Default)]
struct Tally {
    sent: usize,
    open: usize,
    /// The service refused the path.
    refused_by_service: usize,
    /// Envoy or the sidecar refused the request.
    refused: usize,
    /// Targets that the sidecar refused because they need a token.
    token_missing: Vec<Vec<u8>>,
    /// Targets that reached the service.
    forwarded: Vec<Vec<u8>>,
    /// Targets that reached a protected resource.
    reached: Vec<String>,
}

impl Tally {
    fn add(&mut self, target: &[u8], answer: &Answer) {
        self.sent += 1;
        if answer.header("x-envoy-upstream-service-time").is_none() {
            self.refused += 1;
            assert!((300..500).contains(&answer.status), "{answer:?}");
            if answer.status == 401 {
                self.token_missing.push(target.to_vec());
            }
            return;
        }
        self.forwarded.push(target.to_vec());
        match answer.body.as_str() {
            "protected" => self.reached.push(String::from_utf8_lossy(target).into_owned()),
            "open" => self.open += 1,
            _ => self.refused_by_service += 1,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, open, refused_by_service, refused, token_missing, forwarded: _, reached } = self;
        write!(
            formatter,
            "{sent} sent, {} protected, {open} open, {refused_by_service} refused by the service, {refused} refused \
             before it, of them {} because of a missing token",
            reached.len(),
            token_missing.len()
        )
    }
}

/// Sends requests to Envoy, follows redirects, and counts the outcomes.
async fn ask(envoy: &Envoy, host: &str, token: Option<&str>, targets: &[Vec<u8>]) -> Tally {
    let address = envoy.listener.url.trim_start_matches("http://");
    let (mut tally, mut targets) = (Tally::default(), targets.to_vec());
    while !targets.is_empty() {
        let answers = send_all(address, host, token, &targets).await;
        let mut redirects = Vec::new();
        for (target, answer) in targets.iter().zip(&answers) {
            let location = answer.header("location").filter(|_| (300..400).contains(&answer.status));
            redirects.extend(location.map(|it| it.trim_start_matches(&format!("http://{host}")).as_bytes().to_vec()));
            tally.add(target, answer);
        }
        targets = redirects;
    }
    tally
}

/// An Envoy in front of each service. All Envoys ask the same sidecar.
struct Edge {
    nginx: Envoy,
    tomcat: Envoy,
    lenient: Envoy,
    folding: Envoy,
}

/// The configuration of an Envoy.
#[derive(Debug, Clone, Copy)]
enum Configuration {
    /// Without normalization of paths and without routes for single paths.
    Minimal,
    /// `examples/envoy/envoy.yaml`, which normalizes paths, and which has routes of its own for `/admin` and `/open`.
    Example,
}

impl Configuration {
    async fn start(self, fixture: &Fixture, service: u16) -> Envoy {
        match self {
            Self::Minimal => fixture.envoy(service).await,
            Self::Example => Envoy::start_example(&fixture.sidecar.socket(), service).await,
        }
    }

    async fn edge(self, fixture: &Fixture, nginx: &Nginx) -> Edge {
        let model = async |model: Model| self.start(fixture, model.start().await).await;
        let (nginx, tomcat, lenient, folding) = tokio::join!(
            self.start(fixture, nginx.port),
            model(Model::Tomcat),
            model(Model::Lenient),
            model(Model::Folding)
        );
        Edge { nginx, tomcat, lenient, folding }
    }
}

fn corpus() -> Vec<Vec<u8>> {
    let lists = WordLists::read();
    assert!(lists.len() >= 2000, "the word lists have only {} entries", lists.len());
    lists.targets()
}

#[tokio::test]
async fn no_protected_path_is_reached_without_permission() {
    let (corpus, fixture, nginx) = (corpus(), Fixture::start(RULES).await, start_nginx().await);
    let token = fixture.token("admin", &["admin"]).await;
    for configuration in [Configuration::Minimal, Configuration::Example] {
        let edge = configuration.edge(&fixture, &nginx).await;
        let first = ask(&edge.nginx, CASE_SENSITIVE, None, &corpus).await;
        // The sidecar decides without knowing which service gets the request. So the other services need only the targets that the
        // sidecar let pass to the first.
        for (name, envoy) in [("nginx", &edge.nginx), ("Tomcat", &edge.tomcat), ("lenient", &edge.lenient)] {
            let anonymous = ask(envoy, CASE_SENSITIVE, None, &first.forwarded).await;
            assert_eq!(anonymous.reached, [] as [&str; 0], "{configuration:?}, {name}");
            assert!(anonymous.open >= 100, "{configuration:?}, {name}: {anonymous}");
            let permitted = ask(envoy, CASE_SENSITIVE, Some(&token), &first.token_missing).await;
            assert!(permitted.reached.len() >= 50, "{configuration:?}, {name}: {permitted}");
        }
        assert_eq!(first.reached, [] as [&str; 0], "{configuration:?}, nginx");

        let anonymous = ask(&edge.folding, FOLDING, None, &corpus).await;
        assert_eq!(anonymous.reached, [] as [&str; 0], "{configuration:?}, ignoring case");
        assert!(anonymous.open >= 100, "{configuration:?}, ignoring case: {anonymous}");
        let permitted = ask(&edge.folding, FOLDING, Some(&token), &anonymous.token_missing).await;
        assert!(permitted.reached.len() >= 50, "{configuration:?}, ignoring case: {permitted}");
    }
}

/// Targets with encoded slashes: those of the corpus, and spellings of protected paths in which slashes are encoded.
fn with_encoded_slashes(corpus: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let is_encoded = |target: &&Vec<u8>| target.windows(3).any(|part| part.eq_ignore_ascii_case(b"%2f"));
    let mut targets: Vec<_> = corpus.iter().filter(is_encoded).cloned().collect();
    let spellings = SPELLINGS.into_iter().flat_map(str::split_whitespace);
    for spelling in spellings.chain(["/users/7/keys", "/public/x/../../users/7/keys", "/x/users/7/keys"]) {
        let slashes: Vec<_> = spelling.match_indices('/').map(|(position, _)| position).skip(1).collect();
        let all = slashes.iter().rev().fold(spelling.to_owned(), |path, slash| with_encoded_slash(&path, *slash));
        let each = slashes.iter().map(|slash| with_encoded_slash(spelling, *slash));
        targets.extend(each.chain([all]).map(String::into_bytes));
    }
    targets
}

fn with_encoded_slash(path: &str, position: usize) -> String {
    format!("{}%2f{}", &path[..position], &path[position + 1..])
}

#[tokio::test]
async fn no_protected_path_is_reached_where_all_rules_allow_encoded_slashes() {
    const OPEN: [&str; 4] = ["/a%2Fb", "/users/a%2fb", "/users/a%2Fb/names", "/x/admin%2Fusers%2fy"];
    const PROTECTED: [&str; 3] = ["/admin/a%2Fb", "/users/a%2Fb/keys", "/%61dmin/x%2fy"];
    let (corpus, fixture, nginx) = (corpus(), Fixture::start(RULES).await, start_nginx().await);
    let token = fixture.token("admin", &["admin"]).await;
    let bytes = |target: &&str| target.as_bytes().to_vec();
    let targets: Vec<_> = with_encoded_slashes(&corpus).into_iter().chain(OPEN.iter().map(bytes)).collect();
    let first_envoy = fixture.envoy(nginx.port).await;
    let first = ask(&first_envoy, SLASHES, None, &targets).await;
    assert_eq!(first.reached, [] as [&str; 0], "nginx");
    for target in OPEN {
        assert!(first.forwarded.contains(&bytes(&target)), "{target}: {first}");
    }
    for model in [Model::Lenient, Model::Segments, Model::Mounted] {
        let envoy = fixture.envoy(model.start().await).await;
        let anonymous = ask(&envoy, SLASHES, None, &first.forwarded).await;
        assert_eq!(anonymous.reached, [] as [&str; 0], "{model:?}");
        // Without the rules, targets of this kind reach protected paths.
        let unprotected = ask(&envoy, UNPROTECTED, None, &attacks(&targets, model)).await;
        assert!(!unprotected.reached.is_empty(), "{model:?}: {unprotected}");
    }
    let envoy = fixture.envoy(Model::Segments.start().await).await;
    let permitted = ask(&envoy, SLASHES, Some(&token), &PROTECTED.map(|target| bytes(&target))).await;
    assert_eq!(permitted.reached, PROTECTED, "{permitted}");
}

/// The targets for which a service would serve a protected resource. The lenient model stands for nginx, too: nginx resolves almost
/// no other targets to a protected path.
fn attacks(corpus: &[Vec<u8>], model: Model) -> Vec<Vec<u8>> {
    corpus.iter().filter(|target| model.answer(target) == "protected").cloned().collect()
}

/// Without the rules, the corpus reaches the protected paths of every service. This shows that the test above can fail.
#[tokio::test]
async fn corpus_reaches_protected_paths_without_rules() {
    let (corpus, fixture, nginx) = (corpus(), Fixture::start(RULES).await, start_nginx().await);
    let edge = Configuration::Minimal.edge(&fixture, &nginx).await;
    for (name, envoy, model, least) in [
        ("nginx", &edge.nginx, Model::Lenient, 500),
        ("Tomcat", &edge.tomcat, Model::Tomcat, 500),
        ("lenient", &edge.lenient, Model::Lenient, 1000),
        ("ignoring case", &edge.folding, Model::Folding, 1000),
    ] {
        let attacks = attacks(&corpus, model);
        let tally = ask(envoy, UNPROTECTED, None, &attacks).await;
        assert!(tally.reached.len() >= least, "{name}: {tally}");
        // Rules that compare the path as it was sent would not apply to many of these requests.
        let unseen = tally.reached.iter().filter(|it| !it.starts_with("/admin") && !it.starts_with("/users")).count();
        assert!(unseen >= least / 2, "{name}: {unseen}");
    }
    // The documentation says that these rules do not suffice for a service that ignores case.
    let wrong_rules = ask(&edge.folding, CASE_SENSITIVE, None, &attacks(&corpus, Model::Folding)).await;
    assert!(!wrong_rules.reached.is_empty(), "{wrong_rules}");
}

/// A route with context extensions does not use the rules file, so the sidecar does not look at the path. Envoy 1.40 resolves
/// `..;x`, but not `%2e%2e;x`, which it only decodes. So the example refuses `;` in front of services that remove path parameters.
#[tokio::test]
async fn routes_with_context_extensions_need_the_route_that_refuses_parameters() {
    let fixture = Fixture::start(RULES).await;
    let mut attacks = attacks(&corpus(), Model::Lenient);
    attacks.retain(|target| target.starts_with(b"/public/"));
    let attacks: Vec<_> = attacks.iter().map(|it| [b"/open/", &it[b"/public/".len()..]].concat()).collect();
    for model in [Model::Tomcat, Model::Lenient] {
        let (socket, service) = (fixture.sidecar.socket(), model.start().await);
        let example = Envoy::start_example(&socket, service).await;
        let tally = ask(&example, CASE_SENSITIVE, None, &attacks).await;
        assert_eq!(tally.reached, [] as [&str; 0], "{model:?}");
        assert!(tally.open >= 100, "{model:?}: {tally}");
        let without = Envoy::start_edited_example(&socket, service, |text| without_refusing_route(&text)).await;
        let tally = ask(&without, CASE_SENSITIVE, None, &attacks).await;
        assert!(tally.reached.iter().any(|it| it == "/open/%2e%2e;x=y/admin/secret"), "{model:?}: {tally}");
    }
}

fn without_refusing_route(example: &str) -> String {
    let route = "                        - match: { safe_regex: { regex: \".*(;|%3[bB]).*\" } }
                          direct_response: { status: 400 }
";
    replaced(example, route, "")
}
