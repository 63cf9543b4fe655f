//! The description of the API for programs.

use std::path::Path;

use serde_json::Value;

use crate::stage::Stage;

const PLACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");

#[tokio::test]
async fn the_description_is_what_the_code_serves_and_the_documents_hold() {
    let stage = Stage::new().await;
    let made = longhaul_server::openapi(&crate::stage::names());
    let served = stage.request(reqwest::Method::GET, "/openapi.json").send().await.expect("an answer");
    assert_eq!(served.text().await.expect("text"), made);
    let kept = std::fs::read_to_string(Path::new(PLACE)).unwrap_or_default();
    assert!(
        kept == made,
        "docs/openapi.json is old; refresh it: cargo run -p longhaul -- openapi > docs/openapi.json"
    );
    stage.stop().await;
}

#[test]
fn every_operation_is_described_under_a_name_of_its_own() {
    let api: Value = serde_json::from_str(&longhaul_server::openapi(&crate::stage::names())).expect("JSON");
    assert!(api["openapi"].as_str().expect("a version").starts_with("3.1"));
    let mut names = std::collections::BTreeSet::new();
    for (path, item) in api["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let name = operation["operationId"].as_str().expect("a name");
            assert!(names.insert(name.to_owned()), "{name} twice");
            assert!(operation["summary"].is_string(), "{method} {path} says nothing");
            assert!(operation["tags"][0].is_string(), "{method} {path} belongs nowhere");
            assert!(operation["responses"]["default"].is_object(), "{method} {path} cannot fail");
        }
    }
    let text = api.to_string();
    for (at, _) in text.match_indices("\"#/components/schemas/") {
        let name = text[at + 22..].split('"').next().expect("a name");
        assert!(api["components"]["schemas"][name].is_object(), "{name} is not described");
    }
}
