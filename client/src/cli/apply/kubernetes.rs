//! Kubernetes Secrets that receive API keys. An entry of a Secret has one key per line, as the file of a sidecar.
//!
//! Only a process with a service account of the cluster can use them, such as the job of the Helm chart. Invariants: every API key that was
//! requested is in its Secret, or an annotation of the Secret shows that it was lost. No line of another key changes.

use super::{
    format::{DeclaredService, KubernetesSecret},
    secret_target::SecretState,
};
use crate::cli::{environment, error::CliError};
use base64::{Engine, prelude::BASE64_STANDARD};
use countersign_client::api::{http_client, innermost};
use reqwest::{Method, StatusCode, Url};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// The annotation that names the API key that is being made.
const PENDING: &str = "countersign/pending";

const TIMEOUT: Duration = Duration::from_secs(30);

/// How often a change is tried if others change the Secret at the same time.
const MAX_ATTEMPTS: usize = 5;

/// The start of every API key, after which its id follows.
const KEY_PREFIX: &str = "svc_sk_";

/// What the entries of the Secrets in the files contain, without any API key.
#[derive(Debug, Default)]
pub struct SecretEntries(HashMap<KubernetesSecret, Entry>);

#[derive(Debug)]
struct Entry {
    /// The ids of the API keys, such as `key_01m7xt1d9yfjk9pv2t3jtw2n8c`.
    key_ids: Vec<String>,
    /// The label of the API key that an interrupted run was making.
    pending: Option<String>,
}

impl SecretEntries {
    /// What an entry has for an existing API key. `label` is that of the key.
    pub fn state(&self, secret: &KubernetesSecret, key_id: &str, label: &str) -> SecretState {
        match self.0.get(secret) {
            Some(entry) if entry.key_ids.iter().any(|id| id == key_id) => SecretState::Kept,
            Some(entry) if entry.pending.as_deref() == Some(label) => SecretState::Interrupted,
            Some(_) | None => SecretState::Missing,
        }
    }

    /// The entries that contain an API key.
    pub fn with_key(&self, key_id: &str) -> Vec<KubernetesSecret> {
        let has_key = |entry: &Entry| entry.key_ids.iter().any(|id| id == key_id);
        self.0.iter().filter(|(_, entry)| has_key(entry)).map(|(secret, _)| secret.clone()).collect()
    }
}

/// The API server of the cluster in which this process runs.
pub struct Kubernetes {
    url: Url,
    namespace: String,
    /// The file is read for each request, because the kubelet replaces the token.
    token: PathBuf,
    http: reqwest::Client,
}

/// A Secret, as far as we need it. It has no `Debug`, because the data is secret.
#[derive(Deserialize)]
struct Secret {
    metadata: Metadata,
    #[serde(default)]
    data: HashMap<String, SecretString>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
    #[serde(default)]
    annotations: HashMap<String, String>,
}

/// A change of an entry.
#[derive(Clone, Copy)]
enum Edit<'e> {
    /// The key is about to be made.
    Begin {
        label: &'e str,
    },
    /// The control plane has made no key.
    Cancel,
    Add {
        key: &'e SecretString,
        /// The ids of the earlier keys of the service. The key follows them, so that a rotation keeps the order of services.
        earlier: &'e [String],
    },
    Remove {
        key_id: &'e str,
    },
}

