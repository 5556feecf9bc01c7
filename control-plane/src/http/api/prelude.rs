//! The names that most endpoints import: extractors of requests, parts of responses, and types that describe parameters and errors.

pub(super) use crate::{
    domain::{
        change::Changed,
        page::Page,
        text::{Description, DisplayName, ManagedBy, Metadata},
    },
    http::{
        error::ApiError,
        openapi::{
            errors::*,
            schema::{
                self, AgentPathParam, EventPathParam, KeyPathParam, KidPathParam, RolePathParam, ServicePathParam,
                WebhookPathParam,
            },
        },
        request::{
            body::{
                BodyFields,
                typed::{UnparsedId, body},
            },
            caller::{Call, owner_access_error},
            idempotency::IdempotencyHeader,
            ids::{PathParams, parse_id},
            paging::{PageParameters, PageResponse, page_response},
            query::QueryParams,
        },
        state::AppState,
        timestamp::Rfc3339,
    },
    operations::{self, IdempotentResponse},
};
pub(super) use axum::{Json, extract::State, http::StatusCode};
pub(super) use serde::Serialize;
pub(super) use utoipa::ToSchema;
