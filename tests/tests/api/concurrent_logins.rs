//! Tests logins and refreshes of many agents at the same time.

use countersign_tests::{
    Agent, ControlPlane, Database, HttpResponse, Postgres,
    audiences::{AUDIENCES_PER_AGENT, add_audiences},
    control_plane::text,
};
use futures_util::future::join_all;
use serde_json::{Value, json};

/// Number of agents that log in at the same time.
const AGENTS: usize = 40;

const ROUNDS: usize = 3;

const UNKNOWN_SERVICE: &str = "svc_00000000000000000000000001";

/// A control plane, and agents that log in.
struct Fixture {
    control: ControlPlane,
    agents: Vec<Agent>,
    /// An agent that has live tokens for as many other services as allowed, so each of its logins for this service is refused.
    elsewhere: Agent,
    /// An agent that is suspended after its challenge was issued.
    suspended: Agent,
    database: Database,
}

impl Fixture {
    async fn start(database: &str) -> Self {
        let control = ControlPlane::start_with(&[database]).await;
        let agents = join_all((0..AGENTS).map(|_| Agent::register(&control, "agent"))).await;
        // Each agent has a role of its own, so that all claims differ.
        for (number, agent) in agents.iter().enumerate() {
            control.assign_new_role(&agent.id, &format!("reader-{number}"), &[&format!("read-{number}")]).await;
        }
        let [elsewhere, suspended] = [Agent::register(&control, "a").await, Agent::register(&control, "b").await];
        let (other, _) = control.create_service(json!({ "name": "other" })).await;
        elsewhere.token_for(&other).await;
        add_audiences(&control.database_url(), &elsewhere.id, AUDIENCES_PER_AGENT - 1).await;
        let database = Database::connect_to(&control).await;
        Self { control, agents, elsewhere, suspended, database }
    }

    async fn signed_challenge(&self, agent: &Agent) -> Value {
        let mut login = agent.signed_challenge(&self.control.api).await;
        login["serviceId"] = self.control.service().into();
        login
    }

    async fn authenticate(&self, login: &Value) -> HttpResponse {
        self.control.api.post("/auth/authenticate", login.clone()).await
    }

    async fn refresh(&self, tokens: &Value, service: Option<&str>) -> HttpResponse {
        let body = json!({ "refreshToken": tokens["refreshToken"], "serviceId": service });
        self.control.api.post("/auth/refresh", body).await
    }

    /// Sends each challenge twice at the same time, with other logins that must be refused. Returns the tokens of each agent.
    async fn log_all_in(&self) -> Vec<Value> {
        let logins = join_all(self.agents.iter().map(|agent| self.signed_challenge(agent))).await;
        let [elsewhere, suspended] =
            [self.signed_challenge(&self.elsewhere).await, self.signed_challenge(&self.suspended).await];
        self.control.set_status(&self.suspended.id, "suspended").await.expect(200);
        let (answers, elsewhere, suspended) = tokio::join!(
            join_all(logins.iter().chain(&logins).map(|login| self.authenticate(login))),
            self.authenticate(&elsewhere),
            self.authenticate(&suspended),
        );
        self.control.set_status(&self.suspended.id, "active").await.expect(200);
        assert_eq!(elsewhere.status, 409, "{elsewhere:?}");
        assert_eq!(suspended.error(), (403, "INSUFFICIENT_PERMISSIONS", "agent_suspended"));
        successes(&answers, "challenge_used")
    }

