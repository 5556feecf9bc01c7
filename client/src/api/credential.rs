//! Clients with a credential: [`HumanApi`] for the requests of a human user, [`ServiceApi`] for requests about one service.

use super::{Api, Page, PageStart, Result, WebhookApi, WebhookScope, page::MAX_PAGE_SIZE};
use reqwest::Method;
use secrecy::SecretString;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Requests of a human user.
#[derive(Debug, Clone)]
pub struct HumanApi {
    /// The control plane.
    pub api: Api,
    /// The token of the human user.
    pub token: SecretString,
}

/// Requests about one service.
#[derive(Debug, Clone)]
pub struct ServiceApi {
    /// The control plane.
    pub api: Api,
    /// The id of the service.
    pub id: String,
    /// The token of the service's owner or of an administrator. For roles, agents and sidecars, an API key of scope `full` suffices.
    pub credential: SecretString,
}

impl HumanApi {
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
    ) -> Result<T> {
        self.api.call(method, path, Some(&self.token), body).await
    }

    /// Fetches a page of a listing.
    pub(super) async fn page<T: DeserializeOwned>(&self, path: &[&str], start: &PageStart) -> Result<Page<T>> {
        self.api.page(&self.token, path, start, MAX_PAGE_SIZE, &[]).await
    }

    /// A client for requests about a service, with the token of this human user.
    pub fn service(&self, id: &str) -> ServiceApi {
        self.api.service(id, &self.token)
    }
}

impl ServiceApi {
    /// A client for requests about the webhooks of the service.
    pub fn webhooks(&self) -> WebhookApi {
        let scope = WebhookScope::Service(self.id.clone());
        WebhookApi { api: self.api.clone(), scope, credential: self.credential.clone() }
    }

    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
    ) -> Result<T> {
        self.api.call(method, &self.path(path), Some(&self.credential), body).await
    }

    /// Fetches a page of a filtered listing.
    pub(super) async fn page<T: DeserializeOwned>(
        &self,
        path: &[&str],
        start: &PageStart,
        filter: &[(&str, Option<&str>)],
    ) -> Result<Page<T>> {
        self.api.page(&self.credential, &self.path(path), start, MAX_PAGE_SIZE, filter).await
    }

    pub(super) fn path<'a>(&'a self, rest: &[&'a str]) -> Vec<&'a str> {
        [&["services", self.id.as_str()], rest].concat()
    }
}
