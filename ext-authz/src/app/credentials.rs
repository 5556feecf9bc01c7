//! The API keys that open sync streams. When their file changes, services are added and removed, and replaced keys are used for the next
//! connections. The streams of all other services continue.
//!
//! Invariant: the control plane knows the service of a new key before anything changes, so a file that would break what works changes
//! nothing.

use super::{
    AuthorizerError,
    key_file::{self, DefaultService, KeyInFile, KeyPlan, KnownKey, Place, is_same},
    key_tasks::{KeyChange, KeyTaskFactory},
};
use crate::{
    config::{ApiKey, SyncSettings},
    metrics::Metrics,
    sync::{Authorization, Instance, KeyInquiryError, service_of_key},
    view::ApiKeyIndex,
};
use arc_swap::ArcSwap;
use countersign_identity::ServiceId;
use countersign_process::file_reload::{FileContents, FileReloader, LoadedFiles};
use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, mpsc},
    time::Duration,
};
use tokio::{runtime::Handle, sync::mpsc::UnboundedSender};
use tonic::metadata::{Ascii, MetadataValue};

const SETTING: &str = "sync.keys";

/// How long the control plane may take to answer about the new keys of a file. It is shorter than the time after which the reload counts as
/// blocked.
const INQUIRY_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a refusal of a new key counts. The control plane counts refused keys of an address, so we do not ask every two seconds.
const REFUSAL_LIFETIME: Duration = Duration::from_secs(15);

/// The credentials of all API keys, in their order in the settings.
pub fn authorizations(settings: &SyncSettings) -> Result<Vec<Authorization>, AuthorizerError> {
    let authorization = |key| Ok(Arc::new(ArcSwap::from_pointee(authorization_metadata(key)?)));
    let all: Result<_, String> = settings.keys.iter().map(authorization).collect();
    all.map_err(|error| AuthorizerError::setting(SETTING, error))
}

/// An API key in use.
struct KeyInUse {
    index: ApiKeyIndex,
    key: ApiKey,
    authorization: Authorization,
    /// The service, if the control plane was asked about this key. Otherwise, its view tells the service.
    service: Option<ServiceId>,
}

/// Changes the API keys in use to those of the file.
struct KeyFollower {
    /// In the order of the file.
    in_use: Vec<KeyInUse>,
    next_index: usize,
    /// The setting `routes.default_service`.
    configured_default: Option<ServiceId>,
    /// What the control plane answered about keys of the file that are not in use, and when, since boot.
    answers: Vec<(ApiKey, Result<ServiceId, String>, Duration)>,
    factory: KeyTaskFactory,
    changes: UnboundedSender<KeyChange>,
    runtime: Handle,
}

/// Changes the keys when their file changes. `None` if the API keys are not in a file.
pub fn follow_keys_file(
    settings: &SyncSettings,
    configured_default: Option<ServiceId>,
    authorizations: Vec<Authorization>,
    factory: KeyTaskFactory,
    changes: UnboundedSender<KeyChange>,
    metrics: &Metrics,
) -> Option<FileReloader> {
    let path = settings.keys_file.as_deref()?;
    // If the file has changed since the settings were read, we tell the reloader that an empty file is in use, so that it loads
    // this one.
    let content = std::fs::read(path).unwrap_or_default();
    let is_in_use = key_file::parse(&content).is_ok_and(|keys| {
        keys.len() == settings.keys.len() && keys.iter().zip(&settings.keys).all(|(it, key)| is_same(&it.key, key))
    });
    let content: &[u8] = if is_in_use { &content } else { &[] };
    let with_authorizations = settings.keys.iter().zip(authorizations).enumerate();
    let in_use = with_authorizations.map(|(index, (key, authorization))| KeyInUse {
        index: ApiKeyIndex(index),
        key: key.clone(),
        authorization,
        service: None,
    });
    let clock = Arc::clone(&factory.clock);
    let mut follower = KeyFollower {
        in_use: in_use.collect(),
        next_index: settings.keys.len(),
        configured_default,
        answers: Vec::new(),
        factory,
        changes,
        runtime: Handle::current(),
    };
    let name = path.to_path_buf();
    let load = move |contents: &FileContents| {
        // There is always one content, because `files` has one path.
        let content = contents.first().map(|content| content.as_slice()).unwrap_or_default();
        follower.load(content).map_err(|error| with_path(&name, &error))
    };
    let files = LoadedFiles::new(SETTING, &[(path, content)]);
    Some(FileReloader::new(files, Box::new(load), &metrics.file_reloads, clock))
}

