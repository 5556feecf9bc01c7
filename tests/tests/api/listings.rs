//! Lists of services and API keys for human users, with pagination.

use countersign_tests::{ControlPlane, control_plane::text, http::texts};
use insta::assert_json_snapshot;
use serde_json::{Value, json};

async fn create_service(control: &ControlPlane, token: &str, name: &str) -> String {
    let body = json!({ "name": name, "acceptsUnboundTokens": name != "strict" });
    text(&control.api.send_as(token, "POST", "/services", body).await.expect(201)["serviceId"])
}

async fn list(control: &ControlPlane, token: &str, path: &str) -> Value {
    control.api.get_as(token, path).await.expect(200)
}

fn names(listed: &Value) -> Vec<&str> {
    texts(listed, "name")
}

#[tokio::test]
async fn human_users_list_their_services_and_administrators_list_all() {
    let control = ControlPlane::start().await;
    let (alice, bob) = (control.mint_human("alice"), control.mint_human("bob"));
    let first = create_service(&control, &alice, "first").await;
    create_service(&control, &bob, "bob's").await;
    create_service(&control, &alice, "strict").await;
    let listed = list(&control, &alice, "/services").await;
    assert_json_snapshot!(listed, { ".data[].serviceId" => "[service]", ".data[].createdAt" => "[time]" }, @r#"
    {
      "data": [
        {
          "acceptsUnboundTokens": false,
          "createdAt": "[time]",
          "managedBy": null,
          "name": "strict",
          "owner": {
            "issuer": "urn:countersign:operator",
            "subject": "alice"
          },
          "resourceUris": [],
          "serviceId": "[service]"
        },
        {
          "acceptsUnboundTokens": true,
          "createdAt": "[time]",
          "managedBy": null,
          "name": "first",
          "owner": {
            "issuer": "urn:countersign:operator",
            "subject": "alice"
          },
          "resourceUris": [],
          "serviceId": "[service]"
        }
      ],
      "pagination": {
        "hasMore": false,
        "limit": 50,
        "offset": 0,
        "total": 2
      }
    }
    "#);
    assert_eq!(listed["data"][1]["serviceId"], json!(first));
    assert_eq!(names(&list(&control, &bob, "/services").await), ["bob's"]);
    let empty = list(&control, &control.mint_human("carol"), "/services").await;
    assert_eq!((&empty["data"], &empty["pagination"]["total"]), (&json!([]), &json!(0)));
    let all = list(&control, control.human(), "/services").await;
    assert_eq!(names(&all)[..3], ["strict", "bob's", "first"]);
    assert_eq!(all["pagination"]["total"], 4, "including the service that --dev creates: {all}");
}

#[tokio::test]
async fn lists_are_paginated() {
    let control = ControlPlane::start().await;
    let alice = control.mint_human("alice");
    for number in 0..5 {
        create_service(&control, &alice, &format!("{number}")).await;
    }
    for (query, expected, pagination) in [
        ("limit=2", vec!["4", "3"], json!({ "limit": 2, "offset": 0, "total": 5, "hasMore": true })),
        ("limit=2&offset=2", vec!["2", "1"], json!({ "limit": 2, "offset": 2, "total": 5, "hasMore": true })),
        ("offset=4&limit=2", vec!["0"], json!({ "limit": 2, "offset": 4, "total": 5, "hasMore": false })),
        ("limit=5", vec!["4", "3", "2", "1", "0"], json!({ "limit": 5, "offset": 0, "total": 5, "hasMore": false })),
        ("offset=99", vec![], json!({ "limit": 50, "offset": 99, "total": 5, "hasMore": false })),
        (
            "limit=201&other=1",
            vec!["4", "3", "2", "1", "0"],
            json!({ "limit": 200, "offset": 0, "total": 5, "hasMore": false }),
        ),
    ] {
        let mut listed = list(&control, &alice, &format!("/services?{query}")).await;
        let cursor = listed["pagination"].as_object_mut().expect("the value is an object").remove("nextCursor");
        assert_eq!(cursor.is_some(), pagination["hasMore"] == true, "{query}");
        assert_eq!((names(&listed), &listed["pagination"]), (expected, &pagination), "{query}");
    }
    let huge = list(&control, &alice, "/services?limit=99999999999999999999&offset=10000").await;
    assert_eq!((&huge["pagination"]["limit"], names(&huge).len()), (&json!(200), 0));
    let cursor = text(&list(&control, &alice, "/services?limit=2").await["pagination"]["nextCursor"]);
    create_service(&control, &alice, "later").await;
    let second = list(&control, &alice, &format!("/services?limit=2&cursor={cursor}")).await;
    assert_eq!((names(&second), &second["pagination"]["offset"]), (vec!["2", "1"], &json!(2)));
    let last = format!("/services?limit=2&cursor={}", text(&second["pagination"]["nextCursor"]));
    let last = list(&control, &alice, &last).await;
    assert_eq!((names(&last), last["pagination"].get("nextCursor")), (vec!["0"], None));
    for (query, field, problem) in [
        ("limit=0", "limit", "must be a whole number"),
        ("limit=-1", "limit", "must be a whole number"),
        ("offset=-1", "offset", "must be a whole number"),
        ("offset=x", "offset", "must be a whole number"),
        ("offset=10001", "offset", "must be at most 10000; to read further, pass `pagination.nextCursor`"),
        ("offset=99999999999999999999", "offset", "must be at most 10000"),
        ("cursor=x", "cursor", "must be `pagination.nextCursor` of the previous page"),
        (&format!("cursor={cursor}&offset=2"), "cursor", "must not be combined with `offset`"),
        (&format!("cursor={cursor}&cursor={cursor}"), "cursor", "must not occur twice"),
    ] {
        let response = control.api.get_as(&alice, &format!("/services?{query}")).await;
        assert_eq!(response.code(), (400, "VALIDATION_ERROR"), "{query}");
        let message = response.text(&format!("/error/details/fields/{field}"));
        assert!(message.starts_with(problem), "{query}: {message}");
    }
    let unauthenticated = control.api.get("/services?limit=0").await;
    assert_eq!(unauthenticated.error().2, "human_token_missing", "authentication precedes validation");
}

#[tokio::test]
async fn api_keys_are_listed_without_secrets() {
    let control = ControlPlane::start().await;
    let alice = control.mint_human("alice");
    let service = create_service(&control, &alice, "shop").await;
    let keys = format!("/services/{service}/keys");
    let mut created = Vec::new();
    for (name, scope) in [("old", "full"), ("sidecar", "sync")] {
        let body = json!({ "name": name, "scope": scope });
        created.push(control.api.send_as(&alice, "POST", &keys, body).await.expect(201));
    }
    let old = format!("{keys}/{}", text(&created[0]["keyId"]));
    control.api.delete_as(&alice, &old).await.expect(200);

    let listed = list(&control, &alice, &keys).await;
    let redact_time = insta::dynamic_redaction(|value, _| if value.is_nil() { "null" } else { "[time]" });
    assert_json_snapshot!(listed["data"], {
        "[].keyId" => "[key]", "[].createdAt" => "[time]", "[].revokedAt" => redact_time,
    }, @r#"
    [
      {
        "createdAt": "[time]",
        "keyId": "[key]",
        "managedBy": null,
        "name": "sidecar",
        "revokedAt": "null",
        "scope": "sync"
      },
      {
        "createdAt": "[time]",
        "keyId": "[key]",
        "managedBy": null,
        "name": "old",
        "revokedAt": "[time]",
        "scope": "full"
      }
    ]
    "#);
    assert_eq!(listed["data"][1]["keyId"], created[0]["keyId"]);
    for key in &created {
        let secret = text(&key["apiKey"]);
        let secret = &secret[secret.len() - 64..];
        assert!(!listed.to_string().contains(secret), "the list contains no secret");
    }
    let page = list(&control, &alice, &format!("{keys}?limit=1&offset=1")).await;
    assert_eq!((names(&page), &page["pagination"]["hasMore"]), (vec!["old"], &json!(false)));
    let as_administrator = list(&control, control.human(), &keys).await;
    assert_eq!(as_administrator["pagination"]["total"], 2, "an administrator also sees the keys");
    let unknown_service = control.api.get_as(&alice, "/services/svc_00000000000000000000000000/keys").await;
    assert_eq!(unknown_service.code(), (404, "SERVICE_NOT_FOUND"));
}

#[tokio::test]
async fn owner_reads_and_changes_a_service() {
    let control = ControlPlane::start().await;
    let alice = control.mint_human("alice");
    let path = format!("/services/{}", create_service(&control, &alice, "strict").await);
    let before = list(&control, &alice, &path).await;
    assert_eq!((&before["name"], &before["acceptsUnboundTokens"]), (&json!("strict"), &json!(false)));
    let change = async |body: Value| control.api.send_as(&alice, "PATCH", &path, body).await.expect(200);
    let mut unchanged = change(json!({})).await;
    assert!(unchanged.as_object_mut().expect("the value is an object").remove("revision").is_some(), "{unchanged}");
    assert_eq!(unchanged, before, "absent fields are unchanged");
    let renamed = change(json!({ "name": "lenient", "acceptsUnboundTokens": null })).await;
    assert_eq!((&renamed["name"], &renamed["acceptsUnboundTokens"]), (&json!("lenient"), &json!(false)));
    assert_eq!(change(json!({ "acceptsUnboundTokens": true })).await["acceptsUnboundTokens"], true);
    let after = list(&control, &alice, &path).await;
    assert_eq!(after["serviceId"], before["serviceId"]);
    assert_eq!((&after["name"], &after["acceptsUnboundTokens"]), (&json!("lenient"), &json!(true)));
    assert_eq!(after["createdAt"], before["createdAt"]);
}
