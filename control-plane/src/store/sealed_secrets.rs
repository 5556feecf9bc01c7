//! All secrets that are encrypted with a master key, for a rotation of the master key.

use super::{
    Conn, StoreError,
    query::{params, text_or_empty},
    row,
    statements::statements,
};
use countersign_identity::{Kid, WebhookId};
use sqlx::any::AnyRow;
use std::fmt;

statements! { STATEMENTS:
    LIST_SIGNING_KEYS = "SELECT kid, sealed_private FROM signing_keys WHERE sealed_private IS NOT NULL ORDER BY kid";
    LIST_WEBHOOK_SECRETS = "SELECT id, secret, previous_secret FROM webhook_targets WHERE deleted_at IS NULL AND id > $1 \
         ORDER BY id LIMIT $2 + 0";
    REPLACE_SIGNING_KEY = "UPDATE signing_keys SET sealed_private = $1 WHERE kid = $2 AND sealed_private = $3";
    REPLACE_SECRET = "UPDATE webhook_targets SET secret = $1 WHERE id = $2 AND secret = $3";
    REPLACE_PREVIOUS_SECRET =
        "UPDATE webhook_targets SET previous_secret = $1 WHERE id = $2 AND previous_secret = $3";
}

/// What a secret belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretOwner {
    /// The private key of a signing key.
    SigningKey(Kid),
    /// The secret of a webhook target.
    Webhook(WebhookId),
    /// The previous secret of a webhook target.
    PreviousOfWebhook(WebhookId),
}

/// An encrypted secret in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSecret {
    pub owner: SecretOwner,
    /// The encrypted secret, hex.
    pub sealed: String,
}

impl fmt::Display for SecretOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SigningKey(kid) => write!(f, "signing key {}", kid.as_str()),
            Self::Webhook(webhook) => write!(f, "secret of webhook {webhook}"),
            Self::PreviousOfWebhook(webhook) => write!(f, "previous secret of webhook {webhook}"),
        }
    }
}

/// Lists the private keys of all signing keys that are not removed.
pub async fn list_signing_keys(conn: &mut Conn) -> Result<Vec<StoredSecret>, StoreError> {
    let stored_from_row = |row: &AnyRow| {
        let owner = SecretOwner::SigningKey(row::parse(row, "kid")?);
        Ok(StoredSecret { owner, sealed: row::get(row, "sealed_private")? })
    };
    conn.list_rows(LIST_SIGNING_KEYS, params![], stored_from_row).await
}

/// Lists the secrets of up to `limit` webhook targets with an id after `after`, in the order of the ids.
pub async fn list_webhook_secrets(
    conn: &mut Conn,
    after: Option<WebhookId>,
    limit: i64,
) -> Result<Vec<(WebhookId, Vec<StoredSecret>)>, StoreError> {
    let secrets_from_row = |row: &AnyRow| {
        let webhook = row::parse(row, "id")?;
        let mut secrets = vec![StoredSecret { owner: SecretOwner::Webhook(webhook), sealed: row::get(row, "secret")? }];
        if let Some(sealed) = row::get(row, "previous_secret")? {
            secrets.push(StoredSecret { owner: SecretOwner::PreviousOfWebhook(webhook), sealed });
        }
        Ok((webhook, secrets))
    };
    conn.list_rows(LIST_WEBHOOK_SECRETS, params![text_or_empty(after), limit], secrets_from_row).await
}

/// Replaces an encrypted secret. Returns false if the secret is no longer the stored one.
pub async fn replace(conn: &mut Conn, stored: &StoredSecret, sealed: &str) -> Result<bool, StoreError> {
    let StoredSecret { owner, sealed: current } = stored;
    let (sql, parameters) = match owner {
        SecretOwner::SigningKey(kid) => (REPLACE_SIGNING_KEY, params![sealed, kid, current]),
        SecretOwner::Webhook(webhook) => (REPLACE_SECRET, params![sealed, webhook, current]),
        SecretOwner::PreviousOfWebhook(webhook) => (REPLACE_PREVIOUS_SECRET, params![sealed, webhook, current]),
    };
    conn.changes_row(sql, parameters).await
}
