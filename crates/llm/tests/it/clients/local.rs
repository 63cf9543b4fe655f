//! Engines on this machine.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use longhaul_llm::local::{EngineKind, detect};
use serde_json::{Value, json};

use super::stub::{Stub, json as answer};

type Route = (&'static str, fn() -> Value);

async fn engine(routes: &'static [Route]) -> Stub {
    Stub::start(move |seen| {
        let found = routes.iter().find(|(path, _)| seen.line == format!("GET {path}"));
        found.map_or_else(|| StatusCode::NOT_FOUND.into_response(), |(_, body)| answer(body()))
    })
    .await
}

#[tokio::test]
async fn each_engine_is_known_by_its_own_routes() {
    let ollama = engine(&[
        ("/api/version", || json!({ "version": "0.40.1" })),
        ("/api/tags", || json!({ "models": [{ "name": "llama3:8b", "model": "llama3:8b" }] })),
        ("/v1/models", || json!({ "data": [{ "id": "llama3:8b" }] })),
    ])
    .await;
    let found = detect(&format!("{}/v1/", ollama.url)).await.unwrap().unwrap();
    assert_eq!(
        (found.kind, found.version.as_deref(), found.slots),
        (EngineKind::Ollama, Some("0.40.1"), None)
    );
    assert_eq!((found.base_url, found.models), (format!("{}/v1", ollama.url), vec!["llama3:8b".to_owned()]));

    let llama = engine(&[
        ("/props", || json!({ "total_slots": 4, "build_info": "b6000", "chat_template": "…" })),
        ("/health", || json!({ "status": "ok" })),
        ("/v1/models", || json!({ "data": [{ "id": "smollm2.gguf" }] })),
    ])
    .await;
    let found = detect(&llama.url).await.unwrap().unwrap();
    assert_eq!((found.kind, found.slots, found.ready), (EngineKind::LlamaCpp, Some(4), true));
    assert_eq!(found.models, ["smollm2.gguf"]);

    let vllm = engine(&[
        ("/version", || json!({ "version": "0.32.0" })),
        ("/v1/models", || json!({ "object": "list", "data": [{ "id": "qwen", "owned_by": "vllm" }] })),
    ])
    .await;
    let found = detect(&vllm.url).await.unwrap().unwrap();
    assert_eq!((found.kind, found.models.as_slice()), (EngineKind::Vllm, &["qwen".to_owned()][..]));

    let studio = engine(&[
        (
            "/api/v0/models",
            || json!({ "data": [{ "id": "gemma", "quantization": "Q4_K_M", "state": "loaded" }] }),
        ),
        ("/v1/models", || json!({ "data": [{ "id": "gemma", "owned_by": "organization_owner" }] })),
    ])
    .await;
    assert_eq!(detect(&studio.url).await.unwrap().unwrap().kind, EngineKind::LmStudio);
}

/// It may pass calls on to a provider that bills them.
#[tokio::test]
async fn a_gateway_on_this_machine_is_not_taken_for_an_engine() {
    let empty = engine(&[("/v1/models", || json!({ "object": "list", "data": [] }))]).await;
    let gateway = engine(&[
        ("/version", || json!({ "version": "1.81.0" })),
        ("/api/version", || json!({ "version": "0.6.5" })),
        ("/health", || json!({ "status": "ok" })),
        ("/v1/models", || json!({ "data": [{ "id": "gpt-5", "owned_by": "openai" }] })),
    ])
    .await;
    for other in [empty, gateway] {
        let found = detect(&other.url).await.unwrap().unwrap();
        assert!(found.kind == EngineKind::Compatible && !found.kind.runs_models(), "{found:?}");
    }
}

#[tokio::test]
async fn an_engine_that_loads_is_there_but_not_ready() {
    let loading = |_: &_| -> Response {
        let body =
            json!({ "error": { "code": 503, "message": "Loading model", "type": "unavailable_error" } });
        (StatusCode::SERVICE_UNAVAILABLE, axum::Json(body)).into_response()
    };
    let stub = Stub::start(loading).await;
    let found = detect(&stub.url).await.unwrap().unwrap();
    assert_eq!((found.kind, found.ready), (EngineKind::LlamaCpp, false));
}

#[tokio::test]
async fn what_is_no_engine_is_not_found() {
    let page = Stub::start(|_| axum::response::Html("<html>a router's page</html>").into_response()).await;
    assert_eq!(detect(&page.url).await.unwrap(), None);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    assert_eq!(detect(&url).await.unwrap(), None);
    assert!(detect("nonsense").await.is_err());
}