impl Kubernetes {
    /// The API server of this pod. `directory` has the token, the CA and the namespace of the service account.
    pub fn of_pod(directory: &Path) -> Result<Self, CliError> {
        let outside = || {
            let text = "kubernetesSecret needs a pod with a service account: KUBERNETES_SERVICE_HOST is not set";
            CliError::usage(text).with_next("run `apply` in the job of the chart, or use `secretFile`")
        };
        let host = environment::variable("KUBERNETES_SERVICE_HOST").ok_or_else(outside)?;
        let port = environment::variable("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let url = Url::parse(&format!("https://{host}:{port}"));
        let url = url.map_err(|error| CliError::usage(format!("KUBERNETES_SERVICE_HOST: {error}")))?;
        let read = |name: &str| {
            let path = directory.join(name);
            fs::read(&path).map_err(|error| CliError::file("--service-account", &path, error.to_string()))
        };
        let namespace = String::from_utf8_lossy(&read("namespace")?).trim().to_owned();
        let http = http_client(Some(&read("ca.crt")?), |http| http.https_only(true).no_proxy())?;
        Ok(Self { url, namespace, token: directory.join("token"), http })
    }

    /// Reads the Secrets that the files name.
    pub async fn entries(&self, services: &[DeclaredService]) -> Result<SecretEntries, CliError> {
        let mut entries = HashMap::new();
        for secret in services.iter().flat_map(|it| &it.keys).filter_map(|key| key.kubernetes_secret.as_ref()) {
            if entries.contains_key(secret) {
                continue;
            }
            let read = self.read(secret).await?;
            let key_ids = lines(&read, secret)?.iter().filter_map(key_id).collect();
            let pending = read.metadata.annotations.get(PENDING).cloned();
            entries.insert(secret.clone(), Entry { key_ids, pending });
        }
        Ok(SecretEntries(entries))
    }

    async fn read(&self, secret: &KubernetesSecret) -> Result<Secret, CliError> {
        let response = self.send(Method::GET, secret, None).await?;
        if !response.status().is_success() {
            return Err(self.refused("read", secret, response.status()));
        }
        // The error of the parser is not shown, because it may contain the Secret.
        let body = response.bytes().await.ok().and_then(|body| serde_json::from_slice(&body).ok());
        body.ok_or_else(|| {
            CliError::failed(format!("the answer of the Kubernetes API server about {} is no Secret", secret.name))
        })
    }

    /// Changes an entry, and repeats this if somebody else changes the Secret at the same time.
    async fn edit(&self, secret: &KubernetesSecret, edit: Edit<'_>) -> Result<(), CliError> {
        for _ in 0..MAX_ATTEMPTS {
            let read = self.read(secret).await?;
            let patch = edit.patch(&read, secret)?;
            let status = self.send(Method::PATCH, secret, Some(&patch)).await?.status();
            if status.is_success() {
                return Ok(());
            }
            if status != StatusCode::CONFLICT {
                return Err(self.refused("change", secret, status));
            }
        }
        Err(CliError::failed(format!("the Secret {} changes all the time", secret.name))
            .with_next("run the command again"))
    }

    async fn send(
        &self,
        method: Method,
        secret: &KubernetesSecret,
        patch: Option<&Value>,
    ) -> Result<reqwest::Response, CliError> {
        let token = fs::read_to_string(&self.token);
        let token = token.map_err(|error| CliError::file("--service-account", &self.token, error.to_string()))?;
        let mut url = self.url.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(["api", "v1", "namespaces", &self.namespace, "secrets", &secret.name]);
        }
        let mut request = self.http.request(method, url).timeout(TIMEOUT).bearer_auth(token.trim());
        if let Some(patch) = patch {
            request = request.header("content-type", "application/merge-patch+json").body(patch.to_string());
        }
        let unreachable = |error: reqwest::Error| {
            CliError::failed(format!("the Kubernetes API server does not answer: {}", innermost(&error)))
        };
        request.send().await.map_err(unreachable)
    }

    /// The body of the answer is not shown, because it may contain the Secret. The remedy is in the text, which `apply` lists with those of
    /// the other changes.
    fn refused(&self, action: &str, secret: &KubernetesSecret, status: StatusCode) -> CliError {
        let (name, namespace) = (&secret.name, &self.namespace);
        let remedy = match status {
            StatusCode::NOT_FOUND => {
                "list the Secret in `apply.secrets` of the chart, which creates it, or create it empty"
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                "list the Secret in `apply.secrets` of the chart, or let the service account `get` and `patch` it"
            }
            _ => "run the command again",
        };
        CliError::failed(format!(
            "cannot {action} the Secret {name} in the namespace {namespace}: the Kubernetes API server answers {status}: {remedy}"
        ))
    }
}

impl Edit<'_> {
    /// The merge patch. With the version of the Secret, Kubernetes refuses it if the Secret has changed.
    fn patch(self, read: &Secret, secret: &KubernetesSecret) -> Result<Value, CliError> {
        let version = &read.metadata.resource_version;
        let mut kept = lines(read, secret)?;
        let annotation = read.metadata.annotations.get(PENDING);
        let pending = match self {
            Self::Begin { label } => match annotation.filter(|pending| *pending != label) {
                None => json!(label),
                Some(other) => {
                    let problem =
                        format!("the Secret {} may lack the API key {other}: run the command again", secret.name);
                    return Err(CliError::failed(problem));
                }
            },
            Self::Cancel | Self::Add { .. } => Value::Null,
            // Another key may be pending.
            Self::Remove { .. } => json!(annotation),
        };
        let metadata = json!({ "resourceVersion": version, "annotations": { PENDING: pending } });
        match self {
            Self::Begin { .. } | Self::Cancel => return Ok(json!({ "metadata": metadata })),
            Self::Add { key, earlier } => {
                let is_earlier = |line: &SecretString| key_id(line).is_some_and(|id| earlier.contains(&id));
                let place = kept.iter().rposition(is_earlier).map_or(kept.len(), |last| last + 1);
                kept.insert(place, key.clone());
            }
            Self::Remove { key_id: removed } => kept.retain(|line| key_id(line).as_deref() != Some(removed)),
        }
        let text: String = kept.iter().flat_map(|line| [line.expose_secret(), "\n"]).collect();
        Ok(json!({ "metadata": metadata, "data": { &secret.key: BASE64_STANDARD.encode(text) } }))
    }
}

