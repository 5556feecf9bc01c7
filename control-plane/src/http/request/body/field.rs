//! The types that fields of a body can have: their parsers and their schemas.

use crate::{
    domain::{
        agent::parse_status,
        resource_uri::ResourceUris,
        service::KeyScope,
        text::{Description, DisplayName, EmailAddress, IssuerText, ManagedBy, Metadata, SubjectText},
        trust::{InvalidScore, Score},
    },
    http::{openapi::schema, timestamp},
};
use countersign_identity::{AgentStatus, P256PublicKey, Permission, RoleName, Scope, Timestamp};
use secrecy::SecretString;
use serde_json::Value;
use utoipa::ToSchema;

/// A type that a field of a body can have.
pub trait FromField: Sized {
    /// The schema of the type in the API description.
    type Schema: ToSchema;

    /// Parses the value. The error message states what the value must be.
    fn from_field(value: Value) -> Result<Self, String>;
}

impl FromField for String {
    type Schema = schema::TextSchema;

    fn from_field(value: Value) -> Result<Self, String> {
        match value {
            Value::String(text) => Ok(text),
            _ => Err("must be a string".into()),
        }
    }
}

impl FromField for SecretString {
    type Schema = schema::AnyTokenSchema;

    fn from_field(value: Value) -> Result<Self, String> {
        match value {
            Value::String(text) if !text.is_empty() => Ok(text.into()),
            _ => Err("must be a non-empty string".into()),
        }
    }
}

impl FromField for bool {
    type Schema = schema::BooleanSchema;

    fn from_field(value: Value) -> Result<Self, String> {
        value.as_bool().ok_or_else(|| "must be true or false".into())
    }
}

impl FromField for Vec<Permission> {
    type Schema = schema::PermissionsSchema;

    fn from_field(value: Value) -> Result<Self, String> {
        let Value::Array(items) = value else { return Err("must be an array of strings".into()) };
        let parsed = items.into_iter().enumerate().map(|(position, item)| {
            Permission::from_field(item).map_err(|message| format!("item {position} {message}"))
        });
        let mut permissions = parsed.collect::<Result<Self, _>>()?;
        permissions.sort();
        permissions.dedup();
        Ok(permissions)
    }
}

impl FromField for ResourceUris {
    type Schema = schema::ResourceUrisSchema;

    fn from_field(value: Value) -> Result<Self, String> {
        let Value::Array(items) = value else { return Err("must be an array of strings".into()) };
        let texts: Option<Vec<_>> = items.iter().map(Value::as_str).collect();
        Self::parse(texts.ok_or("must be an array of strings")?).map_err(|error| error.to_string())
    }
}

impl FromField for Score {
    type Schema = schema::FeedbackScoreSchema;

    fn from_field(value: Value) -> Result<Self, String> {
        let number = value.as_f64().ok_or(InvalidScore);
        number.and_then(Self::from_points).map_err(|error| error.to_string())
    }
}

impl FromField for Metadata {
    type Schema = Self;

    fn from_field(value: Value) -> Result<Self, String> {
        match value {
            Value::Object(map) => Self::try_from(map).map_err(|error| error.to_string()),
            _ => Err("must be an object".into()),
        }
    }
}

macro_rules! from_text {
    ($($name:ty as $schema:ty: $parse:expr;)+) => {$(
        impl FromField for $name {
            type Schema = $schema;

            fn from_field(value: Value) -> Result<Self, String> {
                let parse: fn(String) -> Result<Self, String> = $parse;
                parse(String::from_field(value)?)
            }
        }
    )+};
}

from_text! {
    EmailAddress as Self: |text| Self::try_from(text).map_err(|error| error.to_string());
    DisplayName as Self: |text| Self::try_from(text).map_err(|error| error.to_string());
    ManagedBy as Self: |text| Self::try_from(text).map_err(|error| error.to_string());
    IssuerText as Self: |text| Self::try_from(text).map_err(|error| error.to_string());
    SubjectText as Self: |text| Self::try_from(text).map_err(|error| error.to_string());
    Description as Self: |text| Self::try_from(text).map_err(|error| error.to_string());
    RoleName as schema::RoleNameSchema: |text| Self::try_from(text).map_err(|error| error.to_string());
    Scope as schema::ScopeSchema: |text| Self::try_from(text).map_err(|error| error.to_string());
    Permission as schema::PermissionSchema: |text| Self::try_from(text).map_err(|error| error.to_string());
    P256PublicKey as schema::PublicKeySchema: |text| Self::from_pem(&text).map_err(|error| error.to_string());
    KeyScope as schema::KeyScopeSchema: |text| Self::parse(&text).ok_or_else(|| "must be `full` or `sync`".into());
    AgentStatus as schema::AgentStatusSchema: |text| parse_status(&text).ok_or_else(|| "must be `active`, `suspended` or `revoked`".into());
    Timestamp as schema::ExpiryTimeSchema: |text| timestamp::parse(&text).ok_or_else(|| "must be a time such as 2030-01-31T12:00:00Z (RFC 3339)".into());
}
