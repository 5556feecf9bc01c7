//! Continuous logins and requests during several rotations of the signing key.

use super::kid;
use countersign_tests::{Agent, ControlPlane, Envoy, Sidecar, Upstream, eventually, tools};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

const ROTATIONS: usize = 3;

/// A process that verifies tokens with the published JWKS, and caches it for as long as the response allows.
struct Verifier {
    child: Child,
    tokens: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Verifier {
    fn start(control: &ControlPlane) -> Self {
        let mut command = Command::new(tools::python());
        command.arg(tools::root().join("tests/clients/verifier.py")).arg(control.service());
        command.env("COUNTERSIGN_URL", &control.env["URL"]).env("COUNTERSIGN_CA", &control.env["CA"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python starts");
        let (tokens, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, tokens, output }
    }

    fn verify(&mut self, token: &str) -> String {
        writeln!(self.tokens, "{token}").expect("the verifier reads its input");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the verifier responds");
        line.trim().to_owned()
    }
}

impl Drop for Verifier {
    fn drop(&mut self) {
        let _kill_result = self.child.kill();
        let _status = self.child.wait();
    }
}

/// The client's counters, and how often each response refused a token.
#[derive(Debug, Default)]
struct CallResults {
    logins: usize,
    requests: usize,
    kids: BTreeSet<String>,
    refusals: BTreeMap<String, usize>,
}

/// Logs in and sends requests continuously, alternately with the newest and an older token. Keeps the number of logins so far in
/// `logins`.
async fn call_until_stopped(
    control: &ControlPlane,
    envoy: &Envoy,
    agent: &Agent,
    (stop, logins): (&AtomicBool, &AtomicUsize),
) -> CallResults {
    let (mut results, mut verifier) = (CallResults::default(), Verifier::start(control));
    let mut tokens = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        tokens.push(agent.token().await);
        results.logins += 1;
        logins.store(results.logins, Ordering::SeqCst);
        let newest = tokens.last().unwrap();
        results.kids.insert(kid(newest));
        for token in [newest, &tokens[results.logins * 7 % tokens.len()]] {
            let envoy_response = envoy.listener.get_as(token, "/").await;
            let api_response = control.verify(token).await;
            let jwks_result = tokio::task::block_in_place(|| verifier.verify(token));
            results.requests += 3;
            for (source, response) in [("Envoy", envoy_response), ("the API", api_response)] {
                if response.status != 200 {
                    let refusal =
                        format!("{source}: {} {} {}", response.status, kid(token), response.text("/error/message"));
                    *results.refusals.entry(refusal).or_default() += 1;
                }
            }
            if jwks_result != format!("ok {}", kid(token)) {
                *results.refusals.entry(jwks_result).or_default() += 1;
            }
        }
    }
    results
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_accepted_during_rotations() {
    // The default quota of 1,000 sessions would end the oldest sessions on a fast machine.
    let settings = ["sync.max_staleness_seconds=3", "quotas.sessions_per_agent=1000000"];
    let control = ControlPlane::start_with(&settings).await;
    let (sidecar, upstream) = tokio::join!(Sidecar::start(&control), Upstream::start());
    let envoy = Envoy::start_with_long_check_timeout(&sidecar.socket(), upstream.port).await;
    let (agent, _) = Agent::with_role(&control, "reader", &["read"]).await;
    sidecar.wait_until_accepted(&agent.token().await).await;

    let first = control.signing_key("signing").await;
    let (stop, logins) = (AtomicBool::new(false), AtomicUsize::new(0));
    let rotate = async {
        let mut signers = vec![first];
        for number in 1..=ROTATIONS {
            let rotation = control.rotate().await;
            assert!([200, 202].contains(&rotation.status), "{}", rotation.body);
            let switched = async || (control.signing_key("signing").await == rotation.text("/kid")).then_some(());
            eventually("the next key signs", switched, || control.log()).await;
            signers.push(rotation.text("/kid").to_owned());
            // A client logs in, and gets a token of the new signing key, before the next rotation.
            agent.token().await;
            let logged_in = async || (logins.load(Ordering::SeqCst) > 10 * number).then_some(());
            eventually("there were ten logins per rotation", logged_in, || control.log()).await;
        }
        stop.store(true, Ordering::SeqCst);
        signers
    };
    let (results, signers) = tokio::join!(call_until_stopped(&control, &envoy, &agent, (&stop, &logins)), rotate);
    eprintln!("{ROTATIONS} rotations, {} logins, {} requests", results.logins, results.requests);
    assert_eq!(results.refusals, BTreeMap::new());
    assert!(results.logins > 10 * ROTATIONS, "too few logins: {}", results.logins);
    assert!(
        results.kids.is_subset(&signers.iter().cloned().collect()) && results.kids.len() >= ROTATIONS,
        "{results:?}"
    );
}
