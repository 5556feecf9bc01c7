//! The section `webhooks` of the OpenAPI document: the requests that receivers get.

use crate::domain::webhook::event::{
    AuthenticatedEvent, AuthenticationFailedEvent, EventKind, FeedbackReceivedEvent, RoleAssignedEvent,
    RoleRevokedEvent, TestEvent,
};
use utoipa::{
    ToSchema,
    openapi::{
        ContentBuilder, KnownFormat, PathItem, Paths, PathsBuilder, Ref, RefOr, Required, ResponseBuilder, Schema,
        SchemaFormat, Type,
        path::{HttpMethod, Operation, OperationBuilder, ParameterBuilder, ParameterIn},
        request_body::RequestBodyBuilder,
        schema::ObjectBuilder,
    },
};

/// Headers of every delivery, with their descriptions.
const HEADERS: [(&str, &str); 3] = [
    ("webhook-id", "The id of the event, the same in every attempt. Use it to ignore duplicates."),
    ("webhook-timestamp", "Time of the attempt, in Unix seconds."),
    (
        "webhook-signature",
        "`v1,` and the base64 of HMAC-SHA256 under the secret, over `<webhook-id>.<webhook-timestamp>.<body>` (Standard \
         Webhooks 1.0). For 24 hours after a rotation of the secret there are two signatures, separated by a space.",
    ),
];

/// One entry for each event kind.
pub fn webhooks() -> Paths {
    let paths = EventKind::ALL.iter().fold(PathsBuilder::new(), |paths, kind| {
        paths.path(kind.as_str(), PathItem::new(HttpMethod::Post, operation(*kind)))
    });
    paths.build()
}

/// The schemas of the event data.
pub fn schemas() -> impl Iterator<Item = (String, RefOr<Schema>)> {
    EventKind::ALL.iter().map(|kind| data_schema(*kind))
}

fn named_schema<T: ToSchema>() -> (String, RefOr<Schema>) {
    (T::name().into_owned(), T::schema())
}

fn data_schema(kind: EventKind) -> (String, RefOr<Schema>) {
    match kind {
        EventKind::Authenticated => named_schema::<AuthenticatedEvent>(),
        EventKind::AuthenticationFailed => named_schema::<AuthenticationFailedEvent>(),
        EventKind::RoleAssigned => named_schema::<RoleAssignedEvent>(),
        EventKind::RoleRevoked => named_schema::<RoleRevokedEvent>(),
        EventKind::FeedbackReceived => named_schema::<FeedbackReceivedEvent>(),
        EventKind::Test => named_schema::<TestEvent>(),
    }
}

fn operation(kind: EventKind) -> Operation {
    let (name, schema) = data_schema(kind);
    let description = match schema {
        RefOr::T(Schema::Object(object)) => object.description,
        RefOr::T(_) | RefOr::Ref(_) => None,
    };
    let string = || ObjectBuilder::new().schema_type(Type::String);
    let body = ObjectBuilder::new()
        .schema_type(Type::Object)
        .property("event", string().enum_values(Some([kind.as_str()])))
        .property("timestamp", string().format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime))))
        .property("data", Ref::from_schema_name(name))
        .required("event")
        .required("timestamp")
        .required("data");
    let content = ContentBuilder::new().schema(Some(RefOr::<Schema>::from(Schema::Object(body.build()))));
    let body = RequestBodyBuilder::new().content("application/json", content.build()).required(Some(Required::True));
    let header = |(name, description): (&str, &str)| {
        let header = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Header).required(Required::True);
        header.description(Some(description)).schema(Some(string())).build()
    };
    let accepted = ResponseBuilder::new().description(
        "Any status from 200 to 299 accepts the event. 410 disables the webhook. After any other status the delivery is retried.",
    );
    OperationBuilder::new()
        .summary(Some(kind.as_str()))
        .description(description)
        .parameters(Some(HEADERS.map(header)))
        .request_body(Some(body.build()))
        .response("2XX", accepted.build())
        .build()
}
