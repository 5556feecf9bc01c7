//! The Rust library `huskarl`.

mod agent_grant;

use self::agent_grant::agent_grant;
use super::library::{Answer, Discovered, Library, OAuthError, Settings, Tokens};
use countersign_tests::http;
use huskarl::{
    authorizer::parse_challenges,
    core::{
        Error,
        client_auth::{Audience, JwtBearer},
        resource_metadata::ProtectedResourceMetadata,
        secrets::SecretString,
        server_metadata::AuthorizationServerMetadata,
    },
    grant::{
        client_credentials::{ClientCredentialsGrant, ClientCredentialsGrantParameters},
        core::TokenResponse,
        refresh::RefreshGrantParameters,
    },
    prelude::*,
    revocation::TokenRevocation,
    token::{AccessToken, BearerAccessToken, RefreshToken},
};
use huskarl_crypto_native::asymmetric::signer::{AsymmetricAlgorithm, PrivateKey, pkcs8_pem};
use huskarl_reqwest::ReqwestClient;
use serde_json::Value;
use std::{path::Path, time::SystemTime};

/// An agent that uses the library.
pub struct Huskarl {
    settings: Settings,
    http: ReqwestClient,
}

impl Huskarl {
    pub fn new(settings: Settings) -> Self {
        let authority = std::fs::read(&settings.authority).unwrap();
        Self { settings, http: http::trusting(&authority).build().unwrap().into() }
    }

    async fn grant(&self, key: &Path) -> ClientCredentialsGrant {
        let Settings { issuer, agent, .. } = &self.settings;
        agent_grant(self.http.clone(), issuer, agent, key).await.unwrap()
    }
}

fn tokens(response: Result<TokenResponse, Error>) -> Result<Tokens, OAuthError> {
    let response = response.map_err(|error| {
        let verdict = error.verdict().unwrap_or_else(|| panic!("{error:?}"));
        OAuthError {
            error: verdict.code().as_str().to_owned(),
            description: verdict.description().unwrap_or_default().to_owned(),
        }
    })?;
    Ok(Tokens {
        access: response.access_token().token().expose_secret().to_owned(),
        refresh: response.refresh_token().unwrap().token().expose_secret().to_owned(),
        scope: response.raw_token_response().scope.clone().unwrap_or_default(),
    })
}

impl Library for Huskarl {
    async fn discover(&self, url: &str) -> Discovered {
        let resource = ProtectedResourceMetadata::fetch().http_client(&self.http).resource(url).call().await.unwrap();
        let server = &resource.authorization_servers.unwrap()[0];
        let server = AuthorizationServerMetadata::fetch().http_client(&self.http).issuer(server).call().await.unwrap();
        Discovered { resource: resource.resource, issuer: server.issuer }
    }

    async fn token_with(&self, key: &Path, resource: &str, scope: Option<&str>) -> Result<Tokens, OAuthError> {
        let scope = scope.map(|scope| scope.split(' ').map(str::to_owned).collect());
        let wanted = ClientCredentialsGrantParameters::builder().resource(vec![resource.to_owned()]);
        tokens(self.grant(key).await.exchange(wanted.maybe_scope(scope).build()).await)
    }

    async fn token(&self, resource: &str, scope: Option<&str>) -> Result<Tokens, OAuthError> {
        self.token_with(&self.settings.key_file, resource, scope).await
    }

    async fn refresh(&self, refresh_token: &str) -> Result<Tokens, OAuthError> {
        let token = RefreshToken::new(SecretString::new(refresh_token), None);
        let grant = self.grant(&self.settings.key_file).await.to_refresh_grant();
        tokens(grant.exchange(RefreshGrantParameters::refresh_token(token)).await)
    }

    async fn revoke(&self, access_token: &str) {
        let Settings { issuer, agent, key_file, .. } = &self.settings;
        let metadata =
            AuthorizationServerMetadata::fetch().http_client(&self.http).issuer(issuer).call().await.unwrap();
        let key = pkcs8_pem(&std::fs::read_to_string(key_file).unwrap(), AsymmetricAlgorithm::Es256, None).unwrap();
        let assertions =
            JwtBearer::builder().signer(PrivateKey::from_jwk(key).unwrap()).audience(Audience::TargetEndpoint).build();
        let revocation = TokenRevocation::builder_from_metadata(&metadata).unwrap();
        let revocation = revocation.client_id(agent.clone()).client_auth(assertions).build();
        let token = BearerAccessToken::new(SecretString::new(access_token), SystemTime::UNIX_EPOCH, None);
        revocation.revoke(&self.http, &AccessToken::Bearer(token)).await.unwrap();
    }

    async fn call(&self, url: &str, access_token: Option<&str>) -> Answer {
        let request = countersign_tests::HttpClient::plain(String::new()).client.get(url);
        let response =
            access_token.into_iter().fold(request, reqwest::RequestBuilder::bearer_auth).send().await.unwrap();
        let challenges = parse_challenges(response.headers());
        let challenge = challenges.iter().find(|challenge| challenge.is_scheme("Bearer"));
        let challenge = challenge.map(|challenge| {
            challenge.params().iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect()
        });
        Answer { status: response.status().as_u16(), challenge, text: response.text().await.unwrap() }
    }
}
