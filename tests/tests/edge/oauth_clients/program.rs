//! Libraries in other languages, which programs in `tests/clients/oauth` use.

use super::library::{Answer, Discovered, Library, OAuthError, Settings, Tokens};
use countersign_tests::tools;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};
use tempfile::TempDir;
use tokio::process::Command;

/// A program that uses a library.
pub struct Program {
    settings: Settings,
    interpreter: PathBuf,
    script: &'static str,
    /// Copies of the scripts beside the packages: Node.js looks for packages in the folders above a script.
    folder: TempDir,
}

impl Program {
    /// `Authlib`, in Python.
    pub fn authlib(settings: Settings) -> Self {
        Self::new(settings, tools::python(), "authlib_client.py")
    }

    /// `openid-client`, in Node.js.
    pub fn openid_client(settings: Settings) -> Self {
        Self::new(settings, tools::node(), "openid_client.mjs")
    }

    fn new(settings: Settings, interpreter: PathBuf, script: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(tools::root().join("tests/clients/oauth").join(script), folder.path().join(script)).unwrap();
        symlink(tools::root().join(".tools/npm-oauth/node_modules"), folder.path().join("node_modules")).unwrap();
        Self { settings, interpreter, script, folder }
    }

    /// Runs a command of the program, and decodes what it prints.
    pub async fn run<T: DeserializeOwned>(&self, name: &str, parameters: Value) -> Result<T, OAuthError> {
        self.run_with(&self.settings.key_file, name, parameters).await
    }

    async fn run_with<T: DeserializeOwned>(&self, key: &Path, name: &str, parameters: Value) -> Result<T, OAuthError> {
        let Settings { issuer, agent, key_file: _, authority } = &self.settings;
        let mut command = Command::new(&self.interpreter);
        command.arg(self.folder.path().join(self.script)).arg(name).arg(parameters.to_string());
        command.env("ISSUER", issuer).env("AGENT_ID", agent).env("KEY_FILE", key);
        command.env("REQUESTS_CA_BUNDLE", authority).env("NODE_EXTRA_CA_CERTS", authority);
        let output = command.output().await.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {name} {parameters}: {errors}", self.script);
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        if printed.get("error").is_some() {
            return Err(serde_json::from_value(printed).unwrap());
        }
        Ok(serde_json::from_value(printed.clone()).unwrap_or_else(|error| panic!("{name}: {error}: {printed}")))
    }

    /// Asks with the credentials of a service whether a token is active.
    pub async fn introspect(&self, service: &str, key: &str, method: &str, token: &str) -> Result<Value, OAuthError> {
        let parameters = json!({ "service": service, "key": key, "method": method, "token": token });
        self.run("introspect", parameters).await
    }

    /// Requests tokens with an assertion that has this `jti`.
    pub async fn token_with_assertion_id(&self, id: &str) -> Result<Tokens, OAuthError> {
        self.run("token", json!({ "assertionId": id })).await
    }
}

impl Library for Program {
    async fn discover(&self, url: &str) -> Discovered {
        self.run("discover", json!({ "url": url })).await.unwrap()
    }

    async fn token_with(&self, key: &Path, resource: &str, scope: Option<&str>) -> Result<Tokens, OAuthError> {
        let mut parameters = json!({ "resource": resource });
        if let Some(scope) = scope {
            parameters["scope"] = json!(scope);
        }
        self.run_with(key, "token", parameters).await
    }

    async fn token(&self, resource: &str, scope: Option<&str>) -> Result<Tokens, OAuthError> {
        self.token_with(&self.settings.key_file, resource, scope).await
    }

    async fn refresh(&self, refresh_token: &str) -> Result<Tokens, OAuthError> {
        self.run("refresh", json!({ "refreshToken": refresh_token })).await
    }

    async fn revoke(&self, access_token: &str) {
        let printed: Value = self.run("revoke", json!({ "token": access_token })).await.unwrap();
        assert_eq!(printed, json!({}));
    }

    async fn call(&self, url: &str, access_token: Option<&str>) -> Answer {
        self.run("call", json!({ "url": url, "accessToken": access_token })).await.unwrap()
    }
}