    /// Refreshes the tokens at the same time, with other refreshes that must be refused. Returns the next tokens of each agent but
    /// the first.
    async fn refresh_all(&self, tokens: &[Value]) -> Vec<Value> {
        let used = &tokens[0];
        let next = self.refresh(used, None).await.expect(200);
        let (answers, unknown, reused) = tokio::join!(
            join_all(tokens[2..].iter().map(|tokens| self.refresh(tokens, None))),
            self.refresh(&tokens[1], Some(UNKNOWN_SERVICE)),
            self.refresh(used, None),
        );
        assert_eq!(unknown.status, 404, "{unknown:?}");
        assert_eq!(reused.error(), (401, "AUTHENTICATION_FAILED", "refresh_reused"));
        let ended = self.refresh(&next, None).await;
        assert_eq!(ended.error(), (401, "AUTHENTICATION_FAILED", "refresh_revoked"), "the reuse ended the session");
        // The refused refresh has not used the token up.
        let second = self.refresh(&tokens[1], None).await.expect(200);
        [second].into_iter().chain(answers.into_iter().map(|answer| answer.expect(200))).collect()
    }

    /// Asserts that each token belongs to its agent, and has the agent's role and permission.
    async fn assert_tokens_of(&self, agents: &[Agent], tokens: &[Value], first: usize) {
        assert_eq!(agents.len(), tokens.len());
        for (number, (agent, tokens)) in agents.iter().zip(tokens).enumerate() {
            let verified = self.control.verify(&text(&tokens["accessToken"])).await.expect(200);
            let (agent_of_token, number) = (&verified["agent"], number + first);
            assert_eq!(agent_of_token["id"], agent.id, "{verified}");
            assert_eq!(agent_of_token["roles"], json!([format!("reader-{number}")]), "{verified}");
            assert_eq!(agent_of_token["permissions"], json!([format!("read-{number}")]), "{verified}");
        }
    }
}

/// Asserts that of two answers to each request, one is a success, and the other is a refusal with this reason. Returns the
/// successes.
fn successes(answers: &[HttpResponse], reason: &str) -> Vec<Value> {
    let (first, second) = answers.split_at(answers.len() / 2);
    let pairs = first.iter().zip(second).map(|(first, second)| {
        let (accepted, refused) = if first.status == 200 { (first, second) } else { (second, first) };
        assert_eq!(accepted.status, 200, "{accepted:?}");
        assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", reason));
        accepted.body.clone()
    });
    pairs.collect()
}

#[tokio::test]
async fn logins_and_refreshes_at_the_same_time_are_each_decided_alone() {
    let postgres = Postgres::start().await;
    for database in [String::new(), postgres.create_database().await] {
        let mut fixture = Fixture::start(&format!("database.url={database}")).await;
        for _ in 0..ROUNDS {
            let tokens = fixture.log_all_in().await;
            fixture.assert_tokens_of(&fixture.agents, &tokens, 0).await;
            let next = fixture.refresh_all(&tokens).await;
            fixture.assert_tokens_of(&fixture.agents[1..], &next, 1).await;
        }
        let sessions = "SELECT CAST(COUNT(*) AS TEXT) FROM sessions";
        let expected = (ROUNDS * AGENTS + 1).to_string();
        assert_eq!(fixture.database.text_column(sessions).await, [expected], "one session for each challenge");
    }
}

/// Another transaction has locked the row of one agent. The logins of all other agents do not wait for it.
#[tokio::test]
async fn an_agent_that_cannot_log_in_keeps_no_other_waiting() {
    let postgres = Postgres::start().await;
    let url = postgres.create_database().await;
    let fixture = Fixture::start(&format!("database.url={url}")).await;
    let mut database = Database::connect_to_write(&fixture.control).await;
    let locked = &fixture.agents[0].id;
    for _ in 0..5 {
        let logins = join_all(fixture.agents.iter().map(|agent| fixture.signed_challenge(agent))).await;
        let sql = format!("BEGIN; SELECT id FROM agents WHERE id = '{locked}' FOR UPDATE");
        database.execute(&sql).await;
        let others = async {
            for answer in join_all(logins[1..].iter().map(|login| fixture.authenticate(login))).await {
                assert_eq!(answer.status, 200, "{answer:?}");
            }
            // All other agents got their answers while the row was locked.
            database.execute("COMMIT").await;
        };
        let (answer, ()) = tokio::join!(fixture.authenticate(&logins[0]), others);
        answer.expect(200);
    }
}
