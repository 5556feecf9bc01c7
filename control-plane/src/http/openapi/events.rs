//! What webhooks are told: the section `webhooks` of the description.

use crate::domain::webhook::event::{
    Authenticated, AuthenticationFailed, EventKind, FeedbackReceived, RoleAssigned, RoleRevoked, Test,
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

/// With every delivery come these.
const HEADERS: [(&str, &str); 3] = [
    ("webhook-id", "The id of the event: the same on every try. Whoever has seen it has seen the event."),
    ("webhook-timestamp", "When this try was made, in Unix seconds."),
    (
        "webhook-signature",
        "`v1,` and the base64 of HMAC-SHA256 under the secret, over `<webhook-id>.<webhook-timestamp>.<body>` (Standard \
         Webhooks 1.0). Two of them, with a space between, for 24 hours after the secret was rotated.",
    ),
];

/// The kinds of events, each with what it tells.
pub fn webhooks() -> Paths {
    let all = EventKind::ALL.iter().fold(PathsBuilder::new(), |paths, kind| {
        paths.path(kind.as_str(), PathItem::new(HttpMethod::Post, operation(*kind)))
    });
    all.build()
}

/// The words that events are told in.
pub fn words() -> Vec<(String, RefOr<Schema>)> {
    let mut words = vec![word::<Authenticated>(), word::<AuthenticationFailed>(), word::<RoleAssigned>()];
    words.extend([word::<RoleRevoked>(), word::<FeedbackReceived>(), word::<Test>()]);
    words
}

fn word<T: ToSchema>() -> (String, RefOr<Schema>) {
    (T::name().into_owned(), T::schema())
}

fn data(kind: EventKind) -> (String, RefOr<Schema>) {
    match kind {
        EventKind::Authenticated => word::<Authenticated>(),
        EventKind::AuthenticationFailed => word::<AuthenticationFailed>(),
        EventKind::RoleAssigned => word::<RoleAssigned>(),
        EventKind::RoleRevoked => word::<RoleRevoked>(),
        EventKind::FeedbackReceived => word::<FeedbackReceived>(),
        EventKind::Test => word::<Test>(),
    }
}

fn operation(kind: EventKind) -> Operation {
    let (name, schema) = data(kind);
    let about = match schema {
        RefOr::T(Schema::Object(object)) => object.description,
        RefOr::T(_) | RefOr::Ref(_) => None,
    };
    let text = || ObjectBuilder::new().schema_type(Type::String);
    let body = ObjectBuilder::new()
        .schema_type(Type::Object)
        .property("event", text().enum_values(Some([kind.as_str()])))
        .property("timestamp", text().format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime))))
        .property("data", Ref::from_schema_name(name))
        .required("event")
        .required("timestamp")
        .required("data");
    let content = ContentBuilder::new().schema(Some(RefOr::<Schema>::from(Schema::Object(body.build()))));
    let body = RequestBodyBuilder::new().content("application/json", content.build()).required(Some(Required::True));
    let header = |(name, about): (&str, &str)| {
        let header = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Header).required(Required::True);
        header.description(Some(about)).schema(Some(text())).build()
    };
    let taken = ResponseBuilder::new().description(
        "Any status from 200 to 299: the event was taken. 410 disables the webhook; all others are tried again.",
    );
    OperationBuilder::new()
        .summary(Some(kind.as_str()))
        .description(about)
        .parameters(Some(HEADERS.map(header)))
        .request_body(Some(body.build()))
        .response("2XX", taken.build())
        .build()
}