fn with_path(path: &Path, error: &str) -> String {
    format!("{}: {error}", path.display())
}

impl KeyFollower {
    /// Changes the keys to those of a file, or says why they stay as they are.
    fn load(&mut self, content: &[u8]) -> Result<String, String> {
        let in_file = key_file::parse(content)?;
        let services = self.services_of(&in_file)?;
        let (in_use, default) = (self.known_keys(), self.default_service());
        let known = in_file.iter().zip(&services).map(|(it, service)| KnownKey {
            key: &it.key,
            service: *service,
            has_view: false,
        });
        let plan = key_file::plan(&in_use, &known.collect::<Vec<_>>(), default)?;
        Ok(self.change_to(in_file, &services, &plan))
    }

    fn known_keys(&self) -> Vec<KnownKey<'_>> {
        let has_view = |it: &KeyInUse| self.factory.views.of_key(it.index).is_some();
        let known = self.in_use.iter().map(|it| KnownKey {
            key: &it.key,
            service: self.service_of(it),
            has_view: has_view(it),
        });
        known.collect()
    }

    fn service_of(&self, key: &KeyInUse) -> Option<ServiceId> {
        key.service.or_else(|| self.factory.views.of_key(key.index).map(|view| view.service()))
    }

    fn default_service(&self) -> DefaultService {
        let of_first = || DefaultService::OfFirstKey(self.factory.views.default_service());
        self.configured_default.map_or_else(of_first, DefaultService::Configured)
    }

    /// The service of each key in the file. Asks the control plane about new keys.
    fn services_of(&mut self, in_file: &[KeyInFile]) -> Result<Vec<Option<ServiceId>>, String> {
        let is_new = |it: &&KeyInFile| !self.in_use.iter().any(|other| is_same(&other.key, &it.key));
        let new: Vec<_> = in_file.iter().filter(is_new).map(|it| it.key.clone()).collect();
        self.ask(new)?;
        let service = |it: &KeyInFile| match self.in_use.iter().find(|other| is_same(&other.key, &it.key)) {
            Some(key) => Ok(self.service_of(key)),
            None => match self.answers.iter().find(|(key, ..)| is_same(key, &it.key)) {
                Some((_, Ok(service), _)) => Ok(Some(*service)),
                Some((_, Err(error), _)) => Err(format!("line {}: {error}", it.line)),
                None => Err(format!("line {}: the control plane did not answer about this API key", it.line)),
            },
        };
        let found: Vec<_> = in_file.iter().map(service).collect();
        let problems: Vec<_> = found.iter().filter_map(|it| it.as_ref().err()).map(String::as_str).collect();
        if problems.is_empty() { found.into_iter().collect() } else { Err(problems.join("; ")) }
    }

    /// Asks the control plane about these keys, unless it has answered.
    fn ask(&mut self, keys: Vec<ApiKey>) -> Result<(), String> {
        let now = self.factory.clock.since_boot();
        self.answers.retain(|(key, answer, at)| {
            let counts = answer.is_ok() || now.saturating_sub(*at) < REFUSAL_LIFETIME;
            counts && keys.iter().any(|new| is_same(new, key))
        });
        let unanswered = |key: &ApiKey| !self.answers.iter().any(|(answered, ..)| is_same(answered, key));
        let keys: Vec<_> = keys.into_iter().filter(unanswered).collect();
        let authorizations = keys.iter().map(authorization_metadata).collect::<Result<Vec<_>, _>>()?;
        let endpoints = self.factory.endpoints.load_full();
        let instance = Instance::draw(&*self.factory.rng);
        let (sender, answers) = mpsc::channel();
        // This is no thread of the runtime. If the runtime stops, it drops the task, so the wait ends.
        let inquiry = self.runtime.spawn(async move {
            for (number, authorization) in authorizations.iter().enumerate() {
                let answer = service_of_key(&endpoints, authorization, instance.of_key(ApiKeyIndex(number))).await;
                if sender.send(answer).is_err() {
                    return;
                }
            }
        });
        let deadline = now.saturating_add(INQUIRY_TIMEOUT);
        let mut unanswered = None;
        for key in keys {
            let left = deadline.saturating_sub(self.factory.clock.since_boot());
            let Ok(answer) = answers.recv_timeout(left) else { break };
            match answer {
                Ok(service) => self.answers.push((key, Ok(service), now)),
                Err(error @ KeyInquiryError::Refused) => self.answers.push((key, Err(error.to_string()), now)),
                // The next attempt asks again.
                Err(error @ KeyInquiryError::Unanswered(_)) => {
                    unanswered = Some(error.to_string());
                    break;
                }
            }
        }
        inquiry.abort();
        unanswered.map_or(Ok(()), Err)
    }

    /// Puts a plan into effect. Returns its description for the log.
    fn change_to(&mut self, in_file: Vec<KeyInFile>, services: &[Option<ServiceId>], plan: &KeyPlan) -> String {
        let mut before: Vec<_> = std::mem::take(&mut self.in_use).into_iter().map(Some).collect();
        let (mut added, mut replaced, mut started) = (0, 0, Vec::new());
        for ((it, service), place) in in_file.into_iter().zip(services).zip(&plan.places) {
            let key = match *place {
                Place::Kept(index) => before.get_mut(index).and_then(Option::take),
                Place::Replaces(index) => {
                    replaced += 1;
                    before.get_mut(index).and_then(Option::take).map(|old| with_credentials(old, &it))
                }
                Place::New => {
                    added += 1;
                    let key = self.added(&it, *service);
                    started.extend(key.as_ref().map(|key| key.index));
                    key
                }
            };
            self.in_use.extend(key);
        }
        let indexes: Vec<_> = self.in_use.iter().map(|it| it.index).collect();
        self.factory.views.change_keys(&indexes, &services.iter().flatten().copied().collect::<BTreeSet<_>>());
        for key in self.in_use.iter().filter(|it| started.contains(&it.index)) {
            let task = Box::new(self.factory.create_later(key.index, &key.authorization));
            self.send(KeyChange::Start(key.index, task));
        }
        let stopped: Vec<_> = before.into_iter().flatten().map(|it| it.index).collect();
        for index in &stopped {
            self.send(KeyChange::Stop(*index));
        }
        for service in &plan.removed_services {
            tracing::warn!(%service, "the API key of this service was removed: its requests are refused with sync_key_removed");
        }
        let (total, removed) = (indexes.len(), stopped.len());
        format!("{total} API keys: {added} added, {replaced} replaced, {removed} removed")
    }

    fn added(&mut self, new: &KeyInFile, service: Option<ServiceId>) -> Option<KeyInUse> {
        let index = ApiKeyIndex(self.next_index);
        self.next_index += 1;
        let value = authorization_metadata(&new.key).ok()?;
        let authorization = Arc::new(ArcSwap::from_pointee(value));
        Some(KeyInUse { index, key: new.key.clone(), authorization, service })
    }

    fn send(&self, change: KeyChange) {
        // The receiver is gone only while the process stops.
        let _stopping = self.changes.send(change);
    }
}

/// The key in use with the credentials of another key of its service, which its next connection uses.
fn with_credentials(old: KeyInUse, new: &KeyInFile) -> KeyInUse {
    // The key was asked about, so it is valid in a header.
    if let Ok(value) = authorization_metadata(&new.key) {
        old.authorization.store(Arc::new(value));
    }
    KeyInUse { key: new.key.clone(), ..old }
}

fn authorization_metadata(key: &ApiKey) -> Result<MetadataValue<Ascii>, String> {
    let mut value = MetadataValue::try_from(format!("Bearer {}", key.expose()))
        .map_err(|_| "contains a key that is not valid in a header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}