/// The lines of an entry that are not empty.
fn lines(read: &Secret, secret: &KubernetesSecret) -> Result<Vec<SecretString>, CliError> {
    let Some(encoded) = read.data.get(&secret.key) else { return Ok(Vec::new()) };
    let decoded = BASE64_STANDARD.decode(encoded.expose_secret()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let no_text = || {
        let problem = format!("the entry {} of the Secret {} is no text", secret.key, secret.name);
        CliError::failed(problem).with_next("name another `key`: this one would be lost")
    };
    let text = decoded.ok_or_else(no_text)?;
    // As the sidecar reads it: commas separate keys, too.
    Ok(text.split(['\n', ',']).map(str::trim).filter(|line| !line.is_empty()).map(SecretString::from).collect())
}

/// The id of the API key in a line, which is no secret.
fn key_id(line: &SecretString) -> Option<String> {
    let id = line.expose_secret().strip_prefix(KEY_PREFIX)?.get(..ID_LEN)?;
    Some(format!("key_{id}"))
}

/// The length of the id in an API key.
const ID_LEN: usize = 26;

/// An API key that is about to be requested for an entry.
pub struct EntryTarget<'k> {
    kubernetes: &'k Kubernetes,
    secret: &'k KubernetesSecret,
}

impl<'k> EntryTarget<'k> {
    /// Annotates the Secret, so that an interruption leaves a trace. Fails if the Secret cannot be changed.
    pub async fn create(
        kubernetes: &'k Kubernetes,
        secret: &'k KubernetesSecret,
        label: &str,
    ) -> Result<Self, CliError> {
        kubernetes.edit(secret, Edit::Begin { label }).await?;
        Ok(Self { kubernetes, secret })
    }

    /// `earlier` are the ids of the earlier keys of the service.
    pub async fn write(self, key: &SecretString, earlier: &[String]) -> Result<(), CliError> {
        self.kubernetes.edit(self.secret, Edit::Add { key, earlier }).await
    }

    /// Callers use it if the control plane made no key.
    pub async fn discard(self) {
        let _ignored = self.kubernetes.edit(self.secret, Edit::Cancel).await;
    }
}

impl Kubernetes {
    /// Removes the line of a revoked API key.
    pub async fn remove(&self, secret: &KubernetesSecret, key_id: &str) -> Result<(), CliError> {
        self.edit(secret, Edit::Remove { key_id }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01jyd3rq8yfd19yr0w5mz4ypkb";

    fn stored(text: &str) -> Secret {
        serde_json::from_value(json!({
            "metadata": { "resourceVersion": "7", "annotations": { PENDING: "Shop/other" } },
            "data": { "keys": BASE64_STANDARD.encode(text) }
        }))
        .unwrap()
    }

    fn guarded_services() -> KubernetesSecret {
        KubernetesSecret { name: "guarded-services".into(), key: "keys".into() }
    }

    fn patched(text: &str, edit: Edit<'_>) -> (Value, Option<String>) {
        let patch = edit.patch(&stored(text), &guarded_services()).unwrap();
        let data =
            patch["data"]["keys"].as_str().map(|it| String::from_utf8(BASE64_STANDARD.decode(it).unwrap()).unwrap());
        (patch["metadata"].clone(), data)
    }

    #[test]
    fn key_is_added_after_earlier_keys_of_its_service_and_removed_by_its_id() {
        let key = SecretString::from(format!("svc_sk_{ID}secret"));
        let (metadata, data) = patched("svc_sk_first\n\nsvc_sk_second", Edit::Add { key: &key, earlier: &[] });
        assert_eq!(metadata, json!({ "resourceVersion": "7", "annotations": { PENDING: null } }));
        assert_eq!(data.unwrap(), format!("svc_sk_first\nsvc_sk_second\nsvc_sk_{ID}secret\n"));
        let other = SecretString::from("svc_sk_new");
        let id = format!("key_{ID}");
        let add = Edit::Add { key: &other, earlier: std::slice::from_ref(&id) };
        let (_, data) = patched(&format!("svc_sk_{ID}secret,svc_sk_second"), add);
        assert_eq!(data.unwrap(), format!("svc_sk_{ID}secret\nsvc_sk_new\nsvc_sk_second\n"));
        let (metadata, data) = patched(&format!("svc_sk_{ID}secret\nsvc_sk_second\n"), Edit::Remove { key_id: &id });
        assert_eq!(data.as_deref(), Some("svc_sk_second\n"));
        assert_eq!(metadata["annotations"][PENDING], "Shop/other", "another key is being made");
    }

    #[test]
    fn annotation_changes_no_data() {
        let (metadata, data) = patched("svc_sk_first", Edit::Begin { label: "Shop/other" });
        assert_eq!((&metadata["annotations"][PENDING], data), (&json!("Shop/other"), None));
        let error = Edit::Begin { label: "Shop/sidecar" }.patch(&stored(""), &guarded_services()).unwrap_err();
        assert!(error.to_string().contains("may lack the API key Shop/other"), "{error}");
        assert_eq!(patched("", Edit::Cancel).0["annotations"][PENDING], Value::Null);
    }

    #[test]
    fn entry_that_is_no_text_is_refused() {
        let secret =
            serde_json::from_value(json!({ "metadata": { "resourceVersion": "7" }, "data": { "keys": "/w==" } }));
        assert!(lines(&secret.unwrap(), &guarded_services()).is_err());
    }
}
