//! Continuous logins and requests during several rotations.

use super::kid;
use countersign_tests::{Agent, ControlPlane, Envoy, Sidecar, Upstream, eventually, tools};
use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

const ROTATIONS: usize = 3;

/// A service that verifies tokens with the published JWKS and caches it as long as allowed.
struct Verifier {
    child: Child,
    tokens: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Verifier {
    fn start(at: &ControlPlane) -> Self {
        let mut command = Command::new(tools::python());
        command.arg(tools::root().join("tests/clients/verifier.py")).arg(at.service());
        command.env("COUNTERSIGN_URL", &at.env["URL"]).env("COUNTERSIGN_CA", &at.env["CA"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python starts");
        let (tokens, said) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, tokens, said }
    }

    fn ask(&mut self, token: &str) -> String {
        writeln!(self.tokens, "{token}").expect("it reads");
        let mut said = String::new();
        self.said.read_line(&mut said).expect("it answers");
        said.trim().to_owned()
    }
}

impl Drop for Verifier {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Results of the client.
#[derive(Debug, Default)]
struct Seen {
    logins: usize,
    requests: usize,
    kids: BTreeSet<String>,
    refused: Vec<String>,
}

/// Logs in and calls continuously, with the newest token and an older one in turn.
async fn call(control: &ControlPlane, envoy: &Envoy, agent: &Agent, until: &AtomicBool) -> Seen {
    let (mut seen, mut verifier) = (Seen::default(), Verifier::start(control));
    let mut tokens = Vec::new();
    while !until.load(Ordering::SeqCst) {
        tokens.push(agent.token().await);
        seen.logins += 1;
        let newest = tokens.last().unwrap();
        seen.kids.insert(kid(newest));
        for token in [newest, &tokens[seen.logins * 7 % tokens.len()]] {
            let at_envoy = envoy.site.get_as(token, "/").await;
            let at_api = control.verify(token).await;
            let published = tokio::task::block_in_place(|| verifier.ask(token));
            seen.requests += 3;
            for (who, answer) in [("Envoy", at_envoy), ("the API", at_api)] {
                seen.refused
                    .extend((answer.status != 200).then(|| format!("{who}: {} {}", answer.status, answer.body)));
            }
            seen.refused.extend((published != format!("ok {}", kid(token))).then_some(published));
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn rotation_refuses_no_token() {
    let control = ControlPlane::start_with(&["sync.max_staleness_seconds=3"]).await;
    let (sidecar, upstream) = tokio::join!(Sidecar::start(&control), Upstream::start());
    let envoy = Envoy::shipped(&sidecar.socket(), upstream.port).await;
    let agent = Agent::register(&control, "Test Agent").await;
    let role = control.create_role("reader", &["read"]).await;
    control.assign(&agent.id, &role).await;
    let known = async || (sidecar.check_token(&agent.token().await).await.status == 200).then_some(());
    eventually("the role is known at the sidecar", known, || sidecar.log()).await;

    let first = control.signing_key("signing").await;
    let done = AtomicBool::new(false);
    let rotate = async {
        let mut signers = vec![first];
        for _ in 0..ROTATIONS {
            let rotation = control.rotate().await;
            assert!([200, 202].contains(&rotation.status), "{}", rotation.body);
            let signs = async || (control.signing_key("signing").await == rotation.text("/kid")).then_some(());
            eventually("the next key signs", signs, || control.log()).await;
            signers.push(rotation.text("/kid").to_owned());
            // A client logs in with the new key before the next rotation.
            agent.token().await;
        }
        done.store(true, Ordering::SeqCst);
        signers
    };
    let (seen, signers) = tokio::join!(call(&control, &envoy, &agent, &done), rotate);
    eprintln!(
        "{ROTATIONS} rotations, {} logins, {} requests, {} refused",
        seen.logins,
        seen.requests,
        seen.refused.len()
    );
    assert_eq!(seen.refused, Vec::<String>::new());
    assert!(seen.logins > 10 * ROTATIONS, "too few logins: {}", seen.logins);
    assert!(seen.kids.is_subset(&signers.iter().cloned().collect()) && seen.kids.len() >= ROTATIONS, "{seen:?}");
}
