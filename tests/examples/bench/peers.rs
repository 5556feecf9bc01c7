//! Countersign beside Ory Hydra, an OAuth server that a user might pick instead: tokens for clients, and verifications of tokens.
//!
//! Both get the same load over TLS and have a database of the same PostgreSQL server. The measured server and PostgreSQL share a
//! processor; `wrk` has the other one, and the server that is not measured waits meanwhile.

use crate::{
    deployment::{CONNECTIONS, RecentVerifications, start_control_plane},
    hydra::{self, Hydra},
    rounds::{Comparison, Measured, alternate, alternate_measured, measured},
    scale,
    servers::{SERVER_CORE, pin, start_on_server_core},
    wrk::{self, Requests, wrk_in_turn},
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use countersign_tests::{
    Agent, ControlPlane, HttpClient, HttpResponse,
    oauth::{self, login_form, post_form_as},
    postgres::Postgres,
    tools,
};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use p256::pkcs8::DecodePublicKey as _;
use serde_json::{Value, json};
use std::{cell::Cell, collections::BTreeMap};

/// The number of clients of each server. They get tokens in turn.
const CLIENTS: u32 = 200;

/// For how many seconds each of the two servers issues tokens in a round.
const TOKEN_SECONDS: u32 = 2;

/// The number of assertions for each second of a round: several times more than a server can answer. If there were too few, `wrk`
/// would send them again, and the server would refuse them.
const ASSERTIONS_PER_SECOND: u32 = 6_000;

/// A client of a server.
struct Client {
    id: String,
    key: EncodingKey,
}

/// A server that issues tokens.
struct TokenServer {
    api: HttpClient,
    path: &'static str,
    /// The audience of client assertions.
    audience: String,
    /// The parameters of a request besides its assertion.
    parameters: Vec<(&'static str, String)>,
    clients: Vec<Client>,
    /// The number of signed assertions, each of which can be used once.
    signed: Cell<u64>,
}

/// An endpoint that verifies tokens, with the requests to it.
struct Verifier {
    url: String,
    headers: Vec<String>,
    requests: Requests,
}

/// Measures both servers, or nothing if Hydra is not installed.
pub async fn measure(rounds: usize) -> BTreeMap<String, Comparison> {
    let Some(program) = tools::optional_program("hydra") else { return BTreeMap::new() };
    let postgres = start_on_server_core(Postgres::start_durable()).await;
    let control = start_control_plane(&postgres.create_database().await).await;
    let hydra = Hydra::start(&program, &postgres.create_database().await).await;
    let (ours, others) = register_clients(&control, &hydra).await;
    let (our_tokens, other_tokens) = (ours.tokens().await, others.tokens().await);
    for process in [control.process_id(), hydra.id()] {
        pin(process, SERVER_CORE);
    }
    let tokens = alternate_measured(rounds, async || ours.measure().await, async || others.measure().await).await;
    eprintln!("tokens_vs_hydra: {tokens:?}");
    let mut results = BTreeMap::from([("tokens_vs_hydra".to_owned(), tokens)]);
    let other = Verifier::of_hydra(&hydra, &other_tokens).await;
    let recent = RecentVerifications::default();
    for (name, verifier) in [
        ("introspect_vs_hydra", Verifier::by_introspection(&control, &our_tokens).await),
        ("verify_vs_hydra", Verifier::by_verify(&control, &our_tokens).await),
    ] {
        let ours = async || recent.measure(verifier.per_second()).await;
        let comparison = alternate(rounds, ours, async || other.per_second().await).await;
        eprintln!("{name}: {comparison:?}");
        results.insert(name.to_owned(), comparison);
    }
    results
}

/// Registers the same clients at both servers: a client has the same key at both.
async fn register_clients(control: &ControlPlane, hydra: &Hydra) -> (TokenServer, TokenServer) {
    let role = control.create_role("reader", &["read"]).await;
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    for number in 0..scale::count(CLIENTS) {
        let agent = Agent::register(control, "Client").await;
        control.assign(&agent.id, &role).await;
        let file = folder.path().join(number.to_string());
        agent.key.write(&file).expect("the key can be written");
        let key = EncodingKey::from_ec_pem(&std::fs::read(file).unwrap()).expect("the key is a PEM");
        let id = hydra.register(&public_jwk(&agent)).await;
        others.push(Client { id, key: key.clone() });
        ours.push(Client { id: agent.id, key });
    }
    let scope = ("scope", "read".to_owned());
    let ours = TokenServer {
        api: control.api.clone(),
        path: "/oauth/token",
        audience: oauth::issuer(control).await,
        parameters: vec![scope.clone(), ("resource", control.service().to_owned())],
        clients: ours,
        signed: Cell::default(),
    };
    let others = TokenServer {
        api: hydra.public.clone(),
        path: "/oauth2/token",
        audience: hydra.token_url(),
        parameters: vec![scope, ("audience", hydra::AUDIENCE.to_owned())],
        clients: others,
        signed: Cell::default(),
    };
    (ours, others)
}

fn public_jwk(agent: &Agent) -> Value {
    let pem = agent.key.public_pem().expect("the key can be encoded");
    let point = p256::PublicKey::from_public_key_pem(&pem).expect("the key is a PEM").to_sec1_bytes();
    let [x, y] = [1..33, 33..65].map(|range| URL_SAFE_NO_PAD.encode(&point[range]));
    json!({ "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": agent.id, "x": x, "y": y })
}

impl TokenServer {
    /// The URL-encoded form of a token request, with a new assertion of this client.
    fn form(&self, client: &Client) -> String {
        self.signed.set(self.signed.get() + 1);
        let claims = oauth::claims(&client.id, &self.audience, &self.signed.get().to_string());
        let assertion = jsonwebtoken::encode(&Header::new(Algorithm::ES256), &claims, &client.key);
        let assertion = assertion.expect("the claims can be encoded");
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.extend_pairs(login_form(&assertion, &[])).extend_pairs(&self.parameters).finish()
    }

    /// A token of each client.
    async fn tokens(&self) -> Vec<String> {
        let mut tokens = Vec::new();
        for client in &self.clients {
            let request = self.api.request("POST", self.path).body(self.form(client));
            let request = request.header("content-type", "application/x-www-form-urlencoded");
            let response = HttpResponse::send(request).await.expect(200);
            let token = response["access_token"].as_str().expect("the server issues a token").to_owned();
            let header = jsonwebtoken::decode_header(&token).expect("an access token is a JWT");
            assert_eq!(header.alg, Algorithm::ES256, "both servers sign with the same algorithm");
            tokens.push(token);
        }
        tokens
    }

    /// Signs all assertions, then measures the tokens per second.
    async fn measure(&self) -> Measured {
        let seconds = if scale::is_check() { wrk::SECONDS } else { TOKEN_SECONDS };
        let count = (ASSERTIONS_PER_SECOND * seconds) as usize;
        let forms: Vec<_> = self.clients.iter().cycle().take(count).map(|client| self.form(client)).collect();
        let (url, requests) = (format!("{}{}", self.api.url, self.path), Requests::with_forms(&forms));
        measured(wrk_in_turn(&url, &[], CONNECTIONS, &requests, seconds)).await
    }
}

impl Verifier {
    /// The endpoint `verify` of the control plane, which gets the tokens in turn.
    async fn by_verify(control: &ControlPlane, tokens: &[String]) -> Self {
        control.verify(&tokens[0]).await.expect(200);
        Self {
            url: format!("{}{}", control.urls()[0], control.path("/verify")),
            headers: vec![format!("authorization: Bearer {}", control.key())],
            requests: Requests::with_header("x-agent-token", tokens),
        }
    }

    /// The introspection of the control plane, which gets the tokens in turn.
    async fn by_introspection(control: &ControlPlane, tokens: &[String]) -> Self {
        let credential = STANDARD.encode(format!("{}:{}", control.service(), control.key()));
        Self::introspection(&control.api, "/oauth/introspect", Some(&format!("Basic {credential}")), tokens).await
    }

    /// The introspection of Hydra, for which a service needs no credential.
    async fn of_hydra(hydra: &Hydra, tokens: &[String]) -> Self {
        Self::introspection(&hydra.admin, "/admin/oauth2/introspect", None, tokens).await
    }

    async fn introspection(api: &HttpClient, path: &str, authorization: Option<&str>, tokens: &[String]) -> Self {
        for token in tokens {
            let introspected = post_form_as(api, path, &[("token", token)], authorization).await.expect(200);
            assert_eq!(introspected["active"], true, "{introspected}");
        }
        let forms: Vec<_> = tokens.iter().map(|token| format!("token={token}")).collect();
        Self {
            url: format!("{}{path}", api.url),
            headers: authorization.iter().map(|credential| format!("authorization: {credential}")).collect(),
            requests: Requests::with_forms(&forms),
        }
    }

    async fn per_second(&self) -> f64 {
        let headers: Vec<_> = self.headers.iter().map(String::as_str).collect();
        wrk_in_turn(&self.url, &headers, CONNECTIONS, &self.requests, wrk::SECONDS).await
    }
}
